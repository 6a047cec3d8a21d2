"""Calls that wait for their client: how long each may, how many may at once, and how much arrives for all together.

Neither a thread nor a place is kept by a client that says nothing: where too many wait, the call that has waited
longest gives way. gRPC does not tell how much of a message has come, the kernel does: what a connection was sent
(tcp(7), TCP_INFO) less the messages that were read of it is what arrives. Memory so counts as it is taken, not as it is
announced: gRPC takes a message of any size whole before it holds it against its limit.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from common.errors import HeadraceError, Overloaded, Unavailable
from common.process.rpc_connections import connections

_TCP_INFO_BYTES, _BYTES_RECEIVED_AT = 136, 128
_SMALL_MESSAGE_BYTES = 4096
_OVERHEAD_BYTES, _MOST_OVERHEAD_BYTES = 512, 16 * 1024 * 1024
"""Of a message, in headers and frames: the most bytes of a connection beside the messages that are held."""
_MOST_TIME_LOOKING = 0.05
_FOR_EVER = float("inf")


@dataclass(frozen=True)
class WaitBounds:
    """What the calls of one server may keep while they wait.

    Attributes:
        seconds: how long a client may take for the next message.
        send_seconds: how long it may take to read one of ours.
        max_waits: calls that may wait at once; past it the oldest give way.
        max_bytes: of messages that arrive or are being answered.
        max_message_bytes: of a single message.
        dropped_after_seconds: a wait shorter than this is not dropped for another.
        look_seconds: how often is looked at what arrives.
    """

    seconds: float
    max_waits: int
    max_bytes: int
    max_message_bytes: int
    send_seconds: float = 60.0
    dropped_after_seconds: float = 0.1
    look_seconds: float = 0.1


@dataclass(eq=False, slots=True)
class Wait:
    """Of one call.

    Attributes:
        peer: as gRPC names it.
        end: ends the call; called in a thread of our own.
        ended: why it was ended; None while it was not.
        read_bytes: of the message that came.
    before: bytes that arrived over its connection when it began, as far as is known; -1 until it is looked at.
    """

    peer: str
    end: Callable[[], object]
    since: float
    until: float
    is_read: bool
    ended: HeadraceError | None = None
    read_bytes: int = 0
    before: int = -1


@dataclass(slots=True)
class _Peer:
    """A connection. `received` up to when none of its calls waited for a message; what was `read` of it since then;
    what of it was `arrived` at the last look."""

    received: int = 0
    read: int = 0
    messages: int = 0
    arrived: int = 0

    def arriving(self, received: int) -> int:
        overhead = min(self.messages * _OVERHEAD_BYTES, _MOST_OVERHEAD_BYTES)
        return max(0, received - self.received - self.read - overhead)

    def look(self, received: int, waits: list[Wait], most: int) -> int:
        """What arrives for these. More than `most`, for as many messages, only where it has come since they began:
        else it may be of calls that were refused unread."""
        for wait in waits:
            wait.before = self.arrived if wait.before < 0 else wait.before
        self.arrived = self.arriving(received)
        return min(self.arrived, max(most, self.arrived - min(wait.before for wait in waits)))


@dataclass(eq=False)
class Waits:
    """Thread-safe. Looks at its waits in a thread that lasts as long as there are any."""

    bounds: WaitBounds
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waits: dict[Wait, None] = field(default_factory=dict)
    """Oldest first."""
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _held_bytes: int = 0
    _looker: threading.Thread | None = None
    _crowded: threading.Event = field(default_factory=threading.Event)

    def begin(self, peer: str, end: Callable[[], object], *, is_read: bool, lasts: bool = False) -> Wait:
        """is_read: for a message of the client, else for it to take one. lasts: only gives way, is never too long."""
        now = time.monotonic()
        longest = self.bounds.seconds if is_read else self.bounds.send_seconds
        wait = Wait(peer, end, now, _FOR_EVER if lasts else now + longest, is_read)
        with self._lock:
            self._waits[wait] = None
            if self._looker is None:
                self._looker = threading.Thread(target=self._look, name="waits", daemon=True)
                self._looker.start()
            if len(self._waits) > self.bounds.max_waits:
                self._crowded.set()
        return wait

    def finish(self, wait: Wait) -> None:
        with self._lock:
            self._waits.pop(wait, None)
            if wait.read_bytes:
                peer = self._peers.get(wait.peer) or self._peers.setdefault(wait.peer, _Peer())
                peer.read += wait.read_bytes
                peer.messages += 1
        wait.end = _nothing  # It may hold the call, whose place is free only when nothing does.

    @contextlib.contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Around the answer to a message of this many bytes. Raises Overloaded when there is no room for it."""
        if size < _SMALL_MESSAGE_BYTES:
            yield
            return
        with self._lock:
            if self._held_bytes + size > self.bounds.max_bytes:
                raise self._overloaded()
            self._held_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._held_bytes -= size

    def _overloaded(self) -> Overloaded:
        return Overloaded(f"the messages of all calls together take more than {self.bounds.max_bytes} bytes; try again")

    def _look(self) -> None:
        bounds = self.bounds
        pause = min(bounds.look_seconds, bounds.seconds / 4)
        while True:
            if self._crowded.wait(pause):
                time.sleep(bounds.dropped_after_seconds / 2)
            self._crowded.clear()
            began = time.monotonic()
            with self._lock:
                if not self._waits:
                    self._looker = None
                    return
            ended = self._too_large()
            with self._lock:
                now = time.monotonic()
                ended |= self._late(now) | self._surplus(now)
                is_crowded = len(self._waits) > bounds.max_waits
            for wait, error in ended.items():
                wait.ended = error
                wait.end()
            if is_crowded:
                self._crowded.set()
            pause = max(min(bounds.look_seconds, bounds.seconds / 4), (time.monotonic() - began) / _MOST_TIME_LOOKING)

    def _late(self, now: float) -> dict[Wait, HeadraceError]:
        read = Unavailable(f"the call was ended: its client sent nothing for {self.bounds.seconds:g} s")
        sent = Unavailable(f"the call was ended: its client took nothing for {self.bounds.send_seconds:g} s")
        return {wait: read if wait.is_read else sent for wait in self._waits if wait.until < now}

    def _surplus(self, now: float) -> dict[Wait, HeadraceError]:
        count = len(self._waits) - self.bounds.max_waits
        if count <= 0:
            return {}
        error = Overloaded(f"the call was ended: more than {self.bounds.max_waits} wait for their clients; try again")
        return {
            wait: error for wait in islice(self._waits, count) if now - wait.since > self.bounds.dropped_after_seconds
        }

    def _too_large(self) -> dict[Wait, HeadraceError]:
        """The waits of the connections that send most, as long as all together send too much."""
        with self._lock:
            before = {name: (peer.read, peer.messages) for name, peer in self._peers.items()}
            reading = {wait.peer for wait in self._waits if wait.is_read}
        received = received_bytes()
        arriving: dict[str, int] = {}
        with self._lock:
            of_peer: dict[str, list[Wait]] = {}
            for wait in self._waits:
                if wait.is_read:
                    of_peer.setdefault(wait.peer, []).append(wait)
            for name in self._peers.keys() - received.keys() - of_peer.keys():
                del self._peers[name]
            for name, count in received.items():
                if name not in reading and name not in of_peer:
                    read, messages = before.get(name, (0, 0))
                    peer = self._peers.setdefault(name, _Peer())
                    peer.received, peer.read, peer.messages = count, peer.read - read, peer.messages - messages
                    peer.arrived = 0
            for name, waits in of_peer.items():
                if name not in received and name not in reading:
                    continue  # It began after the kernel was asked; the next look counts it.
                most = len(waits) * self.bounds.max_message_bytes
                arriving[name] = most
                if name in received:
                    arriving[name] = self._peers.setdefault(name, _Peer()).look(received[name], waits, most)
            total = self._held_bytes + sum(arriving.values())
        found: dict[Wait, HeadraceError] = {}
        for name in sorted(arriving, key=lambda name: -arriving[name]):
            if total <= self.bounds.max_bytes:
                break
            total -= arriving[name]
            found |= dict.fromkeys(of_peer[name], self._overloaded())
        return found


def _nothing() -> None:
    """Ends a wait that is over."""


def received_bytes() -> dict[str, int]:
    """Of every TCP connection of this process what it was sent since it was opened, by gRPC's name of the peer."""
    found: dict[str, int] = {}
    for _, connection in connections():
        with contextlib.suppress(OSError):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (count,) = struct.unpack_from("Q", info, _BYTES_RECEIVED_AT)
            found[_peer_of(*connection.getpeername()[:2])] = count
    return found


def _peer_of(host: str, port: int) -> str:
    address = host.removeprefix("::ffff:").partition("%")[0]
    return f"ipv6:%5B{address}%5D:{port}" if ":" in address else f"ipv4:{address}:{port}"
