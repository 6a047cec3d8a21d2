"""A segment log that a test slows down, stops or takes away from outside, by files in the folder named by SLOW_LOG_DIR.

hold-before, hold-after   an append waits before or after it has written, while the file is there
appending                 made when an append begins to wait
away                      a ping gets no answer
bytes_per_second          what the log takes; read once
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import Unavailable
from common.eventlog.base import EventLog, NewRecord
from common.eventlog.open import open_event_log
from services.ingest import __main__ as ingest
from services.ingest.tests.passing_log import PassingLog


class SlowLog(PassingLog):
    def __init__(self, log: EventLog, directory: Path) -> None:
        super().__init__(log)
        self._directory = directory
        limit = directory / "bytes_per_second"
        self._bytes_per_second = float(limit.read_text()) if limit.exists() else float("inf")

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        time.sleep(sum(len(record.value) for record in records) / self._bytes_per_second)
        self._wait_while("hold-before")
        offsets = super().append(topic, partition, records)
        self._wait_while("hold-after")
        return offsets

    def ping(self, *, timeout_seconds: float) -> None:
        if (self._directory / "away").exists():
            raise Unavailable("the slow log is away")

    def _wait_while(self, name: str) -> None:
        while (self._directory / name).exists():
            (self._directory / "appending").touch()
            time.sleep(0.01)


def main() -> int:
    """Ingest over such a log."""
    directory = Path(os.environ["SLOW_LOG_DIR"])
    return ingest.main(lambda url: SlowLog(open_event_log(url), directory))
