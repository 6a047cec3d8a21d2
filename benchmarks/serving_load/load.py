"""A closed loop over N connections: wrk where it is installed, else closed_loop.py, which costs more."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.serving_load.caller import PLAIN, Caller
from benchmarks.serving_load.closed_loop import ClosedLoop
from benchmarks.serving_load.open_loop import http_request

_SCRIPT = Path(__file__).with_name("load.lua")
_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Load:
    """What one level of load saw."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def generator() -> str:
    return "wrk" if shutil.which("wrk") else "closed_loop.py"


def run(url: str, body: Path, *, connections: int, seconds: int, caller: Caller = PLAIN) -> Load:
    """Posts the body for some seconds over some connections, each of which waits for its answer before its next
    request."""
    if generator() == "wrk":
        return _wrk(url, body, connections, seconds)
    return _closed_loop(url, body.read_bytes(), connections, seconds, caller)


def _wrk(url: str, body: Path, connections: int, seconds: int) -> Load:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_SECONDS}s"]
    done = subprocess.run(
        [*command, "-s", str(_SCRIPT), url], env=os.environ | {"BENCH_BODY": str(body)},
        capture_output=True, text=True, timeout=seconds + 60, check=True,
    )  # fmt: skip
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("JSON "))[5:])
    return Load(found["requests"], found["seconds"], found["p50"], found["p99"], found["errors"])


def _closed_loop(url: str, body: bytes, connections: int, seconds: int, caller: Caller) -> Load:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    load = ClosedLoop(parts.hostname, parts.port, http_request(url, body), connections, seconds, caller.context())
    load.run()
    errors = load.errors.total()
    return Load(len(load.latencies_ms) + errors, seconds, load.percentile(0.5), load.percentile(0.99), errors)
