"""Load at a fixed rate, with or without answers, from a process that costs little and is not delayed.

    python -m benchmarks.serving_load.open_loop URL BODY RATE SECONDS OUT [CONNECTIONS [DEADLINE_MS]]

Runs for that many seconds or until SIGTERM. OUT gets rows (due at, seconds, status), an array: `due at` of the
monotonic clock, `seconds` from then to the last byte of the answer, status the HTTP status or 0. A request is due at a
fixed time; what waits because all connections are busy has been waiting since then, so a stall of the server is seen in
full (no coordinated omission).

Everything is serialized beforehand and one epoll loop does the rest: some 20 us of CPU time a request. Where permitted
the process runs as SCHED_FIFO, so that it sends when it should even while the server wants every core.
"""

import array
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

CONNECTIONS = 64
_PRIORITY = 50
_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS = 0.001, 0.0002
_LAST_ANSWERS_SECONDS = 20.0
_RECEIVE_BYTES = 1 << 18
_LENGTH = b"content-length:"


def run_in_real_time(priority: int = _PRIORITY) -> bool:
    """Makes this process SCHED_FIFO; False where that is not permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        return False
    return True


def periodic_timer(seconds: float) -> int:
    """A file that becomes readable again and again (timerfd_create(2)); epoll's own timeout counts milliseconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
    nanoseconds = int(seconds * 1e9)
    period = struct.pack("qqqq", *divmod(nanoseconds, 10**9), *divmod(nanoseconds, 10**9))
    if fd < 0 or libc.timerfd_settime(fd, 0, period, None):
        raise OSError(ctypes.get_errno(), "no timer")
    return int(fd)


def http_request(
    url: str, body: bytes, content_type: str = "application/json", *, headers: Mapping[str, str] | None = None
) -> bytes:
    parts = urlsplit(url)
    given = {"Host": parts.netloc, "Content-Type": content_type, "Content-Length": len(body), **(headers or {})}
    head = f"POST {parts.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items()) + "\r\n"
    return head.encode() + body


@dataclass
class _Connection:
    socket: socket.socket
    due_at: float = 0.0
    received: bytes = b""
    unsent: bytes = b""


@dataclass
class OpenLoop:
    """One run."""

    address: tuple[str, int]
    request: bytes
    per_second: float
    seconds: float
    connections: int = CONNECTIONS
    _rows: "array.array[float]" = field(default_factory=lambda: array.array("d"))
    _is_stopping: bool = False

    def stop(self) -> None:
        """Sends nothing more; what was sent is waited for."""
        self._is_stopping = True

    def run(self) -> np.ndarray:
        """Returns rows (due at, seconds, status), an array of shape [requests, 3], float64."""
        self._epoll = select.epoll()
        self._open: dict[int, _Connection] = {}
        self._free: list[_Connection] = []
        for _ in range(self.connections):
            self._connect()
        tick_seconds = min(max(1 / self.per_second, _SHORTEST_TICK_SECONDS), _LONGEST_TICK_SECONDS)
        timer = periodic_timer(tick_seconds)
        self._epoll.register(timer, select.EPOLLIN)
        self._loop(timer)
        for connection in self._open.values():
            if connection not in self._free:
                self._note(connection.due_at, 0)
        for connection in self._open.values():
            connection.socket.close()
        os.close(timer)
        self._epoll.close()
        return np.array(self._rows, np.float64).reshape(-1, 3)

    def _note(self, due_at: float, status: int) -> None:
        self._rows.extend((due_at, time.monotonic() - due_at, status))

    def _loop(self, timer: int) -> None:
        total = int(self.per_second * self.seconds)
        period = 1 / self.per_second
        began = time.monotonic() + 0.05
        until = began + self.seconds + _LAST_ANSWERS_SECONDS
        sent = 0
        while sent < total or len(self._free) < self.connections:
            now = time.monotonic()
            if self._is_stopping:
                total, until = sent, min(until, now + _LAST_ANSWERS_SECONDS)
                self._is_stopping = False
            if now > until:
                for index in range(sent, total):
                    self._note(began + index * period, 0)
                return
            while sent < total and self._free and began + sent * period <= now:
                self._send(self._free.pop(), began + sent * period)
                sent += 1
            for fd, events in self._epoll.poll(_LONGEST_TICK_SECONDS * 100):
                if fd == timer:
                    with contextlib.suppress(BlockingIOError):
                        os.read(timer, 8)
                else:
                    self._on_ready(self._open[fd], events)

    def _connect(self) -> None:
        opened = socket.create_connection(self.address, timeout=10)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setblocking(False)
        connection = _Connection(opened)
        self._open[opened.fileno()] = connection
        self._free.append(connection)
        self._epoll.register(opened, select.EPOLLIN)

    def _send(self, connection: _Connection, due_at: float) -> None:
        connection.due_at = due_at
        connection.unsent = self.request
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            count = connection.socket.send(connection.unsent)
        except BlockingIOError:
            count = 0
        except OSError:
            self._lost(connection)
            return
        was_waiting = len(connection.unsent) < len(self.request)
        connection.unsent = connection.unsent[count:]
        if connection.unsent:
            self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
        elif was_waiting:
            self._epoll.modify(connection.socket, select.EPOLLIN)

    def _on_ready(self, connection: _Connection, events: int) -> None:
        if events & select.EPOLLOUT and connection.unsent:
            self._write(connection)
            return
        try:
            data = connection.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(connection)
            return
        connection.received += data
        received = connection.received
        if is_whole(received):
            self._note(connection.due_at, int(received[9:12]))
            connection.received = b""
            self._free.append(connection)

    def _lost(self, connection: _Connection) -> None:
        """What was asked on it has failed; a connection that was idle is only replaced."""
        if connection in self._free:
            self._free.remove(connection)
        else:
            self._note(connection.due_at, 0)
        del self._open[connection.socket.fileno()]
        connection.socket.close()
        self._connect()


def is_whole(received: bytes) -> bool:
    """Whether an HTTP response with a Content-Length is complete."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    at = received.find(_LENGTH, 0, head_end)
    if at < 0:
        at = received[:head_end].lower().find(_LENGTH)
    if at < 0:
        return True
    length = int(received[at + len(_LENGTH) : received.find(b"\r", at)])
    return len(received) >= head_end + 4 + length


def main(arguments: Sequence[str]) -> None:
    url, body, per_second, seconds, out, *rest = arguments
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    load = OpenLoop(
        (parts.hostname, parts.port),
        http_request(url, Path(body).read_bytes(), headers={"X-Request-Timeout-Ms": rest[1]} if rest[1:] else None),
        float(per_second),
        float(seconds),
        connections=int(rest[0]) if rest else CONNECTIONS,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: load.stop())
    gc.disable()
    run_in_real_time()
    np.save(out, load.run())


if __name__ == "__main__":
    main(sys.argv[1:])
