"""One partition's queue: items wait a few milliseconds for company, then go to the log together, one append at a time.

Requests that arrive while an append is under way go into the next append, so the batches grow with the load.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from common.errors import HeadraceError, Unavailable
from services.ingest import metrics
from services.ingest.intake.chunks import Appended, Item

logger = logging.getLogger(__name__)
_APPEND_BYTES = 8 * 1024 * 1024

Append = Callable[[Sequence[Item]], list[Appended]]


@dataclass(frozen=True)
class WriterLimits:
    chunk_bytes: int
    chunk_events: int
    linger_seconds: float


class PartitionWriter:
    """Belongs to one event loop. The queue is bounded by the intake's budget of bytes in flight."""

    def __init__(
        self, append: Append, *, executor: Executor, limits: WriterLimits, on_append: Callable[[], None]
    ) -> None:
        """on_append: an append begins."""
        self._append, self._on_append = append, on_append
        self._executor = executor
        self._limits = limits
        self._waiting: deque[tuple[Item, asyncio.Future[Appended]]] = deque()
        self._waiting_bytes = 0
        self._waiting_events = 0
        self._first_at = 0.0
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._appending: list[tuple[Item, asyncio.Future[Appended]]] = []
        self._appending_since = 0.0

    @property
    def appending_seconds(self) -> float:
        """Seconds for which the present append has been under way; 0 without any."""
        return time.monotonic() - self._appending_since if self._appending else 0.0

    def is_appending(self, key_digest: bytes) -> bool:
        """Whether events of that request are under way, so that it is not known yet if the log holds them."""
        return any(item.request is not None and item.request.key_digest == key_digest for item, _ in self._appending)

    def give_up_waiting(self, error: HeadraceError) -> None:
        """Answers everybody with the error, at once. What waits is dropped; an append under way goes on by itself, and
        the next one begins when its outcome is known."""
        dropped, self._waiting = list(self._waiting), deque()
        self._waiting_bytes = self._waiting_events = 0
        _fail([*dropped, *self._appending], error)

    def put(self, item: Item) -> asyncio.Future[Appended]:
        """Queues the item; the future ends when the log has it, or with the error of the append.

        An item whose future is cancelled before its turn is dropped.
        """
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._first_at = time.monotonic()
        self._waiting.append((item, future))
        self._waiting_bytes += len(item.events.value)
        self._waiting_events += len(item.events)
        if self._waiting_bytes >= self._limits.chunk_bytes or self._waiting_events >= self._limits.chunk_events:
            self._full.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        return future

    async def _drain(self) -> None:
        """Appends until nothing waits; a separate task, so that no request's end ends it."""
        while self._waiting:
            await self._linger()
            taken = self._take()
            if not taken:
                continue
            self._appending, self._appending_since = taken, time.monotonic()
            self._on_append()
            try:
                await self._append_taken(taken)
            except Exception:  # outermost loop: one failed append must not stop the partition
                logger.exception("append failed unexpectedly")
                _fail(taken, Unavailable("the append failed unexpectedly; the events may or may not be in the log"))
            finally:
                self._appending = []
        self._task = None

    async def _linger(self) -> None:
        left = self._first_at + self._limits.linger_seconds - time.monotonic()
        if left <= 0 or self._full.is_set():
            return
        try:
            await asyncio.wait_for(self._full.wait(), left)
        except TimeoutError:
            return

    def _take(self) -> list[tuple[Item, asyncio.Future[Appended]]]:
        taken: list[tuple[Item, asyncio.Future[Appended]]] = []
        taken_bytes = 0
        while self._waiting and taken_bytes < _APPEND_BYTES:
            item, future = self._waiting.popleft()
            self._waiting_bytes -= len(item.events.value)
            self._waiting_events -= len(item.events)
            if not future.cancelled():
                taken.append((item, future))
                taken_bytes += len(item.events.value)
        self._first_at = time.monotonic()
        self._full.clear()
        if self._waiting:
            self._full.set()
        return taken

    async def _append_taken(self, taken: list[tuple[Item, asyncio.Future[Appended]]]) -> None:
        items = [item for item, _ in taken]
        started = time.perf_counter()
        try:
            places = await asyncio.get_running_loop().run_in_executor(self._executor, self._append, items)
        except HeadraceError as error:
            logger.warning("append failed", extra={"reason": error.message, "requests": len(taken)})
            _fail(taken, error)
            return
        metrics.APPEND_SECONDS.observe(time.perf_counter() - started)
        for (_, future), place in zip(taken, places, strict=True):
            if not future.done():
                future.set_result(place)


def _fail(taken: list[tuple[Item, asyncio.Future[Appended]]], error: HeadraceError) -> None:
    for _, future in taken:
        if not future.done():
            future.set_exception(error)
