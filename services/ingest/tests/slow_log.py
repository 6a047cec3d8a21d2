"""A segment log that a test slows down, stops or takes away from outside, by files in the folder named by SLOW_LOG_DIR.

hold-before, hold-after   an append waits before or after it has written, while the file is there
appending                 made when an append begins to wait
away                      a ping gets no answer
bytes_per_second          what the log takes; read once
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import Unavailable
from common.eventlog.base import EventLog, NewRecord, Record, RecordInfo
from common.eventlog.open import open_event_log
from services.ingest import __main__ as ingest


class SlowLog:
    def __init__(self, log: EventLog, directory: Path) -> None:
        self._log, self._directory = log, directory
        limit = directory / "bytes_per_second"
        self._bytes_per_second = float(limit.read_text()) if limit.exists() else float("inf")

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        time.sleep(sum(len(record.value) for record in records) / self._bytes_per_second)
        self._wait_while("hold-before")
        offsets = self._log.append(topic, partition, records)
        self._wait_while("hold-after")
        return offsets

    def ping(self, *, timeout_seconds: float) -> None:
        if (self._directory / "away").exists():
            raise Unavailable("the slow log is away")

    def _wait_while(self, name: str) -> None:
        while (self._directory / name).exists():
            (self._directory / "appending").touch()
            time.sleep(0.01)

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        self._log.create_topic(topic, partition_count=partition_count)

    def partition_count(self, topic: str) -> int:
        return self._log.partition_count(topic)

    def start_position(self, topic: str) -> dict[int, int]:
        return self._log.start_position(topic)

    def end_position(self, topic: str) -> dict[int, int]:
        return self._log.end_position(topic)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        return self._log.read(topic, partition, start, end)

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        return self._log.scan(topic, partition, start, end)

    def close(self) -> None:
        self._log.close()


def main() -> int:
    """Ingest over such a log."""
    directory = Path(os.environ["SLOW_LOG_DIR"])
    return ingest.main(lambda url: SlowLog(open_event_log(url), directory))
