"""Pictures of every page of a platform that runs: `python -m docs.screenshots URL MODEL`, make screenshots.

docs/images gets each page as a screen of 1280 pixels shows it, light and dark, in 128 colours: small files;
build/screenshots gets every page whole at 360, 1280 and 3840 pixels, light and dark, to be looked at. Needs playwright
and Debian's chromium-headless-shell.
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page

from testing.browser import chromium

_IMAGES, _WHOLE = Path(__file__).parent / "images", Path("build") / "screenshots"
_HEIGHTS = {360: 740, 1280: 860, 3840: 2160}
_SHOWN = 1280
_THEMES, _COLOURS = ("light", "dark"), 128
_SETTLE_MS = 600
"""For curves, which are drawn after what they show has been fetched."""


def paths_of(url: str, model: str) -> dict[str, str]:
    """{name: path}: of the newest version, and of the model's stream."""
    known = httpx.get(f"{url}/v1/models/{quote(model)}", timeout=30).raise_for_status().json()
    at = f"/models/{quote(model)}"
    return {
        "overview": "/", "model": at, "version": f"{at}/versions/{known['newest_version']}", "streams": "/streams",
        "stream": f"/streams/{quote(known['stream'])}", "rounds": "/rounds", "serving": "/serving",
        "history": "/history", "rollback": f"{at}/do/rollback",
    }  # fmt: skip


def main(url: str, model: str) -> None:
    """Waits until a page that is kept up to date says so, and its curves are drawn."""
    url = url.rstrip("/")
    for folder in (_IMAGES, _WHOLE):
        folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, path in paths_of(url, model).items():
            for width, theme, page in _opened(browser, url + path):
                page.screenshot(path=_WHOLE / f"{name}-{width}-{theme}.png", full_page=True)
                if width == _SHOWN:
                    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                    shown.quantize(_COLOURS, Image.Quantize.FASTOCTREE).save(
                        _IMAGES / f"{name}{'-dark' if theme == 'dark' else ''}.png", optimize=True
                    )


def _opened(browser: Browser, url: str) -> Iterator[tuple[int, str, Page]]:
    """The page in every width and theme."""
    for width, height in _HEIGHTS.items():
        for theme in _THEMES:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
            )
            page.goto(url)
            if page.locator("main[sse-connect]").count():
                page.wait_for_selector("#live.on")
            page.wait_for_timeout(_SETTLE_MS)
            yield width, theme, page
            page.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
