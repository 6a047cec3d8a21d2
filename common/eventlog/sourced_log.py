"""The event log by the names of streams: under which name the log has them, and which are foreign topics.

A stream that succeeds a deleted one of its name lies under a separate name (common/registry/catalog.py,
Stream.log_name). A stream with a source has the topic `examples.<stream>` there: a record is one event, its offset the
event's, its timestamp the ingest time. Nothing is copied, and nothing is written to the source.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from common.eventlog.base import EventLog, NewRecord, Record, RecordHeaders, RecordInfo
from common.eventlog.kafka_security import NO_SECURITY, kafka_of
from common.eventlog.tfrecord import frame
from common.eventlog.topics import deadletter_topic, examples_topic, labels_topic
from common.schema import Schema
from common.topic_source import TopicSource

_KAFKA = "kafka:"
_NO_CHUNK = bytes(16)
_TOPICS = (examples_topic, deadletter_topic, labels_topic)


@dataclass(frozen=True)
class Attached:
    """`log_name`: under which the own log has the stream."""

    schema: Schema
    log_name: str


class SourcedLog:
    """An EventLog. `own` is closed with it."""

    def __init__(self, own: EventLog, url: str, *, stream_of: Callable[[str], Attached] | None = None) -> None:
        """`url` is what `own` was opened with; `stream_of` knows streams that were not attached."""
        self._own, self._url, self._stream_of = own, url, stream_of
        self._lock = threading.Lock()
        self._attached: dict[str, Attached] = {}
        self._logs: dict[str, tuple[Schema, EventLog]] = {}

    def attach(self, stream: str, schema: Schema, log_name: str = "") -> bool:
        """From now on the stream's examples come from where this schema says, or lie under that name.

        Returns whether they came from under another name before.
        """
        attached = Attached(schema, log_name or stream)
        with self._lock:
            before = self._attached.get(stream)
            self._attached[stream] = attached
        return before is not None and before.log_name != attached.log_name

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        self._own.create_topic(self._name_of(topic), partition_count=partition_count)

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        if source := self._source_of(topic):
            raise Conflict(f"{topic} is read from Kafka topic {source.topic}; nothing is appended to it")
        return self._own.append(self._name_of(topic), partition, records)

    def partition_count(self, topic: str) -> int:
        log, name = self._place(topic)
        return log.partition_count(name)

    def start_position(self, topic: str) -> dict[int, int]:
        return self._positions(topic, lambda log, name: log.start_position(name))

    def end_position(self, topic: str) -> dict[int, int]:
        return self._positions(topic, lambda log, name: log.end_position(name))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        log, name = self._place(topic)
        return log.read(name, partition, start, end)

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        log, name = self._place(topic)
        return log.scan(name, partition, start, end)

    def ping(self, *, timeout_seconds: float) -> None:
        self._own.ping(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        with self._lock:
            logs = [log for _, log in self._logs.values()]
            self._logs.clear()
        for log in (*logs, self._own):
            log.close()

    def _positions(self, topic: str, look_up: Callable[[EventLog, str], dict[int, int]]) -> dict[int, int]:
        log, name = self._place(topic)
        try:
            return look_up(log, name)
        except NotFound as error:
            if log is self._own:
                raise
            raise Unavailable(f"{topic} is read from Kafka topic {name}: {error.message}") from error

    def _source_of(self, topic: str) -> TopicSource | None:
        found = self._stream(topic) if topic.startswith(examples_topic("")) else None
        return found.schema.source if found else None

    def _stream(self, topic: str) -> Attached | None:
        """The stream whose examples or dead letters the topic has."""
        stream = next((topic.removeprefix(begin("")) for begin in _TOPICS if topic.startswith(begin(""))), "")
        with self._lock:
            known = self._attached.get(stream)
        if known is not None or self._stream_of is None or not stream:
            return known
        found = self._stream_of(stream)
        self.attach(stream, found.schema, found.log_name)
        return found

    def _name_of(self, topic: str) -> str:
        """What the own log calls the topic."""
        found = self._stream(topic)
        if found is None:
            return topic
        begin = next(begin for begin in _TOPICS if topic.startswith(begin("")))
        return begin(found.log_name)

    def _place(self, topic: str) -> tuple[EventLog, str]:
        """The log that has the topic, and what it is called there."""
        found = self._stream(topic)
        schema = found.schema if found else None
        if schema is None or schema.source is None or not topic.startswith(examples_topic("")):
            return self._own, self._name_of(topic)
        with self._lock:
            opened = self._logs.get(topic)
            if opened is None or opened[0] != schema:
                log = open_topic(schema, schema.source, self._url)
                self._logs[topic] = (schema, log)
                if opened is not None:
                    opened[1].close()
            return self._logs[topic][1], schema.source.topic


def open_topic(schema: Schema, source: TopicSource, url: str) -> EventLog:
    """Reads the source's topic; a record that is no event has its reason as `fault`, and its bytes as they came.

    Args:
        url: of the platform's event log, whose Kafka and credentials are meant where the source names no servers.

    Raises:
        InvalidInput: no Kafka is named, or the records' schema cannot be used.
    """
    from common.eventlog.kafka_log import KafkaLog, KafkaMessage
    from common.eventlog.topic_records import RecordMapper

    if not source.servers and not url.startswith(_KAFKA):
        raise InvalidInput(
            f"source.kafka: topic {source.topic} needs servers: host:port, since the platform's event log is no Kafka"
        )
    mapper = RecordMapper(schema, source)

    def headers_of(message: KafkaMessage) -> RecordHeaders:
        return RecordHeaders(0, 1, max(message.timestamp, 0) / 1000, _NO_CHUNK)

    def record_of(message: KafkaMessage) -> Record:
        try:
            example, fault = mapper.example(message.value), ""
        except InvalidInput as error:
            place = f"{message.topic}, partition {message.partition}, offset {message.offset}"
            example, fault = message.value or b"", f"{place}: {error.message}"
        return Record(message.partition, message.offset, frame([example]), headers_of(message), fault)

    def info_of(message: KafkaMessage) -> RecordInfo:
        return RecordInfo(message.partition, message.offset, len(message.value or b""), headers_of(message))

    servers, security = (
        (source.servers.split(","), NO_SECURITY) if source.servers else kafka_of(url.removeprefix(_KAFKA))
    )
    return KafkaLog(servers, record_of=record_of, info_of=info_of, committed_only=True, security=security)
