"""uvicorn without its ten wake-ups a second: it looks after its headers once a second, while it has connections, and
ends when asked to."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import uvicorn

from common.process.handshakes import behind_tls
from common.process.tls import Tls

_LOOK_SECONDS, _IDLE_SECONDS = 1.0, 60.0


class _Connections(set[Any]):
    def __init__(self, on_first: Callable[[], None]) -> None:
        super().__init__()
        self._on_first = on_first

    def add(self, connection: Any) -> None:
        if not self:
            self._on_first()
        super().add(connection)


class Server(uvicorn.Server):
    """As uvicorn's; `should_exit` may be set from any thread."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None = None) -> None:
        super().__init__(config)
        self._woken = asyncio.Event()
        self.server_state.connections = _Connections(self._begin)
        if tls is not None:
            config.load()
            # A callable is all that uvicorn needs.
            config.http_protocol_class = behind_tls(config.http_protocol_class, tls.server_context())  # type: ignore[assignment]  # see above

    _loop: asyncio.AbstractEventLoop | None = None
    _exit = False

    @property
    def should_exit(self) -> bool:
        return self._exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._exit = value
        if value and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def _begin(self) -> None:
        """The first connection after a while: the date that uvicorn puts on every answer is old."""
        dated = (b"date", formatdate(time.time(), usegmt=True).encode())
        self.server_state.default_headers = [dated, *self.config.encoded_headers]
        self._woken.set()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            self._woken.clear()
            with suppress(TimeoutError):
                seconds = _LOOK_SECONDS if self.server_state.connections else _IDLE_SECONDS
                await asyncio.wait_for(self._woken.wait(), seconds)
