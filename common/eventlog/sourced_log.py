"""The event log, where the examples of some streams are records of Kafka topics of somebody else's.

Such a stream's topic `examples.<stream>` is read from its source: a record there is one event, its offset the event's,
its timestamp the ingest time. Nothing is copied, and nothing is written to the source.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from common.eventlog.base import EventLog, NewRecord, Record, RecordHeaders, RecordInfo
from common.eventlog.tfrecord import frame
from common.eventlog.topics import examples_topic
from common.schema import Schema
from common.topic_source import TopicSource

_KAFKA = "kafka:"
_NO_CHUNK = bytes(16)


class SourcedLog:
    """An EventLog. `own` is closed with it."""

    def __init__(self, own: EventLog, url: str, *, schema_of: Callable[[str], Schema] | None = None) -> None:
        """`url` is what `own` was opened with; `schema_of` knows streams that were not attached."""
        self._own, self._url, self._schema_of = own, url, schema_of
        self._lock = threading.Lock()
        self._schemas: dict[str, Schema] = {}
        self._logs: dict[str, tuple[Schema, EventLog]] = {}

    def attach(self, stream: str, schema: Schema) -> None:
        """From now on the stream's examples come from where this schema says."""
        with self._lock:
            self._schemas[examples_topic(stream)] = schema

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        self._own.create_topic(topic, partition_count=partition_count)

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        if source := self._source_of(topic):
            raise Conflict(f"{topic} is read from Kafka topic {source.topic}; nothing is appended to it")
        return self._own.append(topic, partition, records)

    def partition_count(self, topic: str) -> int:
        log, name = self._place(topic)
        return log.partition_count(name)

    def start_position(self, topic: str) -> dict[int, int]:
        return self._asked(topic, lambda log, name: log.start_position(name))

    def end_position(self, topic: str) -> dict[int, int]:
        return self._asked(topic, lambda log, name: log.end_position(name))

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

    def _asked(self, topic: str, ask: Callable[[EventLog, str], dict[int, int]]) -> dict[int, int]:
        log, name = self._place(topic)
        try:
            return ask(log, name)
        except NotFound as error:
            if log is self._own:
                raise
            raise Unavailable(f"{topic} is read from Kafka topic {name}: {error.message}") from error

    def _source_of(self, topic: str) -> TopicSource | None:
        schema = self._schema(topic)
        return schema.source if schema else None

    def _schema(self, topic: str) -> Schema | None:
        with self._lock:
            known = self._schemas.get(topic)
        if known is not None or self._schema_of is None or not topic.startswith(examples_topic("")):
            return known
        self.attach(stream := topic.removeprefix(examples_topic("")), self._schema_of(stream))
        return self._schemas[topic]

    def _place(self, topic: str) -> tuple[EventLog, str]:
        """The log that has the topic, and what it is called there."""
        schema = self._schema(topic)
        if schema is None or schema.source is None:
            return self._own, topic
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
        url: of the platform's event log, whose Kafka is meant where the source names none.

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

    servers = source.servers or url.removeprefix(_KAFKA)
    return KafkaLog(servers.split(","), record_of=record_of, info_of=info_of, committed_only=True)
