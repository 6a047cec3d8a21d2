"""The event log on Apache Kafka, by kafka-python.

Writing: one idempotent producer with acks=all for the process; partitions are chosen by the caller. Reading: a consumer
without a group or commits, assigned and sought by hand, borrowed from a small pool for one iteration. Positions and
topics: the admin client. How long records are kept and how often they are copied is the cluster's configuration.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from kafka import IsolationLevel, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
from kafka import errors as kafka_errors

from common.counted import counted
from common.errors import Conflict, DataLoss, InvalidInput, NotFound, Unavailable
from common.eventlog.base import NewRecord, Record, RecordHeaders, RecordInfo
from common.eventlog.headers import as_pairs, check_headers, from_pairs
from common.eventlog.kafka_clients import (
    LARGEST_RECORD_BYTES,
    READ_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_MS,
    KafkaClients,
    kafka_errors_of,
)
from common.eventlog.kafka_security import NO_SECURITY, KafkaSecurity

STUCK_SECONDS = 30.0
"""Twice the time that one request may take."""
_LOOK_SECONDS = 1.0
_APPEND_TIMEOUT_SECONDS = 630.0

KafkaMessage = Any  # kafka-python has no types


class KafkaLog:
    """Thread-safe. Connects when first used; every wait has a timeout and ends in Unavailable."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        record_of: "Callable[[KafkaMessage], Record] | None" = None,
        info_of: "Callable[[KafkaMessage], RecordInfo] | None" = None,
        committed_only: bool = False,
        security: KafkaSecurity = NO_SECURITY,
    ) -> None:
        """`servers` are host:port; the rest of the cluster is found through any of them.

        Args:
            record_of, info_of: what messages are that this class has not written.
            committed_only: messages of Kafka's transactions are read when these are committed.
            security: TLS, and who this is.
        """
        self._record_of, self._info_of = record_of or _record_of, info_of or _info_of
        self._isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        self._clients = KafkaClients(servers, security, self._isolation)
        # Its threads repeat themselves several times a second while a broker is away; the probe logs that once, and
        # what concerns a caller is raised.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        self._partition_counts: dict[str, int] = {}

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        """See EventLog.create_topic. Copies and retention are the cluster's defaults."""
        options = {"num_partitions": partition_count, "configs": {"max.message.bytes": str(LARGEST_RECORD_BYTES)}}
        exists = suppress(kafka_errors.TopicAlreadyExistsError)  # the count below decides
        with kafka_errors_of(f"topic {topic!r}"), exists:
            self._clients.administered(
                lambda admin: admin.create_topics(
                    {topic: options}, timeout_ms=REQUEST_TIMEOUT_MS, wait_for_metadata=True
                )
            )
        existing = self.partition_count(topic)
        if existing != partition_count:
            raise Conflict(f"topic {topic!r} has {counted(existing, 'partition')}; asked for {partition_count}")

    def brokers(self) -> list[str]:
        """host:port of each, as Kafka names them to clients."""
        with kafka_errors_of("the cluster's brokers"):
            found = self._clients.administered(lambda admin: admin.describe_cluster())
        return [f"{broker['host']}:{broker['port']}" for broker in found["brokers"]]

    def partition_count(self, topic: str) -> int:
        known = self._partition_counts.get(topic)
        if known is not None:
            return known
        with kafka_errors_of(f"topic {topic!r}"):
            description = self._clients.administered(lambda admin: admin.describe_topics([topic]))[0]
            if description["error_code"]:
                raise kafka_errors.for_code(description["error_code"])
        self._partition_counts[topic] = len(description["partitions"])
        return self._partition_counts[topic]

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        """See EventLog.append. The producer sends what concurrent calls hand in together, in few requests."""
        for record in records:
            check_headers(record.headers)
        self._check_partition(topic, partition)
        producer = self._clients.producer()
        deadline = time.monotonic() + _APPEND_TIMEOUT_SECONDS
        try:
            with kafka_errors_of(f"topic {topic!r}, partition {partition}"):
                futures = _send(producer, topic, partition, records, deadline)
                return [wait_delivered(future, deadline, answers=self._clients.answers).offset for future in futures]
        except Unavailable as error:
            if not isinstance(error.__cause__, kafka_errors.KafkaTimeoutError):
                self._clients.replace_producer(producer)
            raise

    def append_keyed(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Appends (key, value) pairs to a foreign topic, by its keys' partitions; returns when they are there.

        Raises:
            NotFound: there is no such topic. Unavailable: some, all or none of them may be there.
        """
        self.partition_count(topic)
        producer = self._clients.producer()
        deadline = time.monotonic() + _APPEND_TIMEOUT_SECONDS
        with kafka_errors_of(f"topic {topic!r}"):
            futures = [producer.send(topic, value, key=key) for key, value in messages]
            for future in futures:
                wait_delivered(future, deadline, answers=self._clients.answers)

    def start_position(self, topic: str) -> dict[int, int]:
        return self._offsets(topic, range(self.partition_count(topic)), OffsetSpec.EARLIEST)

    def end_position(self, topic: str) -> dict[int, int]:
        return self._offsets(topic, range(self.partition_count(topic)), OffsetSpec.LATEST)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """See EventLog.read; a bad range is refused at the call."""
        self._check_range(topic, partition, start, end)
        return (self._record_of(message) for message in self._messages(topic, partition, start, end))

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        """See EventLog.scan. Kafka sends the values all the same."""
        self._check_range(topic, partition, start, end)
        return (self._info_of(message) for message in self._messages(topic, partition, start, end))

    def ping(self, *, timeout_seconds: float) -> None:
        self._clients.probe.check(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Waits up to 5 s for records under way; after that their appends fail. Later calls raise Unavailable."""
        self._clients.close()

    def _messages(self, topic: str, partition: int, start: int, end: int) -> Iterator[KafkaMessage]:
        """The messages with start <= offset < end. Ends by the consumer's position, since offsets may have gaps.

        A merge reads all partitions of a topic at once. Iterations past the limit give their consumer back after each
        batch, so any number of them goes on.
        """
        source, position = TopicPartition(topic, partition), start
        while position < end:
            batch: list[KafkaMessage] = []
            with self._clients.borrowed_consumer() as (consumer, is_kept):
                for messages, reached in self._batches(consumer, source, position, end):
                    if not is_kept:
                        batch, position = messages, reached
                        break
                    yield from messages
                else:
                    return
            yield from batch

    def _batches(
        self, consumer: KafkaConsumer, source: TopicPartition, position: int, end: int
    ) -> Iterator[tuple[list[KafkaMessage], int]]:
        """Messages before `end`, and the position behind them."""
        subject = f"topic {source.topic!r}, partition {source.partition}"
        with kafka_errors_of(subject):
            consumer.assign([source])
            consumer.seek(source, position)
        deadline = time.monotonic() + READ_TIMEOUT_SECONDS
        while position < end:
            with kafka_errors_of(subject):
                messages = consumer.poll(timeout_ms=500).get(source, [])
                position = consumer.position(source, timeout_ms=REQUEST_TIMEOUT_MS)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_SECONDS
                yield [message for message in messages if message.offset < end], position
            elif time.monotonic() > deadline:
                raise Unavailable(f"{subject}: no record came for {READ_TIMEOUT_SECONDS:.0f} s at offset {position}")

    def _offsets(self, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        with kafka_errors_of(f"topic {topic!r}"):
            found = self._clients.administered(
                lambda admin: admin.list_partition_offsets(
                    wanted, isolation_level=self._isolation, timeout_ms=REQUEST_TIMEOUT_MS
                )
            )
        return {source.partition: offset.offset for source, offset in found.items()}

    def _check_partition(self, topic: str, partition: int) -> None:
        existing = self.partition_count(topic)
        if not 0 <= partition < existing:
            raise NotFound(f"topic {topic!r} has no partition {partition}; it has {existing}")

    def _check_range(self, topic: str, partition: int, start: int, end: int) -> None:
        self._check_partition(topic, partition)
        last = self._offsets(topic, [partition], OffsetSpec.LATEST)[partition]
        if not 0 <= start <= end <= last:
            raise InvalidInput(
                f"topic {topic!r}, partition {partition}: cannot read [{start}, {end}); the end is {last}"
            )
        oldest = self._offsets(topic, [partition], OffsetSpec.EARLIEST)[partition]
        if start < oldest and start < end:
            raise DataLoss(
                f"topic {topic!r}, partition {partition}: offset {start} is no longer kept; the oldest is {oldest}"
            )


def _record_of(message: KafkaMessage) -> Record:
    return Record(message.partition, message.offset, _value(message), _headers(message))


def _info_of(message: KafkaMessage) -> RecordInfo:
    return RecordInfo(message.partition, message.offset, len(_value(message)), _headers(message))


def _send(
    producer: KafkaProducer, topic: str, partition: int, records: Sequence[NewRecord], deadline: float
) -> list[Any]:
    """A future per record. Where the producer takes only some of them, the error comes when these have ended."""
    futures: list[Any] = []
    try:
        for record in records:
            headers = as_pairs(record.headers)
            futures.append(producer.send(topic, record.value, partition=partition, headers=headers))
    except kafka_errors.KafkaError:
        for future in futures:
            with suppress(kafka_errors.KafkaError):
                future.get(max(0.0, deadline - time.monotonic()))
        raise
    return futures


def _value(message: KafkaMessage) -> bytes:
    """Raises DataLoss: a foreign message without a value."""
    if not isinstance(message.value, bytes):
        raise DataLoss(f"{_place(message)} has no value")
    return message.value


def _headers(message: KafkaMessage) -> RecordHeaders:
    return from_pairs(message.headers, place=_place(message))


def _place(message: KafkaMessage) -> str:
    return f"topic {message.topic!r}, partition {message.partition}: offset {message.offset}"


class Delivery(Protocol):
    """A future of kafka-python's producer."""

    @property
    def is_done(self) -> bool: ...

    def get(self, timeout: float) -> Any:
        """Raises KafkaTimeoutError when the time is over, or what became of the record."""


class StuckProducer(Unavailable):
    """The producer delivers nothing to a Kafka that answers."""


def wait_delivered(
    delivery: Delivery,
    deadline: float,
    *,
    answers: Callable[[], bool],
    stuck_seconds: float = STUCK_SECONDS,
    look_seconds: float = _LOOK_SECONDS,
) -> Any:
    """The record's metadata, once Kafka has it.

    The producer goes on for minutes while Kafka is away, so that a batch keeps its sequence number. But after some
    failures of a broker, such as a full disk, kafka-python 3.0.12 sends nothing more, though the broker is back. Such a
    producer has to be replaced. What it still holds cannot land by then: the broker has answered for longer than any
    request of the producer's may take.

    Args:
        deadline: of the monotonic clock.
        answers: whether Kafka answers a separate request now; may wait for about a second.

    Raises:
        KafkaTimeoutError: the deadline passed. StuckProducer: Kafka has answered for this long without a break, and the
        record is still not delivered. Any other KafkaError, as the delivery ended.
    """
    answering_since: float | None = None
    while True:
        left_seconds = max(0.0, deadline - time.monotonic())
        try:
            return delivery.get(min(look_seconds, left_seconds))
        except kafka_errors.KafkaTimeoutError:
            if delivery.is_done or left_seconds <= look_seconds:
                raise
        if not answers():
            answering_since = None
            continue
        answering_since = answering_since or time.monotonic()
        if time.monotonic() - answering_since >= stuck_seconds:
            raise StuckProducer(f"Kafka answers, but its producer has delivered nothing for {stuck_seconds:.0f} s")
