"""A log that passes each call on to a real log, for tests in which some of its calls go wrong."""

from collections.abc import Iterator, Sequence

from common.eventlog.base import EventLog, NewRecord, Record, RecordInfo


class PassingLog:
    def __init__(self, log: EventLog) -> None:
        self._log = log

    def check(self) -> None:
        """Before each call but those that read or append; raises where the log is away."""

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        return self._log.append(topic, partition, records)

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        self.check()
        self._log.create_topic(topic, partition_count=partition_count)

    def partition_count(self, topic: str) -> int:
        self.check()
        return self._log.partition_count(topic)

    def start_position(self, topic: str) -> dict[int, int]:
        self.check()
        return self._log.start_position(topic)

    def end_position(self, topic: str) -> dict[int, int]:
        self.check()
        return self._log.end_position(topic)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        return self._log.read(topic, partition, start, end)

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        return self._log.scan(topic, partition, start, end)

    def ping(self, *, timeout_seconds: float) -> None:
        self.check()
        self._log.ping(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._log.close()
