"""Writes docs/images from the pages of a platform that runs: `python -m docs.screenshots URL MODEL`, make screenshots.

Needs playwright and Debian's chromium (or CHROMIUM=path).
"""

import os
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

_IMAGES = Path(__file__).parent / "images"
_WIDTH, _HEIGHT = 1280, 860


def main(url: str, model: str) -> None:
    """Waits until each page says that it is live, and takes what a screen of 1280 pixels shows of it."""
    _IMAGES.mkdir(exist_ok=True)
    paths = {"overview": "/", "model": f"/models/{quote(model)}", "rounds": "/rounds", "overview-dark": "/"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        for name, path in paths.items():
            page = browser.new_page(
                viewport={"width": _WIDTH, "height": _HEIGHT},
                color_scheme="dark" if name.endswith("-dark") else "light",
            )
            page.goto(url.rstrip("/") + path)
            page.wait_for_selector("#live.on")
            page.screenshot(path=_IMAGES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
