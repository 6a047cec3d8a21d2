"""The event log on Apache Kafka, by kafka-python (imported nowhere else).

Writing: one idempotent producer with acks=all for the process; partitions are chosen by the caller. Reading: a consumer
without a group or commits, assigned and sought by hand, borrowed from a small pool for one iteration. Positions and
topics: the admin client. How long records are kept and how often they are copied is the cluster's configuration.
"""

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
from kafka import errors as kafka_errors

from common.counted import counted
from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from common.eventlog.base import NewRecord, Record, RecordHeaders, RecordInfo
from common.eventlog.headers import as_pairs, check_headers, from_pairs
from common.eventlog.kafka_delivery import wait_delivered
from common.eventlog.kafka_probe import KafkaProbe
from common.eventlog.kafka_security import NO_SECURITY, KafkaSecurity
from common.process.retry import Backoff, Pauses

_LARGEST_RECORD_BYTES = 16 << 20
_REQUEST_TIMEOUT_MS = 15_000
_BOOTSTRAP_TIMEOUT_MS = 10_000
_DELIVERY_TIMEOUT_MS = 600_000
"""How long the producer sends a batch again under the same sequence number, by which Kafka recognizes it. Given up
earlier, while Kafka is away or paused, the batch might still land after its events were appended a second time."""
_APPEND_TIMEOUT_SECONDS = 630.0
_CONNECT_TIMEOUT_SECONDS = 1.0
_READ_TIMEOUT_SECONDS = 30.0
_READERS_LIMIT, _TURNS_LIMIT = 16, 4
"""Iterations that keep a consumer, and consumers that all others take turns with."""
_IDLE_CONSUMERS_LIMIT = 4
_REFUSE_AFTER_FAILURE_SECONDS = 1.0
_ADMIN_RETRY_SECONDS = 10.0

_Client = TypeVar("_Client", KafkaAdminClient, KafkaConsumer, KafkaProducer)
KafkaMessage = Any  # kafka-python has no types


