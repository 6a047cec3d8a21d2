"""Whether the event log answers, known within a second: while it does not, requests are refused at once."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from common.errors import HeadraceError, Unavailable
from common.eventlog.base import EventLog
from common.process.health import Health

logger = logging.getLogger(__name__)
_CHECK_SECONDS = 2.0
_CHECK_AWAY_SECONDS = 0.25
_SLOW_APPEND_SECONDS = 0.3
"""An append under way for this long is reason enough to look."""
_PING_SECONDS = 0.5
_TICK_SECONDS = 0.1
_QUIET_SECONDS = 2.0


class LogWatch:
    """Belongs to one event loop.

    Args:
        slowest_append: for how many seconds the oldest append has been under way.
        on_away: called once when the log stops answering.
    """

    def __init__(
        self, service_health: Health, *, slowest_append: Callable[[], float], on_away: Callable[[Unavailable], None]
    ) -> None:
        self._health = service_health
        self._slowest_append, self._on_away = slowest_append, on_away
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ping")
        self._begun = asyncio.Event()
        self._ping: asyncio.Future[None] | None = None
        self._pinged_at = 0.0
        self._answers_since = 0.0
        self._is_doubtful = False
        self._error: Unavailable | None = None

    def note_append(self) -> None:
        """One begins."""
        self._begun.set()

    def check(self) -> None:
        """Raises Unavailable while the log does not answer."""
        if self._error is not None:
            raise self._error

    @property
    def has_been_quiet(self) -> bool:
        """It has answered for some seconds on end: nothing that a dead process had sent is still on its way."""
        return self._answers_since > 0 and time.monotonic() - self._answers_since > _QUIET_SECONDS

    async def run(self, log: EventLog) -> None:
        """Until cancelled."""
        try:
            while True:
                if self._is_due():
                    await self._look(log)
                await self._pause()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _pause(self) -> None:
        """With nothing under way until the next look is due, or an append that begins may be slow."""
        if self._error is not None or self._is_doubtful or self._slowest_append() > 0:
            await asyncio.sleep(_TICK_SECONDS)
            return
        self._begun.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pinged_at + _CHECK_SECONDS - time.monotonic()):
                await self._begun.wait()
                await asyncio.sleep(_SLOW_APPEND_SECONDS)

    def _is_due(self) -> bool:
        seconds = time.monotonic() - self._pinged_at
        if self._error is not None:
            return seconds >= _CHECK_AWAY_SECONDS
        if self._is_doubtful:
            return True
        return seconds >= _CHECK_SECONDS or (seconds >= _PING_SECONDS and self._slowest_append() > _SLOW_APPEND_SECONDS)

    async def _look(self, log: EventLog) -> None:
        """A ping that hangs (a name that is not resolved) counts as no answer, and no second one is begun beside it."""
        if self._ping is None:
            loop = asyncio.get_running_loop()
            self._ping = loop.run_in_executor(self._executor, lambda: log.ping(timeout_seconds=_PING_SECONDS))
        done, _ = await asyncio.wait({self._ping}, timeout=_PING_SECONDS + _TICK_SECONDS)
        self._pinged_at = time.monotonic()
        if not done:
            self._note_away(f"the event log has not answered for {_PING_SECONDS:g} s")
            return
        ping, self._ping = self._ping, None
        error = ping.exception()
        if error is None:
            self._note_answer()
            return
        self._note_away(error.message if isinstance(error, HeadraceError) else f"the event log: {error}")

    def _note_away(self, reason: str) -> None:
        """One unanswered ping is enough while an append gets no answer either; with nothing under way it takes two."""
        if self._error is None and not self._is_doubtful and self._slowest_append() < _SLOW_APPEND_SECONDS:
            self._is_doubtful = True
            return
        self._health.fail("log", reason)
        self._answers_since = 0.0
        if self._error is None:
            logger.info("requests are refused until the event log answers", extra={"reason": reason})
            self._error = Unavailable(reason)
            self._on_away(self._error)

    def _note_answer(self) -> None:
        self._health.satisfy("log")
        self._is_doubtful = False
        self._answers_since = self._answers_since or time.monotonic()
        if self._error is not None:
            logger.info("the event log answers again; requests are taken")
            self._error = None
