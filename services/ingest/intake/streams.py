"""A stream opened for intake: its topics, a writer per partition, and a validator per schema version.

The late labels of a stream are opened as a stream beside it, without dead letters: a refused label is named in the
answer. Topics and idempotency keys are those of its log_name: a stream of the name of a deleted one has others.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Executor

from common.errors import Conflict, NotFound, Unavailable
from common.eventlog.base import EventLog
from common.eventlog.tfrecord import masked_crc32c
from common.eventlog.topics import deadletter_topic, examples_topic, labels_topic
from common.process.lifecycle import open_files_limit
from common.registry.catalog import Stream
from services.ingest import metrics
from services.ingest.codec.validation import Validator
from services.ingest.intake.chunks import PartitionAppender
from services.ingest.intake.writer import Append, PartitionWriter, WriterLimits
from services.ingest.once.keys import KeyWindow
from services.ingest.schemas import is_of_labels, stream_of
from services.ingest.settings import IngestSettings

_KEPT_VALIDATORS = 4


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