def _draw_apart() -> None:
    """kafka-python's threads choose brokers and waits by Python's own generator, from which the weights of a model that
    is built meanwhile come: they get another."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kafka.") and vars(module).get("random") is random:
            vars(module)["random"] = random.SystemRandom()


_draw_apart()


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
        self._servers, self._security = list(servers), security
        self._record_of, self._info_of = record_of or _record_of, info_of or _info_of
        self._isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        self._probe = KafkaProbe(servers, security)
        # Its threads repeat themselves several times a second while a broker is away; the probe says it once, and
        # what concerns a caller is raised.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        self._lock = threading.Lock()
        self._closed = False
        self._refused_until = 0.0
        self._producer: KafkaProducer | None = None
        self._admin: KafkaAdminClient | None = None
        self._idle_consumers: list[KafkaConsumer] = []
        self._readers = threading.BoundedSemaphore(_READERS_LIMIT)
        self._turns = threading.BoundedSemaphore(_TURNS_LIMIT)
        self._partition_counts: dict[str, int] = {}

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        """See EventLog.create_topic. Copies and retention are the cluster's defaults."""
        options = {"num_partitions": partition_count, "configs": {"max.message.bytes": str(_LARGEST_RECORD_BYTES)}}
        exists = suppress(kafka_errors.TopicAlreadyExistsError)  # the count below decides
        with _kafka_errors(f"topic {topic!r}"), exists:
            self._administered(
                lambda admin: admin.create_topics(
                    {topic: options}, timeout_ms=_REQUEST_TIMEOUT_MS, wait_for_metadata=True
                )
            )
        existing = self.partition_count(topic)
        if existing != partition_count:
            raise Conflict(f"topic {topic!r} has {counted(existing, 'partition')}; asked for {partition_count}")

    def brokers(self) -> list[str]:
        """host:port of each, as Kafka names them to clients."""
        with _kafka_errors("the cluster's brokers"):
            found = self._administered(lambda admin: admin.describe_cluster())
        return [f"{broker['host']}:{broker['port']}" for broker in found["brokers"]]

    def partition_count(self, topic: str) -> int:
        known = self._partition_counts.get(topic)
        if known is not None:
            return known
        with _kafka_errors(f"topic {topic!r}"):
            description = self._administered(lambda admin: admin.describe_topics([topic]))[0]
            if description["error_code"]:
                raise kafka_errors.for_code(description["error_code"])
        self._partition_counts[topic] = len(description["partitions"])
        return self._partition_counts[topic]

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        """See EventLog.append. The producer sends what concurrent calls hand in together, in few requests."""
        for record in records:
            check_headers(record.headers)
        self._check_partition(topic, partition)
        producer = self._produce()
        deadline = time.monotonic() + _APPEND_TIMEOUT_SECONDS
        try:
            with _kafka_errors(f"topic {topic!r}, partition {partition}"):
                futures = _send(producer, topic, partition, records, deadline)
                return [wait_delivered(future, deadline, answers=self._answers).offset for future in futures]
        except Unavailable as error:
            if not isinstance(error.__cause__, kafka_errors.KafkaTimeoutError):
                self._replace_producer(producer)
            raise

    def append_keyed(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Appends (key, value) pairs to a foreign topic, by its keys' partitions; returns when they are there.

        Raises:
            NotFound: there is no such topic. Unavailable: some, all or none of them may be there.
        """
        self.partition_count(topic)
        producer = self._produce()
        deadline = time.monotonic() + _APPEND_TIMEOUT_SECONDS
        with _kafka_errors(f"topic {topic!r}"):
            futures = [producer.send(topic, value, key=key) for key, value in messages]
            for future in futures:
                wait_delivered(future, deadline, answers=self._answers)

    def _answers(self) -> bool:
        try:
            self._probe.check(timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
        except Unavailable:
            return False
        return True

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
        self._probe.check(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Waits up to 5 s for records under way; after that their appends fail. Later calls raise Unavailable."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
            admin, self._admin = self._admin, None
            consumers, self._idle_consumers = self._idle_consumers, []
        if producer is not None:
            producer.close(timeout=5.0)
        if admin is not None:
            admin.close()
        for consumer in consumers:
            consumer.close(autocommit=False)

    def _messages(self, topic: str, partition: int, start: int, end: int) -> Iterator[KafkaMessage]:
        """The messages with start <= offset < end. Ends by the consumer's position, since offsets may have gaps.

        A merge reads all partitions of a topic at once. Iterations past the limit give their consumer back after each
        batch, so any number of them goes on.
        """
        source, position = TopicPartition(topic, partition), start
        while position < end:
            batch: list[KafkaMessage] = []
            with self._borrowed_consumer() as (consumer, is_kept):
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
        with _kafka_errors(subject):
            consumer.assign([source])
            consumer.seek(source, position)
        deadline = time.monotonic() + _READ_TIMEOUT_SECONDS
        while position < end:
            with _kafka_errors(subject):
                messages = consumer.poll(timeout_ms=500).get(source, [])
                position = consumer.position(source, timeout_ms=_REQUEST_TIMEOUT_MS)
            if messages:
                deadline = time.monotonic() + _READ_TIMEOUT_SECONDS
                yield [message for message in messages if message.offset < end], position
            elif time.monotonic() > deadline:
                raise Unavailable(f"{subject}: no record came for {_READ_TIMEOUT_SECONDS:.0f} s at offset {position}")

    @contextmanager
    def _borrowed_consumer(self) -> Iterator[tuple[KafkaConsumer, bool]]:
        """A consumer, and whether it may be kept until the iteration ends."""
        is_kept = self._readers.acquire(blocking=False)
        if not is_kept and not self._turns.acquire(timeout=_READ_TIMEOUT_SECONDS):
            raise Overloaded("too many iterations over Kafka are under way; none has ended its turn in time")
        try:
            with self._lock:
                consumer = self._idle_consumers.pop() if self._idle_consumers else None
            consumer = consumer or self._connect(self._new_consumer)
            healthy = True
            try:
                yield consumer, is_kept
            except (HeadraceError, kafka_errors.KafkaError):
                healthy = False
                raise
            finally:
                self._give_back(consumer if healthy else None, consumer)
        finally:
            (self._readers if is_kept else self._turns).release()

    def _give_back(self, healthy: KafkaConsumer | None, consumer: KafkaConsumer) -> None:
        if healthy is not None:
            healthy.assign([])
            with self._lock:
                if not self._closed and len(self._idle_consumers) < _IDLE_CONSUMERS_LIMIT:
                    self._idle_consumers.append(healthy)
                    return
        consumer.close(autocommit=False)

    def _offsets(self, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        with _kafka_errors(f"topic {topic!r}"):
            found = self._administered(
                lambda admin: admin.list_partition_offsets(
                    wanted, isolation_level=self._isolation, timeout_ms=_REQUEST_TIMEOUT_MS
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

    def _administered(self, call: Callable[[KafkaAdminClient], Any]) -> Any:
        """Repeats the call for up to 10 s after a retriable error: for a moment after a broker's restart the admin
        client knows no node. Only for calls that may be repeated; a call that timed out has waited enough."""
        deadline = time.monotonic() + _ADMIN_RETRY_SECONDS
        pauses = Pauses(Backoff())
        while True:
            try:
                return call(self._administer())
            except kafka_errors.KafkaTimeoutError:
                raise
            except kafka_errors.UnknownTopicOrPartitionError:
                raise  # retriable for Kafka, an answer for us
            except kafka_errors.RetriableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(pauses.next_seconds())

    def _administer(self) -> KafkaAdminClient:
        with self._lock:
            if self._admin is not None:
                return self._admin
        admin = self._connect(self._new_admin)
        with self._lock:
            if self._admin is None and not self._closed:
                self._admin = admin
                return admin
            first = self._admin
        admin.close()  # another thread was faster
        return first or self._administer()

    def _produce(self) -> KafkaProducer:
        with self._lock:
            if self._producer is not None:
                return self._producer
        producer = self._connect(self._new_producer)
        with self._lock:
            if self._producer is None and not self._closed:
                self._producer = producer
                return producer
            first = self._producer
        producer.close(timeout=0)
        return first or self._produce()

    def _replace_producer(self, failed: KafkaProducer) -> None:
        """An idempotent producer that met certain errors refuses everything from then on; the next append has a new
        one. Appends of other threads that it still holds fail with it."""
        with self._lock:
            if self._producer is failed:
                self._producer = None
        failed.close(timeout=0)

    def _connect(self, make: Callable[[], _Client]) -> _Client:
        """Makes a client. After a failure, the next second's calls are refused at once instead of waiting as well."""
        with self._lock:
            if self._closed:
                raise Unavailable(f"the event log at {', '.join(self._servers)} is closed")
            if time.monotonic() < self._refused_until:
                raise Unavailable(f"Kafka at {', '.join(self._servers)} cannot be reached")
        try:
            self._probe.check(timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
            return make()
        except Unavailable:
            with self._lock:
                self._refused_until = time.monotonic() + _REFUSE_AFTER_FAILURE_SECONDS
            raise
        except kafka_errors.KafkaError as error:
            with self._lock:
                self._refused_until = time.monotonic() + _REFUSE_AFTER_FAILURE_SECONDS
            raise Unavailable(f"Kafka at {', '.join(self._servers)} cannot be reached: {error}") from error

    def _new_admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(
            **self._security.settings(),
            bootstrap_servers=self._servers,
            bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=1_000,
        )

    def _new_producer(self) -> KafkaProducer:
        return KafkaProducer(
            **self._security.settings(),
            bootstrap_servers=self._servers,
            bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            batch_size=1 << 20,
            max_request_size=_LARGEST_RECORD_BYTES,
            max_block_ms=_REQUEST_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            reconnect_backoff_max_ms=1_000,
            allow_auto_create_topics=False,
        )

    def _new_consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            **self._security.settings(),
            bootstrap_servers=self._servers,
            bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS,
            group_id=None,
            enable_auto_commit=False,
            isolation_level=self._isolation.name.lower(),
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=4 << 20,
            fetch_max_bytes=_LARGEST_RECORD_BYTES,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=1_000,
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


@contextmanager
def _kafka_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.UnknownTopicIdError) as error:
        raise NotFound(f"there is no {subject} in Kafka") from error
    except kafka_errors.OffsetOutOfRangeError as error:
        raise DataLoss(f"{subject}: records that were to be read are no longer kept") from error
    except kafka_errors.CorruptRecordError as error:
        raise DataLoss(f"{subject}: a record does not match its checksum") from error
    except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError) as error:
        raise InvalidInput(f"{subject}: a record is larger than Kafka takes ({_LARGEST_RECORD_BYTES} bytes)") from error
    except (kafka_errors.InvalidTopicError, kafka_errors.InvalidPartitionsError) as error:
        raise InvalidInput(f"{subject} is refused by Kafka: {error}") from error
    except kafka_errors.KafkaError as error:
        raise Unavailable(f"{subject}: Kafka does not answer as it should: {error}") from error
