"""What tests of the pages look at: the words and tags of one, a site of them, and reports that fill it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from common.process.health import Health
from common.process.web import WebServer, bind
from common.registry.catalog import JsonMap
from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.doors.http_api import create_registry_app
from testing import plain_http
from testing.processes import free_port


@dataclass
class Seen(HTMLParser):
    """What a page says, and what in it could run or load."""

    words: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return f" {' '.join(self.words)} "

    def lacks(self, words: str) -> list[str]:
        """Those, parted by " | ", that it does not say."""
        return [each for each in words.split(" | ") if each not in self.text]

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]


def seen(answer: httpx.Response) -> Seen:
    found = Seen()
    found.feed(answer.text)
    return found


@contextmanager
def browsing(catalog: Catalog, **doors: Any) -> Iterator[httpx.Client]:
    """A client of the registry's HTTP door over a catalog; it keeps its cookies, as a browser does."""
    server = WebServer(create_registry_app(catalog, Health(), **doors), bind("127.0.0.1", 0))
    server.start()
    with plain_http.client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client
    catalog.end_watches()
    server.stop()


class Shown:
    """The catalog that doors are open over, set anew by each test: to open them takes 45 ms of a core."""

    catalog: Catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalog, name)


class Site:
    """The registry's HTTP door over a catalog, which can be stopped and started at its port."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self.port = catalog, free_port()
        self.start()

    def start(self) -> None:
        self._catalog.is_open = True
        self._server = WebServer(
            create_registry_app(self._catalog, Health(), secret=b"s" * 32), bind("127.0.0.1", self.port)
        )
        self._server.start()

    def stop(self) -> None:
        self._catalog.is_open = False
        self._server.stop()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def say(catalog: Catalog, rate: float, *, left_out: Sequence[JsonMap] = ()) -> None:
    """A replica, ingest and a trainer report."""
    numbers = {"requests_per_second": rate, "request_p99_seconds": 0.004}
    served = Served("m", 2, "AVAILABLE", since=7.0, aliases=("production",))
    part = Part(model="m", version=2, numbers=numbers)
    catalog.observed.report(Report("r", "serving", "", 5.0, serves=(served,), numbers=numbers, parts=(part,)))
    catalog.observed.report(Report("i", "ingest", "", 5.0, numbers={"accepted_events_per_second": 1000 + rate}))
    counted = {"head_version": 2, "waiting": 7, "waiting_for": "7 of 10 new examples", "left_out": list(left_out)}
    catalog.observed.report(Report("t", "trainer", "", 5.0, models={"m": counted}))
