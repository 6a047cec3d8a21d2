"""A closed loop over N connections: wrk where it is installed, else a generator in Python, which costs more itself."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

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
    return "wrk" if shutil.which("wrk") else "python"


def run(url: str, body: Path, *, connections: int, seconds: int) -> Load:
    """Posts the body for some seconds over so many connections, each waiting for its answer before it asks again."""
    if generator() == "wrk":
        return _wrk(url, body, connections, seconds)
    return asyncio.run(_python(url, body.read_bytes(), connections, seconds))


def _wrk(url: str, body: Path, connections: int, seconds: int) -> Load:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_SECONDS}s"]
    done = subprocess.run(
        [*command, "-s", str(_SCRIPT), url], env=os.environ | {"BENCH_BODY": str(body)}, capture_output=True, text=True,
        timeout=seconds + 60, check=True,
    )  # fmt: skip
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("JSON "))[5:])
    return Load(found["requests"], found["seconds"], found["p50"], found["p99"], found["errors"])


class _Connection(asyncio.Protocol):
    """Asks again as soon as it is answered, until the time is over."""

    def __init__(self, request: bytes, until: float, seconds: list[float], ended: asyncio.Future[int]) -> None:
        self._request = request
        self._until = until
        self._seconds = seconds
        self._ended = ended
        self._errors = 0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, content = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) if found else 0
        if not found or len(content) < length:
            return
        now = time.perf_counter()
        self._seconds.append(now - self._asked_at)
        self._errors += not head.startswith(b"HTTP/1.1 200")
        self._received = b""
        if now < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(self._errors + (error is not None))


async def _python(url: str, body: bytes, connections: int, seconds: int) -> Load:
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    assert parts.hostname is not None
    assert parts.port is not None
    latencies: list[float] = []
    ends: list[asyncio.Future[int]] = []
    started = time.perf_counter()
    for _ in range(connections):
        end: asyncio.Future[int] = loop.create_future()
        connection = _Connection(request, started + seconds, latencies, end)
        await loop.create_connection(lambda connection=connection: connection, parts.hostname, parts.port)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        ends.append(end)
    errors = sum(await asyncio.wait_for(asyncio.gather(*ends), seconds + _TIMEOUT_SECONDS))
    elapsed = time.perf_counter() - started
    latencies.sort()
    count = len(latencies)
    return Load(count, elapsed, latencies[count // 2] * 1e3, latencies[min(count - 1, count * 99 // 100)] * 1e3, errors)
