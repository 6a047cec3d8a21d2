"""Every number on the pages that changes by itself says what it is when it is pointed at."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.pages.door import PAGES, Page
from services.registry.pages.reading import Place, Reading
from services.registry.pages.service_links import ServiceLinks
from services.registry.pages.templating import make_environment
from services.registry.tests.building import Clock, leased, publish
from testing.rows import each_row

_VOID = {"br", "img", "input", "link", "meta", "path", "line"}
_SENTENCES = {"p", "h1", "h2", "h3", "a", "code", "pre", "summary", "title"}
"""Words that say themselves what a number in them is: prose, headings, and names that are links."""
_NUMBER = re.compile(r"[-+]?\d")
"""How a text begins that is a number, with or without its unit."""
_SAYS = ("title", "aria-description")
NAMES = {"model": "m", "stream": "s", "version": "2", "document": "guide/dashboard.md"}
_STILL = {"compare.html", "document.html", "versions.html"}
"""Pages on which nothing changes by itself."""


@dataclass
class Element:
    tag: str
    said: str
    is_live: bool
    place: int = 0
    """Of a cell in its row."""
    cells: int = 0


@dataclass
class LiveNumbers(HTMLParser):
    """Walks a page and keeps the live numbers, and those of them that nothing above them explains."""

    numbers: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        told = dict(attrs)
        found = Element(tag, next((str(told[name]) for name in _SAYS if told.get(name)), ""), "sse-swap" in told)
        if tag in ("td", "th"):
            row = self._above("tr")
            found.place, row.cells = row.cells, row.cells + 1
            if self._is_in("thead"):
                self.headings.append(found.said)
        if tag == "table":
            self.headings = []
        self.open.append(found)

    def handle_endtag(self, tag: str) -> None:
        if self._is_in(tag):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1].tag == "title":
            self.open[-2].said = data
        value = " ".join(data.split())
        if not _NUMBER.match(value) or not any(one.is_live for one in self.open):
            return
        if any(one.tag in _SENTENCES for one in self.open):
            return
        self.numbers.append(value)
        cell = next((one for one in reversed(self.open) if one.tag == "td"), None)
        of_column = self.headings[cell.place] if cell is not None and cell.place < len(self.headings) else ""
        if not of_column and not any(one.said for one in self.open):
            self.unexplained.append(f"{value} in {' '.join(one.tag for one in self.open[-4:])}")

    def _above(self, tag: str) -> Element:
        return next(one for one in reversed(self.open) if one.tag == tag)

    def _is_in(self, tag: str) -> bool:
        return any(one.tag == tag for one in self.open)


class Ingest(ServiceLinks):
    def stream_status(self, stream: str) -> Any:
        return {"end": {"0": 41}, "deadletters": {"start": {"0": 1}, "end": {"0": 4}}}


@pytest.fixture
def busy(catalog: Catalog, clock: Clock) -> Catalog:
    """Everything that a page can count is there: versions, a round under way, replicas, rates, a rebuild."""
    publish(catalog)
    publish(catalog)
    asked = catalog.jobs.request("rebuild", model="m", version=2, by="ada", reason="audit")
    assert catalog.jobs.take("t1", "rebuild", ttl_seconds=10.0) is not None
    told = {"equal": True, "sentence": "the same", "events_trained": 7, "seconds": 3.5, "metrics": {"auc": [0.5, 0.5]}}
    catalog.jobs.report(asked.job_id, "t1", 1, state="done", progress=told, ttl_seconds=10.0)
    held = leased(catalog)
    progress = {"stage": "train", "examples_done": 5, "examples_per_second": 20.0}
    catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=10.0, progress=progress)
    clock.pass_seconds(2.0)
    rates = {
        "requests_per_second": 12.0, "failed_requests_per_second": 1.0, "request_p50_seconds": 0.002,
        "request_p99_seconds": 0.004,
    }  # fmt: skip
    worked = {"runner_private_bytes": 23e6, "runner_batches_per_second": 2.0, "runner_examples_per_second": 9.0}
    parts = (Part(model="m", version=2, numbers=rates | worked), Part(model="m", numbers={"queue_requests": 3.0}))
    served = Served("m", 2, "AVAILABLE", since=7.0, aliases=("production",), engine="onnx")
    catalog.observed.report(
        Report("r", "serving", "h:1", 5.0, serves=(served,), numbers=rates | {"open_requests": 2.0}, parts=parts)
    )
    accepted = {"accepted_events_per_second": 321.0, "refused_events_per_second": 1.0}
    catalog.observed.report(
        Report("i", "ingest", "", 5.0, numbers=accepted, parts=(Part(stream="s", numbers=accepted),))
    )
    piece = {"partition": 0, "from_offset": 3, "to_offset": 5, "examples": 2, "reason": "too old"}
    counted = {"head_version": 2, "waiting": 777, "judged_before": 3, "left_out": [piece], "waiting_for": "7 of 10"}
    catalog.observed.report(Report("t", "trainer", "", 5.0, models={"m": counted}))
    return catalog


@each_row("page", PAGES)
def test_every_live_number_has_a_sentence(busy: Catalog, page: Page) -> None:
    path = page.path.replace(":path", "").format(**NAMES)
    place = Place(path, NAMES, {}, "", "", "", "")
    found = LiveNumbers()
    context = page.make(Reading(busy, Ingest()), place)
    found.feed(make_environment().get_template(page.template).render({**context, "place": place}))
    assert bool(found.numbers) == (page.template not in _STILL)
    assert found.unexplained == []
