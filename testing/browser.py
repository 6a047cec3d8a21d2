"""Debian's chromium without windows, driven by playwright. A test with it has the mark `needs`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

_AXE = Path(__file__).parent / "axe" / "axe.min.js"
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


CHROMIUM = "chromium-headless-shell"
"""Takes half the time of `chromium --headless`."""


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which(CHROMIUM)
    assert path, f"install {CHROMIUM} (a package of Debian)"
    with sync_playwright() as playwright:
        expect.set_options(timeout=60_000)  # a busy machine draws slowly
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def faults_of(page: Page, *only: str) -> list[str]:
    """What axe finds on the page by these rules, or tags of rules; a sentence each."""
    # In the page's own world a policy would refuse the script; what the debugger evaluates is not bound by it.
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(_AXE.read_text() + "; undefined")
    options = {
        "runOnly": list(only or _RULES),
        "resultTypes": ["violations"],
    }  # of others axe says less, and looks less
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found["violations"]
        for node in fault["nodes"][:3]
    ]
