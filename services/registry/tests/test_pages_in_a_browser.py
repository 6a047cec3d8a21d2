"""The pages in a real browser: clicks, numbers that change by themselves, a registry that restarts, axe."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.tests.building import SCHEMA, Clock, definition, publish, store
from services.registry.tests.seeing import Site, say
from testing.browser import CHROMIUM, faults_of
from testing.saved_models import saved_model

PATHS = ("/", "/models/m", "/models/m/versions/2", "/streams", "/streams/s", "/rounds", "/serving", "/history",
         "/models/m/do/rollback", "/models/nobody", "/models/m/versions",
         "/models/m/compare?left=1&right=2", "/documents/guide/dashboard.md")  # fmt: skip
_PHONE: ViewportSize = {"width": 360, "height": 740}
FOCUS = """(wanted) => {
  if (document.activeElement !== wanted) return null;
  const box = wanted.getBoundingClientRect(), style = getComputedStyle(wanted);
  const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return {
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    covered_by: wanted.contains(top) ? "" : top?.outerHTML.slice(0, 80) ?? "the edge of the window",
  };
}"""
"""None where the focus is elsewhere, else how it is seen."""


pytestmark = pytest.mark.needs(CHROMIUM)


@pytest.fixture
def site(catalog: Catalog) -> Iterator[Site]:
    publish(catalog)
    publish(catalog)
    say(catalog, 1.0)
    made = Site(catalog)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def window(chrome: Browser) -> Page:
    """A page of a process that has started: a new one is a second of a core."""
    return chrome.new_page()


@pytest.fixture
def page(window: Page) -> Iterator[Page]:
    """As new. Fails when the page says anything to the console that is an error."""
    said: list[str] = []
    listeners: dict[Any, Any] = {
        "pageerror": lambda error: said.append(str(error)),
        "console": lambda message: said.append(message.text) if "Content Security" in message.text else None,
    }
    for name, listener in listeners.items():
        window.on(name, listener)
    yield window
    window.goto("about:blank")
    window.context.clear_cookies()
    window.set_viewport_size({"width": 1280, "height": 720})
    window.emulate_media(color_scheme="null")
    for name, listener in listeners.items():
        window.remove_listener(name, listener)
    assert not said


def reach(page: Page, role: Literal["link", "button", "searchbox"], name: str, *, key: str = "Tab") -> None:
    """Goes on by a key until this has the focus; it must be outlined then, and nothing may lie over it."""
    wanted = page.get_by_role(role, name=name, exact=True).first
    like = "input" if role == "searchbox" else name.split()[0]
    for _ in range(200):
        page.keyboard.press(key)
        if like not in page.evaluate("document.activeElement.outerHTML"):
            continue  # to look for a role and a name on the whole page takes ten times as long
        if (focus := wanted.evaluate(FOCUS)) is not None:
            assert focus == {"outlined": True, "covered_by": ""}, name
            return
    raise AssertionError(f"{role} {name} is not reached by {key}")


def test_numbers_change_without_a_reload_also_after_the_registry_was_away(
    site: Site, catalog: Catalog, page: Page
) -> None:
    page.goto(site.url("/"))
    expect(page.get_by_role("heading", level=1)).to_have_text("The loop")
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#live")).to_have_text("live")
    say(catalog, 234.0)
    expect(page.locator(".loop")).to_contain_text("1,234")
    cell = page.locator("#model-m td").nth(7)
    expect(cell).to_have_attribute("title", "Answered by production, over all replicas")
    site.stop()
    expect(page.locator("#live")).to_have_text("reconnecting")
    site.start()
    say(catalog, 345.0)
    expect(page.locator(".loop")).to_contain_text("1,345")
    expect(page.locator("#live")).to_have_text("live")
    assert page.evaluate("window.sameDocument")


def test_a_table_is_sorted_and_filtered_and_a_curve_is_drawn(site: Site, catalog: Catalog, page: Page) -> None:
    for number in range(6):
        publish(catalog, auc=0.6 + number / 100)
    page.goto(site.url("/models/m"))
    rows = page.get_by_role("region", name="Versions").locator("tbody tr:visible")
    expect(rows).to_have_count(8)
    page.get_by_role("button", name="Version", exact=True).click()
    page.get_by_role("button", name="Version", exact=True).click()
    expect(rows.first.locator("td").first).to_have_text("1")
    page.get_by_role("searchbox", name="Filter versions").fill("0.65")
    expect(rows).to_have_count(1)
    expect(page.locator("#curve canvas")).to_have_count(1)
    page.get_by_text("As a table").click()
    of_curve = page.get_by_role("region", name="Metric by version").locator("tbody tr")
    expect(of_curve.first).to_contain_text("0.65")
    expect(of_curve).to_have_count(8)
    headings = page.get_by_role("region", name="Metric by version").locator("th")
    assert all(headings.evaluate_all("(found) => found.map((heading) => heading.title)"))
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_axe_finds_nothing_and_no_page_is_wider_than_a_phone(site: Site, page: Page) -> None:
    page.set_viewport_size(_PHONE)
    found = {}
    for path in PATHS:
        page.emulate_media(color_scheme="light")
        page.goto(site.url(path))
        page.wait_for_load_state("load")
        found[path] = faults_of(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.emulate_media(color_scheme="dark")
        found[f"{path}, dark"] = faults_of(page, "color-contrast")
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_the_width_of_pages_with_names_of_sixty_letters(catalog: Catalog, page: Page) -> None:
    stream, model = "s" * 60, "m" * 60
    catalog.register_stream(stream, json.dumps(SCHEMA))
    catalog.register_model(model, stream=stream, files=definition(model, stream), by="b" * 60)
    publish(catalog, model=model)
    site = Site(catalog)
    say(catalog, 1.0)
    catalog.observed.report(Report("r" * 60, "serving", "", 5.0, serves=(Served(model, 1, "AVAILABLE", since=7.0),)))
    at = f"/models/{model}"
    page.set_viewport_size(_PHONE)
    wide = {}
    of_model = ("", "/versions", "/versions/1", "/compare", "/do/pin", "/versions/1/do/rebuild")
    of_all = ("/", "/streams", "/rounds", "/serving", "/history")
    for path in (*of_all, f"/streams/{stream}", *(at + below for below in of_model)):
        page.goto(site.url(path))
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 360:
            wide[path] = width
    site.stop()
    assert wide == {}


def test_pages_are_used_by_keyboard_alone_and_the_focus_is_seen(site: Site, catalog: Catalog, page: Page) -> None:
    for place in range(4):
        publish(catalog, auc=0.8765 if place == 3 else 0.75)
    page.goto(site.url("/"))
    reach(page, "link", "Skip to the content")
    reach(page, "link", "Serving")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Serving")
    page.goto(site.url("/models/m"))
    rows = page.get_by_role("region", name="Versions").locator("tbody tr:visible")
    reach(page, "searchbox", "Filter versions")
    page.keyboard.type("0.8765")
    expect(rows).to_have_count(1)
    page.keyboard.press("Escape")
    expect(rows).to_have_count(6)
    reach(page, "button", "Version")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(rows.first.locator("td").first).to_have_text("1")
    page.get_by_role("link", name="Its whole history").focus()
    reach(page, "link", "Promote version 3", key="Shift+Tab")
    reach(page, "link", "Roll back", key="Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page).to_have_url(site.url("/models/m"))
    assert catalog.get_model("m").aliases["production"] == 6
    reach(page, "link", "Roll back")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your name")).to_be_focused()
    page.keyboard.type("ada")
    reach(page, "button", "Roll back")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Production has moved back")).to_be_visible()
    assert catalog.get_model("m").aliases["production"] == 5


WRITTEN = """() => {
  window.written = [];
  const contexts = CanvasRenderingContext2D.prototype, fill = contexts.fillText;
  contexts.fillText = function (text, ...rest) {
    document.body.dataset.written = window.written.push(text);
    return fill.call(this, text, ...rest);
  };
}"""
"""Keeps what is written into canvases."""
HEARD = """document.addEventListener("htmx:sseBeforeMessage", (event) => {
  if (event.target.id === "shape") document.body.dataset.heard = event.detail.data !== event.target.dataset.shape;
})"""
"""Whether the page was told that it is no more what it was when it was loaded."""


def test_a_page_that_was_empty_shows_what_comes_but_never_takes_away_what_is_being_written(
    catalog: Catalog, page: Page
) -> None:
    site = Site(catalog)
    page.goto(site.url("/rounds"))
    expect(page.get_by_role("heading", name="No round yet")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    publish(catalog)
    expect(page.get_by_role("region", name="Rounds")).to_contain_text("m-000001")
    page.goto(site.url("/models/m"))
    expect(page.get_by_role("link", name="Unpin")).to_have_count(0)
    catalog.pin("m", 1, by="ada", reason="")
    expect(page.get_by_role("link", name="Unpin")).to_be_visible()
    catalog.change_model("m", "unpin", by="ada", reason="")
    expect(page.get_by_role("link", name="Unpin")).to_have_count(0)
    page.goto(site.url("/models/m/versions/1"))
    expect(page.locator("h1 + p")).to_contain_text("production")
    request = page.get_by_label("Request")
    request.fill('{"mine": 1}')
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate(HEARD)
    publish(catalog, auc=0.8)
    expect(page.locator("body[data-heard=true]")).to_have_count(1)
    expect(request).to_have_value('{"mine": 1}')
    page.reload()
    expect(page.locator("h1 + p")).not_to_contain_text("production")
    site.stop()


def test_both_axes_say_how_large_their_numbers_are(site: Site, catalog: Catalog, chrome: Browser) -> None:
    page = chrome.new_page()
    page.add_init_script(f"({WRITTEN})()")
    for size, wanted in ((1e-10, "e-10"), (1e11, "e11"), (0.1, "0.")):
        predicted = [[size * place, size * place * 2, 0.1] for place in range(1, 5)]
        drawn = publish(catalog, evaluation={"curves": {"candidate": {"price": {"predicted": predicted}}}})
        page.goto(site.url(f"/models/m/versions/{drawn.version}"))
        expect(page.locator(".plot canvas")).to_have_count(1)
        expect(page.locator("body[data-written]")).to_have_count(1)
        written = [text for text in page.evaluate("window.written") if text.strip()]
        assert len([text for text in written if wanted in text]) > 4, written
        assert written.count("0") < 3, f"every number of the axis was written as 0 instead of about {size}"
    page.close()


def test_the_call_for_a_shell_is_what_the_form_asks(site: Site, page: Page) -> None:
    page.goto(site.url("/models/m/versions/2"))
    page.evaluate("""document.getElementById("try").insertAdjacentHTML("beforeend", "<pre id=call></pre>")""")
    page.locator("#call").evaluate("(call, text) => { call.textContent = text }", "curl http://h/p -d '{}'")
    page.get_by_label("Request").fill('{"instances": [\n  {"word": "it\'s $& here"}\n]}')
    expect(page.locator("#call")).to_have_text(
        """curl http://h/p -d '{"instances": [ {"word": "it\\u0027s $& here"} ]}'"""
    )


