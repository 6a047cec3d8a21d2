"""The pages as pictures, with a fixed clock, font and time zone, beside those that were looked at and kept.

A kept picture is small and grey: 48 dots across. A moved or missing part, or another theme, is seen in it; how letters
are drawn on some machine is not.
"""

import io
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Page

from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.tests.building import publish
from testing.browser import CHROMIUM
from testing.rows import each_row

KEPT = Path(__file__).parent / "pictures"
PATHS = {"overview": "/", "model": "/models/m", "version": "/models/m/versions/2", "serving": "/serving",
         "history": "/history", "confirm": "/models/m/do/rollback"}  # fmt: skip
_DOTS, _MOST_MEAN, _MOST_DOT = 48, 5.0, 90.0
_STILL = "*, *::before { font-family: 'DejaVu Sans' !important; animation: none !important; caret-color: transparent }"
_DRAWN = """() => [...document.querySelectorAll("[data-plot], [data-series]")].every(
  (plot) => plot.childElementCount || plot.classList.contains("nothing"))"""
Theme = Literal["light", "dark"]
Picture = NDArray[np.float64]


pytestmark = pytest.mark.needs(CHROMIUM)


@pytest.fixture
def url(catalog: Catalog, browser: httpx.Client) -> str:
    curves = {"candidate": {"late": {"roc": [[0.0, 0.0], [0.2, 0.6], [1.0, 1.0]]}}}
    for auc in (0.7, 0.74):
        publish(catalog, auc=auc, evaluation={"curves": curves})
    numbers = {"requests_per_second": 25.0, "request_p50_seconds": 0.002, "request_p99_seconds": 0.004}
    served = Served("m", 2, "AVAILABLE", since=999_990.0, aliases=("production",), engine="tensorflow")
    part = Part(model="m", version=2, numbers=numbers)
    catalog.observed.report(Report("r", "serving", "h:1", 999_000.0, serves=(served,), numbers=numbers, parts=(part,)))
    catalog.observed.report(Report("i", "ingest", "h:2", 999_000.0, numbers={"accepted_events_per_second": 1234.0}))
    counted = {"head_version": 2, "waiting": 7, "waiting_for": "7 of 10 new examples", "left_out": []}
    catalog.observed.report(Report("t", "trainer", "h:3", 999_000.0, models={"m": counted}))
    return str(browser.base_url).rstrip("/")


def picture_of(page: Page) -> Picture:
    """As it is kept."""
    page.add_style_tag(content=_STILL)
    page.evaluate("document.fonts.ready")
    whole = Image.open(io.BytesIO(page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 960})))
    return np.asarray(whole.convert("L").resize((_DOTS, _DOTS * 3 // 4), Image.Resampling.BOX), np.float64)


def is_near(first: Picture, second: Picture) -> bool:
    apart = np.abs(first - second)
    return float(apart.mean()) <= _MOST_MEAN and float(apart.max()) <= _MOST_DOT


def window(browser: Browser, theme: Theme) -> Page:
    return browser.new_page(
        viewport={"width": 1280, "height": 960}, color_scheme=theme, timezone_id="UTC", locale="en-GB", bypass_csp=True
    )


def go(page: Page, url: str) -> None:
    """Returns when everything is drawn."""
    page.goto(url)
    page.wait_for_load_state("load")
    if page.locator("main[sse-connect]").count():
        page.wait_for_selector("#live.on")
    page.wait_for_function(_DRAWN)


@each_row("theme", ["light", "dark"])
def test_pages_look_as_those_that_were_looked_at(chrome: Browser, url: str, theme: Theme, tmp_path: Path) -> None:
    found, far = {}, []
    page = window(chrome, theme)
    for name, path in list(PATHS.items())[: None if theme == "light" else 2]:
        go(page, url + path)
        found[name] = picture_of(page)
        file = f"{name}-{theme}.png"
        Image.fromarray(found[name].astype(np.uint8)).save(tmp_path / file)
        kept = np.asarray(Image.open(KEPT / file), np.float64) if (KEPT / file).exists() else np.zeros_like(found[name])
        if not is_near(found[name], kept):
            far.append(file)
        if (name, theme) == ("overview", "light"):
            page.evaluate("document.querySelector('svg.loop').remove()")
            assert not is_near(found[name], picture_of(page)), "a part that is missing is seen"
    page.close()
    assert not far, f"look at the pages; where they are as meant, copy {far} from {tmp_path} to {KEPT}"
    others = [name for name in found if name != "overview"]
    assert not any(is_near(found["overview"], found[name]) for name in others), "one page is taken for another"
