"""What the pages cost: bytes, and time until a page has come with the files that it loads.

`python -m benchmarks.pages [--versions 500]`

Of a registry with 50 models, that many versions of one of them, 600 entries in its history, and a day of reports by two
replicas that serve all models. A page is asked for the first time of a registry that has just begun, then twenty times
more; all over the loopback interface, one file after the other.
"""

import argparse
import re
import statistics
import tempfile
import time
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.report import Cell, publish
from common.process.health import Health
from common.process.web import WebServer, bind
from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.doors.http_api import create_registry_app
from services.registry.tests.building import Clock, multiply, new_catalog
from services.registry.tests.building import publish as publish_version

_MODELS, _ENTRIES, _LOOKS = 50, 600, 20
_EVERY_SECONDS, _DAY_SECONDS = 600, 86_400
_PAGES = ("/", "/models/m", "/models/m/versions", "/models/m/versions/{newest}", "/streams", "/streams/s", "/rounds",
          "/serving", "/history", "/v1/models/m/versions")  # fmt: skip


def _busy_catalog(directory: Path, versions: int) -> Catalog:
    """With the contents with which the pages are measured."""
    clock = Clock(time.time() // 3600 * 3600 - _DAY_SECONDS)
    catalog = new_catalog(directory, clock)
    publish_version(catalog)
    multiply(directory, versions=versions, models=_MODELS)
    for _ in range(_ENTRIES):
        catalog.note("train", by="bench", reason="so that there is a history", model="m")
    names = ["m", *(f"model-{number:02d}" for number in range(1, _MODELS))]
    numbers = {
        "requests_per_second": 9.0, "request_p50_seconds": 0.002, "request_p99_seconds": 0.01,
        "failed_requests_per_second": 0.0, "open_requests": 1.0,
    }  # fmt: skip
    for _ in range(_DAY_SECONDS // _EVERY_SECONDS):
        clock.pass_seconds(_EVERY_SECONDS)
        for replica in ("a", "b"):
            served = tuple(
                Served(name, versions if name == "m" else 1, "AVAILABLE", clock.now, aliases=("production",))
                for name in names
            )
            parts = tuple(Part(model=model.model, version=model.version, numbers=numbers) for model in served)
            catalog.observed.report(Report(replica, "serving", "", 1.0, serves=served, numbers=numbers, parts=parts))
        catalog.observed.report(Report("i", "ingest", "", 1.0, numbers={"accepted_events_per_second": 1000.0}))
        counted = {"head_version": 0, "waiting": 7, "waiting_for": "more", "left_out": []}
        lag = {"lag_examples": 7.0}
        catalog.observed.report(Report("t", "trainer", "", 1.0, numbers=lag, models=dict.fromkeys(names, counted)))
    return catalog


def _of_pages(versions: int) -> list[dict[str, Cell]]:
    """The first look at a registry that has just begun, and the middle of those that follow."""
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as directory:
        catalog = _busy_catalog(Path(directory), versions)
        for path in (page.format(newest=versions) for page in _PAGES):
            server = WebServer(create_registry_app(catalog, Health()), bind("127.0.0.1", 0))
            server.start()
            first, (size, loaded) = _looked(server.port, path)
            later = [_looked(server.port, path)[0] for _ in range(_LOOKS)]
            server.stop()
            rows.append({
                "page": path, "kB": size / 1000, "with its files": loaded / 1000, "at most": _limit(path, 100.0),
                "first, ms": first * 1000, "then": statistics.median(later) * 1000, "at most, ms": _limit(path, 200.0),
            })  # fmt: skip
        catalog.close()
    return rows


def _limit(path: str, most: float) -> float | None:
    """Of the page that is opened first."""
    return most if path == "/" else None


def _looked(port: int, path: str) -> tuple[float, tuple[int, int]]:
    """(seconds, (bytes of the page, and with its files)) as they come over one connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    sizes = list[int]()
    paths = [path]
    while paths:
        connection.request("GET", paths.pop(0), headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"{path} answered {answer.status}")
        if not sizes:
            paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', body.decode())
        sizes.append(len(body))
    connection.close()
    return time.perf_counter() - began, (sizes[0], sum(sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=500, help="of one model")
    publish("pages", "What pages cost", _of_pages(parser.parse_args().versions))


if __name__ == "__main__":
    main()
