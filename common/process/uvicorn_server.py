"""uvicorn without its ten wake-ups a second: it looks after its headers once a second, and ends when asked to."""

import asyncio
from contextlib import suppress

import uvicorn

from common.process.handshakes import behind_tls
from common.process.tls import Tls


class Server(uvicorn.Server):
    """As uvicorn's; `should_exit` may be set from any thread."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None = None) -> None:
        super().__init__(config)
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
                self._loop.call_soon_threadsafe(self._asked.set)

    async def main_loop(self) -> None:
        self._asked, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), 1.0)
