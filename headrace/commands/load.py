"""A load generator for one HTTP request: raw sockets on one event loop (uvloop where it is installed).

Closed loop: each connection sends its next request when it has its answer. Open loop: requests are due at a fixed rate,
whether answers come or not, and their latency counts from when they were due, so that a slow server cannot hide by
slowing the generator down (coordinated omission).
"""

import asyncio
import ssl
import time
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from common.errors import Unavailable

Result = TypeVar("Result")
_CONNECT_SECONDS = 5.0
_RECONNECT_SECONDS = 0.1
_TICK_SECONDS = 0.001
_LAST_ANSWERS_SECONDS = 10.0
_LONGEST_BACKLOG = 100_000
BUSY = 0.9
"""The share of one core from which on the generator, and not the server, is what is measured."""
LATE_SECONDS = 0.01


@dataclass(frozen=True)
class LoadPlan:
    """What to send, and how.

    Attributes:
        request: a whole HTTP/1.1 request.
        rate: requests a second, open loop; None is closed loop.
        warm_up_seconds: before anything is measured.
        tls: None: plain text.
    """

    host: str
    port: int
    request: bytes
    connections: int = 16
    seconds: float = 5.0
    rate: float | None = None
    warm_up_seconds: float = 1.0
    tls: ssl.SSLContext | None = None


@dataclass
class LoadReport:
    """What came back within the measured time.

    Attributes:
        answered: requests that were answered with 200.
        errors: {status, or what happened: count}.
        latencies_ms: of the answered ones, ascending.
        generator_share: of one core that this process took.
        late_ms: open loop: the 99th percentile of how late requests were sent because this process was; else 0.
        unsent: open loop: requests that were due and had no free connection in time.
    """

    seconds: float = 0.0
    answered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    generator_share: float = 0.0
    late_ms: float = 0.0
    unsent: int = 0
    first_error: str = ""

    @property
    def is_generator_the_limit(self) -> bool:
        return self.generator_share >= BUSY or self.late_ms >= LATE_SECONDS * 1000

    def percentile(self, share: float) -> float:
        """Milliseconds; 0 when nothing was answered."""
        values = self.latencies_ms
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def run_load(plan: LoadPlan) -> LoadReport:
    """Runs it in a loop of its own.

    Raises:
        Unavailable: nobody listens there.
    """
    return _run(_Load(plan).run())


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return cast(Result, uvloop.run(work))


class _Connection(asyncio.Protocol):
    """Sends one request at a time and finds the end of its answer: status line, Content-Length, body."""

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._received = bytearray()
        self._wanted = 0
        self._status = b""
        self._began_at = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not asyncio's subclasses

    def send(self, began_at: float) -> None:
        assert self._transport is not None
        self._began_at = began_at
        self._transport.write(self._load.plan.request)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._wanted:
            end = received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._status = bytes(received[9:12])
            self._wanted = end + 4 + _content_length(received[:end])
        if len(received) < self._wanted:
            return
        body = bytes(received[: self._wanted]) if self._status != b"200" else b""
        received.clear()
        self._wanted = 0
        began_at, self._began_at = self._began_at, 0.0
        self._load.answered(self, self._status, began_at, body)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost(self, is_open=self._began_at > 0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _content_length(head: bytearray) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    end = head.find(b"\r\n", at + 2)
    return int(head[at + 17 : end if end > 0 else len(head)])


class _Load:
    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self._report = LoadReport()
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._due: deque[float] = deque()
        self._late: list[float] = []
        self._measures_from = self._ends_at = 0.0
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def run(self) -> LoadReport:
        plan, report = self.plan, self._report
        for _ in range(plan.connections):
            await self._connect()
        self._measures_from = time.perf_counter() + plan.warm_up_seconds
        self._ends_at = self._measures_from + plan.seconds
        watch = asyncio.get_running_loop().create_task(self._watch_cpu())
        if plan.rate is None:
            for connection in list(self._idle):
                connection.send(time.perf_counter())
            self._idle.clear()
            await asyncio.sleep(self._ends_at - time.perf_counter())
        else:
            await self._send_at(plan.rate)
        report.generator_share = await watch
        for task in self._reconnecting:
            task.cancel()
        report.unsent += len(self._due)
        # uvloop's timers may be a millisecond early; what is closed from here on is closed by this side.
        self._ends_at = min(self._ends_at, time.perf_counter())
        for connection in list(self._open):
            connection.close()
        report.seconds = plan.seconds
        report.latencies_ms.sort()
        self._late.sort()
        report.late_ms = self._late[int(0.99 * len(self._late))] * 1000 if self._late else 0.0
        return report

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        plan = self.plan
        opening = loop.create_connection(lambda: _Connection(self), plan.host, plan.port, ssl=plan.tls)
        try:
            _, connection = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            where = f"{self.plan.host}:{self.plan.port}"
            raise Unavailable(f"nobody can be reached at {where}: {error or 'no answer'}") from error
        self._open.add(connection)
        self._idle.append(connection)

    async def _watch_cpu(self) -> float:
        """The share of one core that this process takes while it is measured."""
        await asyncio.sleep(self._measures_from - time.perf_counter())
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(self._ends_at - time.perf_counter())
        return (time.process_time() - cpu) / (time.perf_counter() - began)

    async def _send_at(self, rate: float) -> None:
        due_at = time.perf_counter()
        while (now := time.perf_counter()) < self._ends_at:
            while due_at <= now:
                if len(self._due) < _LONGEST_BACKLOG:
                    self._due.append(due_at)
                else:
                    self._report.unsent += 1
                if self._idle and due_at >= self._measures_from:
                    self._late.append(now - due_at)
                due_at += 1 / rate
                self._send_due()
            await asyncio.sleep(min(_TICK_SECONDS, max(0.0, due_at - time.perf_counter())))
        until = time.perf_counter() + _LAST_ANSWERS_SECONDS
        while len(self._idle) < len(self._open) and time.perf_counter() < until:
            await asyncio.sleep(_TICK_SECONDS * 10)

    def _send_due(self) -> None:
        while self._idle and self._due:
            self._idle.popleft().send(self._due.popleft())

    def answered(self, connection: _Connection, status: bytes, began_at: float, body: bytes) -> None:
        now = time.perf_counter()
        if self._measures_from <= began_at < self._ends_at and (self.plan.rate is not None or now < self._ends_at):
            if status == b"200":
                self._report.answered += 1
                self._report.latencies_ms.append((now - began_at) * 1000)
            else:
                self._note(status.decode("latin-1"), body)
        if self.plan.rate is None:
            if now < self._ends_at:
                connection.send(now)
            return
        self._idle.append(connection)
        if now < self._ends_at:
            self._send_due()

    def lost(self, connection: _Connection, *, is_open: bool) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        now = time.perf_counter()
        if not self._ends_at or now >= self._ends_at:
            return
        if is_open and now >= self._measures_from:
            self._note("connection lost", b"")
        task = asyncio.get_running_loop().create_task(self._reconnect())
        self._reconnecting.add(task)
        task.add_done_callback(self._reconnecting.discard)

    def _note(self, what: str, body: bytes) -> None:
        self._report.errors[what] += 1
        if not self._report.first_error:
            self._report.first_error = body.partition(b"\r\n\r\n")[2][:300].decode(errors="replace") or what

    async def _reconnect(self) -> None:
        while time.perf_counter() < self._ends_at:
            await asyncio.sleep(_RECONNECT_SECONDS)
            try:
                await self._connect()
            except Unavailable:
                self._note("cannot connect", b"")
                continue
            if self.plan.rate is None:
                self._idle.pop().send(time.perf_counter())
            return