def test_of_many_lines_those_that_answered_last_are_drawn_and_the_page_says_so(
    site: Site, catalog: Catalog, page: Page, clock: Clock
) -> None:
    parts = [Part(model=f"m{place}", version=1, numbers={"request_p99_seconds": 0.01}) for place in range(9)]
    catalog.observed.report(Report("r", "serving", "", 5.0, parts=tuple(parts)))
    clock.pass_seconds(10.0)
    catalog.observed.report(Report("r", "serving", "", 5.0, parts=tuple(parts[:2])))
    page.goto(site.url("/serving"))
    expect(page.locator("[data-left-out-of=latency]")).to_contain_text("6 of 10 are drawn")
    headings = page.locator("[data-table-of=latency] th")
    expect(headings).to_have_count(7)
    assert {"m0 1 r", "m1 1 r"} <= set(headings.evaluate_all("(all) => all.map((one) => one.textContent)"))
    assert str(page.locator("[data-table-of=latency] td").first.get_attribute("title")).endswith(" UTC")


def test_the_focus_and_what_was_opened_stay_through_a_live_change(site: Site, catalog: Catalog, page: Page) -> None:
    left_out = {"partition": 0, "from_offset": 10, "to_offset": 12, "examples": 2, "reason": "asked for"}
    say(catalog, 1.0, left_out=[left_out])
    page.goto(site.url("/models/m"))
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("window.sameDocument = true")
    rows = page.get_by_role("region", name="Versions").locator("tbody tr")
    page.get_by_role("button", name="Version", exact=True).press("Enter")
    page.get_by_role("button", name="Version", exact=True).press("Enter")
    expect(rows.first.locator("td").first).to_have_text("1")
    page.get_by_text("1 stretch left out").click()
    expect(page.get_by_role("cell", name="asked for")).to_be_visible()
    promote = page.get_by_role("link", name="Promote version 1")
    promote.focus()
    say(catalog, 2.0, left_out=[left_out, {**left_out, "from_offset": 12, "to_offset": 14, "reason": "too old"}])
    expect(page.get_by_role("cell", name="too old")).to_be_visible()
    expect(promote).to_be_focused()
    for number in (3, 4):
        publish(catalog, auc=0.7 + number / 100)
        expect(rows).to_have_count(number)
        assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [str(one + 1) for one in range(number)]
        expect(promote).to_be_focused()
    assert page.evaluate("window.sameDocument")
    page.goto(site.url("/history"))
    expect(page.locator("#live")).to_have_text("live")
    entries = page.get_by_role("region", name="History").locator("tbody tr")
    before = entries.count()
    first = entries.filter(has_text="promote").last.get_by_role("link", name="1", exact=True)
    first.focus()
    publish(catalog, auc=0.8)
    expect(entries).to_have_count(before + 1)
    expect(first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(site.url("/models/m/versions/1"))


def push(catalog: Catalog, *, inputs: int) -> None:
    """A version that takes none of the inputs of before, which its reasons say one by one."""
    saved = saved_model(inputs={f"a_long_input_name_{number}": ("DT_FLOAT", (-1, 4)) for number in range(inputs)})
    file = replace(store(catalog, saved), path="saved_model/saved_model.pb")
    catalog.push_version("m", [file], origin="/home/ada", by="ada", reason="")


def test_a_long_reason_leaves_room_for_other_versions_until_it_is_opened_and_stays_so(
    site: Site, catalog: Catalog, page: Page
) -> None:
    push(catalog, inputs=60)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(site.url("/models/m"))
    expect(page.locator("#live")).to_have_text("live")
    row = page.locator("#v3")
    whole = row.get_by_text("pushed by ada")
    closed = int(row.evaluate("(row) => row.offsetHeight"))
    assert closed < 130
    page.locator("#v2").scroll_into_view_if_needed()
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(row.locator("details")).to_have_attribute("open", "")
    assert int(whole.evaluate("(reason) => reason.offsetHeight")) > closed, "all of it is there"
    publish(catalog)
    expect(page.locator("#v4")).to_have_count(1)
    expect(row.locator("details")).to_have_attribute("open", "")


def test_two_versions_are_chosen_by_keyboard_and_compared_also_while_new_ones_come(
    site: Site, catalog: Catalog, page: Page
) -> None:
    publish(catalog)
    page.goto(site.url("/models/m"))
    expect(page.locator("#live")).to_have_text("live")
    page.get_by_role("radio", name="version 1 on the left").focus()
    page.keyboard.press("Space")
    page.get_by_role("radio", name="version 3 on the right").focus()
    page.keyboard.press("ArrowDown")
    publish(catalog)
    expect(page.locator("#v4")).to_have_count(1)
    expect(page.get_by_role("radio", name="version 1 on the left")).to_be_checked()
    reach(page, "button", "Compare two", key="Shift+Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/models/m/compare[?]right=2&left=1$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("m: version 1 and version 2")


def test_a_legend_has_the_newest_values_while_nothing_is_pointed_at(site: Site, catalog: Catalog, page: Page) -> None:
    publish(catalog, auc=0.8125)
    push(catalog, inputs=1)
    page.goto(site.url("/models/m"))
    legend = page.locator("#curve .u-legend")
    expect(legend).to_contain_text("0.8125")
    expect(legend.locator(".u-value").first).to_have_text("3")
    page.goto(site.url("/serving"))
    expect(page.locator("#latency .u-legend")).to_contain_text("4 ms")
    expect(page.locator("#latency .u-legend .u-value").first).to_have_text(re.compile(r"^(\S+ )?\d\d:\d\d:\d\d$"))


def test_times_have_one_form_whatever_the_language_of_the_browser(
    site: Site, catalog: Catalog, clock: Clock, chrome: Browser
) -> None:
    clock.now = time.time()
    publish(catalog)
    page = chrome.new_page(locale="en-US", timezone_id="America/New_York")
    page.goto(site.url("/models/m"))
    expect(page.locator("#v3 time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(page.locator("#v2 time")).to_have_text(re.compile(r"^1970-01-12 \d\d:\d\d:\d\d$"))
    page.close()
    plain = chrome.new_page(java_script_enabled=False)
    plain.goto(site.url("/models/m"))
    expect(plain.locator("#v2 time")).to_have_text("1970-01-12 13:46:40 UTC")
    plain.close()


def test_the_theme_and_the_tags_of_the_api_page(site: Site, page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    page.goto(site.url("/"))
    light = page.evaluate(background)
    page.get_by_role("button", name="Light or dark").click()
    assert (dark := page.evaluate(background)) != light
    page.get_by_role("link", name="API").click()
    expect(page.locator(".opblock-tag").first).to_be_visible()
    assert page.evaluate(background) == dark
    tags = set(page.locator(".opblock-tag").evaluate_all("(tags) => tags.map((tag) => tag.dataset.tag)"))
    assert {"models", "versions", "rounds", "streams", "instances", "history", "files"} <= tags
    assert "default" not in tags
    page.get_by_role("link", name="Pages").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The loop")
