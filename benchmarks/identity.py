"""The price of identity, in CPU time: what a door does for a request's credentials, beside the whole request.

`python -m benchmarks.identity [--blocks 10]`

The first is read in this process: a guarded door in front of an application that does nothing, and the application
alone, in turn, in blocks of 1,000 requests, or fewer with pauses. The whole request is read of a serving and of an
ingest of their own, without identity, under load. Neither depends much on what else the machine does, nor on which
process is which, which is more than identity takes (prices.py). Requests that come alone find caches cold; each kind is
held against requests of its kind. Not in it: the bounds by principal behind the doors, and a look at the file each
second.
"""

import argparse
import asyncio
import http.client
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from benchmarks.ingest import STREAM, Platform, made_up_events
from benchmarks.prices import Measure, of_ingest, of_serving
from benchmarks.report import Cell, publish
from benchmarks.serving_load import processes
from benchmarks.serving_load.model import saved, write_body
from common.access.access import LOOK_SECONDS, Access, open_access
from common.access.first_start import OPERATOR, make, token_path
from common.access.guard import Guard
from common.access.principal import ANONYMOUS, act_as
from common.process.guarded_http import GuardedRoutes
from services.ingest.doors.rules import RULES
from services.serving.doors.fast_http import PredictProtocol

_CROWD, _MEASURES, _LIMIT_PERCENT = 1000, 5, 3.0
_KINDS = {"in a crowd": (0.0, _CROWD, 0), "alone": (0.006, 100, 500), "seldom": (1.2 * LOOK_SECONDS, 20, 100)}
"""The pause between two requests, how many are in a block here, and how many a service gets."""
Call = Callable[[], Awaitable[None]]


def _at_serving(access: Access, token: str) -> tuple[Call, Call]:
    """What the short way of a prediction asks (fast_http.py), and nothing."""
    shown: Any = SimpleNamespace(
        _authorization=f"Bearer {token}".encode(), certificate="", access=access, _admitted={}, owner="",
        belong=lambda name: setattr(shown, "owner", name),
    )  # fmt: skip
    shown._found = partial(PredictProtocol._found, shown)

    async def identified() -> None:
        act_as(PredictProtocol._principal(shown, processes.MODEL) or ANONYMOUS)

    async def nothing() -> None:
        pass

    return identified, nothing


def _at_ingest(access: Access, token: str) -> tuple[Call, Call]:
    """A request at the guarded door, and at the application behind it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    path = f"/v1/streams/{STREAM}/events"
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    routes = [Route("/v1/streams/{stream}/events", app, methods=["POST"])]
    guarded: Any = GuardedRoutes(app, guard=Guard(access, RULES), routes=routes, identify=None, refused=_refused)
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    return lambda: guarded(dict(scope), None, None), lambda: app(dict(scope), None, None)  # type: ignore[arg-type]  # unread


def _refused(request: Request, error: Exception) -> Response:
    raise error


async def _seconds(call: Call, pause_seconds: float, count: int) -> float:
    spent, at_once = 0.0, 1 if pause_seconds else count
    for _ in range(count // at_once):
        time.sleep(pause_seconds)
        began = time.process_time()
        for _ in range(at_once):
            await call()
        spent += time.process_time() - began
    return spent / count


async def _identity_seconds(doors: tuple[Call, Call], blocks: int, pause_seconds: float, count: int) -> float:
    with_and_without = [[await _seconds(call, pause_seconds, count) for call in doors] for _ in range(blocks)]
    return median(first - second for first, second in with_and_without)


def _whole_seconds(crowd: Measure, url: str, body: bytes, pid: int) -> list[float]:
    """CPU time of a request, by kind."""
    parts, process = urlsplit(url), psutil.Process(pid)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    found = [median(crowd()[1] for _ in range(_MEASURES))]
    for pause_seconds, _, count in [*_KINDS.values()][1:]:
        before = sum(process.cpu_times()[:2])
        for _ in range(count):
            time.sleep(pause_seconds)
            connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.read() and answer.status != http.HTTPStatus.OK:
                raise SystemExit(f"{url} answers {answer.status}")
        found.append((sum(process.cpu_times()[:2]) - before) / count)
    connection.close()
    return found


def _serving_seconds(directory: Path) -> list[float]:
    with processes.serving(directory / "run", saved(directory / "saved_model")) as running:
        body, url = write_body(directory / "body.json"), f"{running.url}/v1/models/{processes.MODEL}:predict"
        return _whole_seconds(
            of_serving(running.url, running.front_pid, body, 1), url, body.read_bytes(), running.front_pid
        )


def _ingest_seconds(directory: Path) -> list[float]:
    directory.mkdir()
    cores = set(os.sched_getaffinity(0))
    platform = Platform(directory, cores, cores)
    try:
        port, pid = platform.http_port, platform.ingest.pid
        body = json.dumps({"events": made_up_events(100)}).encode()
        return _whole_seconds(of_ingest(port, pid, 1), f"http://127.0.0.1:{port}/v1/streams/{STREAM}/events", body, pid)
    finally:
        platform.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    blocks = parser.parse_args().blocks
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make(directory / "access.yaml", directory / "tokens")
        token = token_path(directory / "tokens", OPERATOR).read_text().strip()
        access, rows = open_access(directory / "access.yaml", "", allow_anonymous=False), list[dict[str, Cell]]()
        for what, doors, whole in (
            ("a prediction, REST", _at_serving(access, token), _serving_seconds),
            ("100 events, JSON", _at_ingest(access, token), _ingest_seconds),
        ):
            identities = [asyncio.run(_identity_seconds(doors, blocks, *kind[:2])) for kind in _KINDS.values()]
            found = zip(_KINDS, identities, whole(directory / what.split()[1]), strict=True)
            rows += [
                {"what": f"{what}, {how}", "identity, CPU us": identity * 1e6, "the request, CPU us": request * 1e6,
                 "percent": identity / request * 100, "limit": _LIMIT_PERCENT}
                for how, identity, request in found
            ]  # fmt: skip
    publish("identity", "What identity costs", rows)


if __name__ == "__main__":
    main()
