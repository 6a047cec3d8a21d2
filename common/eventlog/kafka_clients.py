"""The clients of kafka-python that the event log keeps: a producer, an admin client and a small pool of consumers.

They connect when first used. After a failure, and for a second, further calls are refused at once.
"""

import logging
import random
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import errors as kafka_errors

from common.errors import DataLoss, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from common.eventlog.kafka_security import NO_SECURITY, KafkaSecurity
from common.process.retry import Backoff, Pauses

logger = logging.getLogger(__name__)
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, API key, version, correlation id, no client id: kafka.apache.org/protocol, request header v1."""
_ANSWER_BYTES = 8
"""Length and correlation id."""
LARGEST_RECORD_BYTES = 16 << 20
REQUEST_TIMEOUT_MS = 15_000
_BOOTSTRAP_TIMEOUT_MS = 10_000
_DELIVERY_TIMEOUT_MS = 600_000
"""How long the producer sends a batch again under the same sequence number, by which Kafka recognizes it. Given up
earlier, while Kafka is away or paused, the batch might still land after its events were appended a second time."""
READ_TIMEOUT_SECONDS = 30.0
_CONNECT_TIMEOUT_SECONDS = 1.0
_READERS_LIMIT, _TURNS_LIMIT = 16, 4
"""Iterations that keep a consumer, and consumers that all others take turns with."""
_IDLE_CONSUMERS_LIMIT = 4
_REFUSE_AFTER_FAILURE_SECONDS = 1.0
_ADMIN_RETRY_SECONDS = 10.0

_Client = TypeVar("_Client", KafkaAdminClient, KafkaConsumer, KafkaProducer)


def _draw_apart() -> None:
    """kafka-python's threads choose brokers and waits by Python's own generator, from which the weights of a model that
    is built meanwhile come: they get another."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kafka.") and vars(module).get("random") is random:
            vars(module)["random"] = random.SystemRandom()


_draw_apart()


class KafkaClients:
    """Thread-safe; every wait has a timeout and ends in Unavailable."""

    def __init__(self, servers: Sequence[str], security: KafkaSecurity, isolation: IsolationLevel) -> None:
        self._servers, self._security, self._isolation = list(servers), security, isolation
        self.probe = KafkaProbe(servers, security)
        self._lock = threading.Lock()
        self._closed = False
        self._refused_until = 0.0
        self._producer: KafkaProducer | None = None
        self._admin: KafkaAdminClient | None = None
        self._idle_consumers: list[KafkaConsumer] = []
        self._readers = threading.BoundedSemaphore(_READERS_LIMIT)
        self._turns = threading.BoundedSemaphore(_TURNS_LIMIT)

    def answers(self) -> bool:
        try:
            self.probe.check(timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
        except Unavailable:
            return False
        return True

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

    @contextmanager
    def borrowed_consumer(self) -> Iterator[tuple[KafkaConsumer, bool]]:
        """A consumer, and whether it may be kept until the iteration ends."""
        is_kept = self._readers.acquire(blocking=False)
        if not is_kept and not self._turns.acquire(timeout=READ_TIMEOUT_SECONDS):
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

    def administered(self, call: Callable[[KafkaAdminClient], Any]) -> Any:
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
        return self._shared("_admin", self._new_admin, KafkaAdminClient.close)

    def producer(self) -> KafkaProducer:
        return self._shared("_producer", self._new_producer, lambda late: late.close(timeout=0))

    def _shared(self, name: str, make: Callable[[], _Client], close: Callable[[_Client], object]) -> _Client:
        """The client that all threads share in this attribute; where none is there yet, it is made outside the lock."""
        while True:
            with self._lock:
                kept: _Client | None = getattr(self, name)
            if kept is not None:
                return kept
            made = self._connect(make)
            with self._lock:
                if getattr(self, name) is None and not self._closed:
                    setattr(self, name, made)
                    return made
            close(made)  # another thread was faster

    def replace_producer(self, failed: KafkaProducer) -> None:
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
            self.probe.check(timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
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
            request_timeout_ms=REQUEST_TIMEOUT_MS,
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
            max_request_size=LARGEST_RECORD_BYTES,
            max_block_ms=REQUEST_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
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
            fetch_max_bytes=LARGEST_RECORD_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=1_000,
        )


@contextmanager
def kafka_errors_of(subject: str) -> Iterator[None]:
    try:
        yield
    except (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.UnknownTopicIdError) as error:
        raise NotFound(f"there is no {subject} in Kafka") from error
    except kafka_errors.OffsetOutOfRangeError as error:
        raise DataLoss(f"{subject}: records that were to be read are no longer kept") from error
    except kafka_errors.CorruptRecordError as error:
        raise DataLoss(f"{subject}: a record does not match its checksum") from error
    except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError) as error:
        raise InvalidInput(f"{subject}: a record is larger than Kafka takes ({LARGEST_RECORD_BYTES} bytes)") from error
    except (kafka_errors.InvalidTopicError, kafka_errors.InvalidPartitionsError) as error:
        raise InvalidInput(f"{subject} is refused by Kafka: {error}") from error
    except kafka_errors.KafkaError as error:
        raise Unavailable(f"{subject}: Kafka does not answer as it should: {error}") from error


class KafkaProbe:
    """Whether a broker answers, asked without a client: kafka-python's wait and retry for seconds. A stopped broker
    refuses the connection; a paused broker's kernel takes it, and no ApiVersions answer comes. Thread-safe. Says in the
    log, in one sentence, when Kafka stops answering and when it answers again."""

    def __init__(self, servers: Sequence[str], security: KafkaSecurity = NO_SECURITY) -> None:
        self._servers, self._security = list(servers), security
        self._shown = f"Kafka at {', '.join(servers)}"
        self._lock = threading.Lock()
        self._is_away = False

    def check(self, *, timeout_seconds: float) -> None:
        """Returns when one of the servers has answered; each is given its part of the time. Raises Unavailable: none
        did."""
        reasons = []
        for server in self._servers:
            try:
                _request_versions(server, timeout_seconds / len(self._servers), self._security.context())
            except OSError as error:
                reasons.append(f"{server}: {error}" if len(self._servers) > 1 else str(error))
                continue
            self._note(is_away=False)
            return
        reason = "; ".join(reasons)
        self._note(is_away=True, reason=reason)
        raise Unavailable(f"{self._shown} cannot be reached: {reason}")

    def _note(self, *, is_away: bool, reason: str = "") -> None:
        with self._lock:
            changed, self._is_away = self._is_away != is_away, is_away
        if changed and is_away:
            logger.warning("%s does not answer: %s", self._shown, reason)
        elif changed:
            logger.info("%s answers again", self._shown)


def _request_versions(server: str, timeout_seconds: float, context: ssl.SSLContext | None) -> None:
    """Without a login, as Kafka allows for this request. Raises OSError."""
    host, _, port = server.rpartition(":")
    deadline = time.monotonic() + timeout_seconds
    with _connected(host.strip("[]"), int(port), timeout_seconds, context) as connection:
        connection.sendall(_API_VERSIONS)
        received = b""
        while len(received) < _ANSWER_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(_ANSWER_BYTES - len(received))
            if not part:
                raise ConnectionError("it closed the connection")
            received += part


def _connected(host: str, port: int, timeout_seconds: float, context: ssl.SSLContext | None) -> socket.socket:
    opened = socket.create_connection((host, port), timeout=timeout_seconds)
    return context.wrap_socket(opened, server_hostname=host) if context else opened
