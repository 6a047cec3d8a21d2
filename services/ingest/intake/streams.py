"""A stream opened for intake: its topics, a writer per partition, and a validator per schema version.

The late labels of a stream are opened as a stream beside it, without dead letters: a refused label is named in the
answer. Topics and idempotency keys are those of its log_name: a stream of the name of a deleted one has others.
"""

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from common.errors import Conflict, HeadraceError, NotFound, Unavailable
from common.eventlog.base import EventLog
from common.eventlog.tfrecord import masked_crc32c
from common.eventlog.topics import deadletter_topic, examples_topic, labels_topic
from common.process.lifecycle import open_files_limit
from common.registry.catalog import Stream
from services.ingest import metrics
from services.ingest.codec.validation import Validator
from services.ingest.intake.chunks import Appended, Item, PartitionAppender
from services.ingest.once.keys import KeyWindow
from services.ingest.schemas import is_of_labels, stream_of
from services.ingest.settings import IngestSettings

logger = logging.getLogger(__name__)
_APPEND_BYTES = 8 * 1024 * 1024

Append = Callable[[Sequence[Item]], list[Appended]]
_KEPT_VALIDATORS = 4


@dataclass(frozen=True)
class WriterLimits:
    chunk_bytes: int
    chunk_events: int
    linger_seconds: float


class PartitionWriter:
    """One partition's queue: items wait a few milliseconds for company, then go to the log together, one append at a
    time, so that the batches grow with the load. Belongs to one event loop. The queue is bounded by the intake's budget
    of bytes in flight."""

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


class OpenStream:
    """Belongs to one event loop."""

    def __init__(
        self, stream: Stream, writers: list[PartitionWriter], deadletter_writer: PartitionWriter | None, *,
        max_event_bytes: int,
    ) -> None:  # fmt: skip
        self.name, self.log_name = stream.name, stream.log_name
        self.is_of_labels = is_of_labels(stream.name)
        self.topic, self.letters_topic = _topic_of(stream), deadletter_topic(stream.log_name)
        self.writers = writers
        self.deadletter_writer = deadletter_writer
        self.accepted_count = 0
        self.refused_count = 0
        self._max_event_bytes = max_event_bytes
        self._validators: dict[tuple[int, str], Validator] = {}
        self._turns = itertools.count()

    @property
    def all_writers(self) -> list[PartitionWriter]:
        return [*self.writers, *([self.deadletter_writer] if self.deadletter_writer else [])]

    def count(self, *, accepted: int = 0, refused: int = 0, reason: str = "invalid") -> None:
        """For the status and the metrics."""
        self.accepted_count += accepted
        self.refused_count += refused
        if self.is_of_labels:
            stream = stream_of(self.name)
            metrics.LABELS_ACCEPTED.labels(stream).inc(accepted)
            metrics.LABELS_REFUSED.labels(stream).inc(refused)
            return
        metrics.EVENTS_ACCEPTED.labels(self.name).inc(accepted)
        metrics.EVENTS_REFUSED.labels(self.name, reason).inc(refused)

    def validator(self, stream: Stream) -> Validator:
        """Compiled when first asked for; a few versions are kept. Raises Unavailable: another stream has its name by
        now."""
        if stream.log_name != self.log_name:
            raise Unavailable(f"stream {self.name} was deleted and applied anew a moment ago; send the request again")
        version = (stream.schema_version, stream.schema_json)
        found = self._validators.get(version)
        if found is None:
            found = Validator(stream, max_event_bytes=self._max_event_bytes)
            while len(self._validators) >= _KEPT_VALIDATORS:
                del self._validators[min(self._validators)]
            self._validators[version] = found
        return found

    def partition_of_request(self, key_digest: bytes | None) -> int:
        """Where a request without event keys goes: in turn; by its idempotency key, so that a retry goes there too."""
        if key_digest is None:
            return next(self._turns) % len(self.writers)
        return int.from_bytes(key_digest[:8], "little") % len(self.writers)

    def partition_of_event(self, event_key: bytes) -> int:
        return masked_crc32c(event_key) % len(self.writers)


def _topic_of(stream: Stream) -> str:
    if is_of_labels(stream.name):
        return labels_topic(stream_of(stream.log_name))
    return examples_topic(stream.log_name)


def check_takes_events(name: str, validator: Validator) -> None:
    """Raises Conflict: the stream's events are the records of a foreign topic."""
    if source := validator.schema.source:
        raise Conflict(f"stream {name} reads Kafka topic {source.topic}; its events go there")


def check_files(name: str, limit: int) -> None:
    """Raises Unavailable past three quarters of the files that this process may have: a log in files opens eight for a
    stream, and those that are open already need some to go on."""
    lowest = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    os.close(lowest)
    if lowest > limit * 3 // 4:
        raise Unavailable(
            f"stream {name} cannot be opened: {lowest} of the {limit} files that this process may have are open, which "
            "the streams before it need; raise that limit (ulimit -n), or have fewer streams"
        )


def open_stream(
    stream: Stream, log: EventLog, window: KeyWindow, settings: IngestSettings, executor: Executor,
    on_append: Callable[[], None],
) -> OpenStream:  # fmt: skip
    """Makes the topics where they are missing and learns the newest requests; blocks while it reads the log.

    Args:
        executor: in whose threads appends are made.
        on_append: an append begins.

    Raises:
        Unavailable: the log does not answer, or too many files are open for one stream more.
    """
    check_files(stream.name, open_files_limit())
    limits = WriterLimits(settings.chunk_bytes, settings.chunk_events, settings.linger_seconds)

    def writers_of(topic: str, wanted_partitions: int) -> list[PartitionWriter]:
        count = _made_or_found(log, topic, wanted_partitions)
        return [
            PartitionWriter(opened(topic, number), executor=executor, limits=limits, on_append=on_append)
            for number in range(count)
        ]

    def opened(topic: str, partition: int) -> Append:
        appender = PartitionAppender(
            log,
            stream=stream.log_name,
            topic=topic,
            partition=partition,
            window=window,
            chunk_bytes=settings.chunk_bytes,
            chunk_events=settings.chunk_events,
        )
        appender.open()
        return appender.append

    return OpenStream(
        stream,
        writers_of(_topic_of(stream), settings.partition_count),
        None if is_of_labels(stream.name) else writers_of(deadletter_topic(stream.log_name), 1)[0],
        max_event_bytes=settings.max_event_bytes,
    )


def _made_or_found(log: EventLog, topic: str, wanted_partitions: int) -> int:
    """The partition count of the topic; an existing topic keeps its own."""
    try:
        return log.partition_count(topic)
    except NotFound:
        log.create_topic(topic, partition_count=wanted_partitions)
        return wanted_partitions
