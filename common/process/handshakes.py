"""TLS handshakes of an HTTP door: until one is done, its connection counts among the door's, and gives way as any that
says nothing. The event loop's own TLS shows a connection to its protocol only afterwards."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from common.process.http_door import Door


class Handshake(asyncio.Protocol):
    """One connection. Is a http_door.Connection until `protocol` takes its place."""

    held_bytes, owner = 0, ""

    def __init__(self, protocol: asyncio.Protocol, door: Door, context: ssl.SSLContext) -> None:
        self._protocol, self._door, self._context = protocol, door, context
        self.loop = asyncio.get_running_loop()
        self.address = ""
        self.heard_at = 0.0
        self._early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.heard_at = self.loop.time()
        if not self._door.admit(self):
            transport.abort()
            return
        self._task = self.loop.create_task(self._shake_hands())  # A task without a reference may be collected.

    def data_received(self, data: bytes) -> None:
        """The loop has begun to read, and TLS has not begun to listen."""
        self._early += data

    async def _shake_hands(self) -> None:
        opening, times = _Opening(), self._door.bounds.times
        shaking = self.loop.create_task(
            self.loop.start_tls(
                self._transport, opening, self._context, server_side=True, ssl_handshake_timeout=times.head
            )
        )
        # In the loop's next turn start_tls schedules two calls for the turn after it: TLS learns of its connection, and
        # reading goes on. What came early is handed on behind them in that turn, before anything more is read.
        self.loop.call_soon(self.loop.call_soon, self._hand_on)
        try:
            transport = await shaking
        except (OSError, RuntimeError):  # It failed, took too long, or the client went: RuntimeError of asyncio's loop.
            self._transport.abort()
            return
        finally:
            self._door.leave(self)
        if transport is None or opening.is_over or self._transport.is_closing():  # A lost one ends without an error.
            return
        opening.pass_on(self._protocol, transport)

    def _hand_on(self) -> None:
        tls: Any = self._transport.get_protocol()  # asyncio.BufferedProtocol; None where the client has gone
        while self._early and tls not in (self, None):
            space = tls.get_buffer(len(self._early))
            count = min(len(space), len(self._early))
            space[:count] = self._early[:count]
            self._early = self._early[count:]
            tls.buffer_updated(count)

    # What the door asks of a connection.

    def drop(self) -> None:
        self._door.leave(self)
        self._transport.abort()

    def waits_since(self) -> tuple[int | None, float]:
        return 0, self.heard_at

    def is_silent_in_body(self) -> bool:
        return False

    def look_at_time(self) -> None:
        """The handshake has a timeout."""

    def refuse(self, status: int, message: str) -> None:
        self.drop()

    def begin_next(self) -> None:
        """It has no requests."""


class _Opening(asyncio.Protocol):
    """Keeps what comes with the end of a handshake, before the connection is its protocol's."""

    def __init__(self) -> None:
        self._data, self._is_at_end, self.is_over = b"", False, False

    def data_received(self, data: bytes) -> None:
        self._data += data

    def eof_received(self) -> bool:
        self._is_at_end = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True

    def pass_on(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._data and not transport.is_closing():
            protocol.data_received(self._data)
        if self._is_at_end:
            protocol.eof_received()


def behind_tls(protocol_class: Any, context: ssl.SSLContext) -> Callable[..., asyncio.Protocol]:
    """In place of the class, whose door is `protocol_class.door`."""
    return lambda **arguments: Handshake(protocol_class(**arguments), protocol_class.door, context)
