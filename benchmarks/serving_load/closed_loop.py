"""Load by raw sockets on one event loop: each connection sends its next request when it
has its answer."""

import asyncio
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import uvloop

from benchmarks.serving_load.open_loop import is_whole

_CONNECT_SECONDS = 5.0


@dataclass
class ClosedLoop:
    """Attributes:
    request: a whole HTTP/1.1 request.
    tls: None: plain text.
    latencies_ms: of the requests answered with 200, ascending after `run`.
    errors: {status, or what happened: count}.
    """

    host: str
    port: int
    request: bytes
    connections: int
    seconds: float
    tls: ssl.SSLContext | None = None
    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    ends_at: float = 0.0

    def run(self) -> None:
        """Raises OSError, TimeoutError: no connection can be made."""
        uvloop.run(self._run())
        self.latencies_ms.sort()

    def percentile(self, share: float) -> float:
        """Milliseconds; 0 when nothing was answered."""
        values = self.latencies_ms
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0

    async def _run(self) -> None:
        opened = [await self._connected() for _ in range(self.connections)]
        self.ends_at = time.perf_counter() + self.seconds
        for connection in opened:
            connection.send()
        await asyncio.sleep(self.seconds)
        # uvloop's timers may be a millisecond early; what is closed from here on is closed by this side.
        self.ends_at = min(self.ends_at, time.perf_counter())
        for connection in opened:
            connection.close()

    async def _connected(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: _Connection(self), self.host, self.port, ssl=self.tls)
        return (await asyncio.wait_for(opening, _CONNECT_SECONDS))[1]


class _Connection(asyncio.Protocol):
    """Sends one request at a time."""

    def __init__(self, load: ClosedLoop) -> None:
        self._load = load
        self._received = b""
        self._began_at = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not asyncio's subclasses

    def send(self) -> None:
        assert self._transport is not None
        self._began_at = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        if not is_whole(received):
            return
        status, self._received = received[9:12].decode("latin-1"), b""
        now = time.perf_counter()
        if now >= self._load.ends_at:
            return
        if status == "200":
            self._load.latencies_ms.append((now - self._began_at) * 1000)
        else:
            self._load.errors[status] += 1
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self._load.ends_at:
            self._load.errors["connection lost"] += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
