"""The event log in files of one machine. See base.py for the guarantees, segment_files.py for the layout.

<directory>/<topic>/topic.json          {"format": 1, "partition_count": n}
<directory>/<topic>/<partition>/...
"""

import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from common.counted import counted
from common.errors import Conflict, DataLoss, InvalidInput, NotFound, Unavailable
from common.eventlog.base import NewRecord, Record, RecordInfo
from common.eventlog.segment_files import CommitFile, create_segment
from common.eventlog.segment_reader import SegmentReader
from common.eventlog.segment_writer import SegmentSettings, SegmentWriter
from common.whole_files import sync

_Item = TypeVar("_Item", Record, RecordInfo)
_FORMAT = 1
_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")
"""Kafka's rule, less a leading dot."""


class SegmentLog:
    """Thread-safe; several processes may open the same directory (on a local file system: it relies on flock)."""

    def __init__(self, directory: Path, settings: SegmentSettings | None = None) -> None:
        """Makes the directory if it is not there. Raises Unavailable when that fails."""
        self._directory = directory
        self._settings = settings or SegmentSettings()
        self._topics: dict[str, list[_Partition]] = {}
        self._lock = threading.Lock()
        self._closed = False
        with _file_errors(f"the event log {directory}"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def flush_count(self) -> int:
        """fdatasync calls so far, by this process: two for each commit, for any number of appends in it."""
        with self._lock:
            return sum(partition.writer.flush_count for partitions in self._topics.values() for partition in partitions)

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        """See EventLog.create_topic. The topic appears whole, by a rename."""
        if not _TOPIC_NAME.fullmatch(topic):
            raise InvalidInput(f"topic {topic!r} is not a name of letters, digits, '.', '_' and '-' (249 at most)")
        if not 1 <= partition_count <= 10_000:
            raise InvalidInput(
                f"topic {topic!r} cannot have {counted(partition_count, 'partition')}; expected 1 to 10000"
            )
        with _file_errors(f"topic {topic}"):
            if not (self._directory / topic).exists():
                self._make_topic(topic, partition_count)
        existing = self.partition_count(topic)
        if existing != partition_count:
            raise Conflict(f"topic {topic!r} has {counted(existing, 'partition')}; asked for {partition_count}")

    def _make_topic(self, topic: str, partition_count: int) -> None:
        # A crash in between leaves a folder that begins with a dot, which is no topic.
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self._directory))
        try:
            aside.chmod(0o755)
            for number in range(partition_count):
                partition = aside / str(number)
                partition.mkdir()
                (partition / "committed").write_bytes(bytes(8))
                create_segment(partition, 0)
            with (aside / "topic.json").open("w") as out:
                json.dump({"format": _FORMAT, "partition_count": partition_count}, out)
                out.flush()
                os.fsync(out.fileno())
            sync(aside)
            aside.rename(self._directory / topic)
            sync(self._directory)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if not (self._directory / topic).exists():  # else another process made it first
                raise

    def partition_count(self, topic: str) -> int:
        return len(self._partitions(topic))

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        with _file_errors(f"topic {topic}, partition {partition}"):
            writer = self._partition(topic, partition).writer
            return writer.append(records) if records else []

    def start_position(self, topic: str) -> dict[int, int]:
        with _file_errors(f"topic {topic}"):
            return {number: part.reader.start_offset() for number, part in enumerate(self._partitions(topic))}

    def end_position(self, topic: str) -> dict[int, int]:
        with _file_errors(f"topic {topic}"):
            return {number: part.commit_file.end_offset() for number, part in enumerate(self._partitions(topic))}

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """See EventLog.read; a bad range is refused at the call. Holds about 1 MiB, or one value if larger."""
        reader = self._reader(topic, partition, start, end)
        return _translated(reader.read(start, end), topic, partition)

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        """See EventLog.scan; reads the index files only."""
        reader = self._reader(topic, partition, start, end)
        return _translated(reader.scan(start, end), topic, partition)

    def apply_retention(self) -> int:
        """Removes the segments of every topic that are past the limits; returns how many.

        Appending does the same for its partition about once a minute; call this for topics that are not appended to.
        """
        removed = 0
        with _file_errors(f"the event log {self._directory}"):
            topics = sorted(path.parent.name for path in self._directory.glob("[!.]*/topic.json"))
            for topic in topics:
                removed += sum(partition.writer.apply_retention() for partition in self._partitions(topic))
        return removed

    def ping(self, *, timeout_seconds: float) -> None:
        """See EventLog.ping: looks whether the directory is there."""
        with self._lock:
            closed = self._closed
        if closed or not self._directory.is_dir():
            raise Unavailable(f"the event log {self._directory} is {'closed' if closed else 'not there'}")

    def close(self) -> None:
        """Waits for the commit under way. Later calls raise Unavailable."""
        with self._lock:
            self._closed = True
            partitions = [partition for partitions in self._topics.values() for partition in partitions]
            self._topics.clear()
        for partition in partitions:
            partition.close()

    def _reader(self, topic: str, partition: int, start: int, end: int) -> SegmentReader:
        with _file_errors(f"topic {topic}, partition {partition}"):
            opened = self._partition(topic, partition)
            committed = opened.commit_file.end_offset()
            if not 0 <= start <= end <= committed:
                raise InvalidInput(
                    f"topic {topic!r}, partition {partition}: cannot read [{start}, {end}); the end is {committed}"
                )
            oldest = opened.reader.start_offset()
        if start < oldest and start < end:
            raise DataLoss(
                f"topic {topic!r}, partition {partition}: offset {start} is no longer kept; the oldest is {oldest}"
            )
        return opened.reader

    def _partition(self, topic: str, number: int) -> "_Partition":
        partitions = self._partitions(topic)
        if not 0 <= number < len(partitions):
            raise NotFound(f"topic {topic!r} has no partition {number}; it has {len(partitions)}")
        return partitions[number]

    def _partitions(self, topic: str) -> "list[_Partition]":
        with self._lock:
            if self._closed:
                raise Unavailable(f"the event log {self._directory} is closed")
            if topic not in self._topics:
                with _file_errors(f"topic {topic}"):
                    self._topics[topic] = self._open_topic(topic)
            return self._topics[topic]

    def _open_topic(self, topic: str) -> "list[_Partition]":
        try:
            config = json.loads((self._directory / topic / "topic.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"there is no topic {topic!r} in {self._directory}") from error
        except ValueError as error:
            raise DataLoss(f"{self._directory / topic}/topic.json is not JSON: {error}") from error
        found = config.get("format") if isinstance(config, dict) else None
        if found != _FORMAT:
            raise DataLoss(f"topic {topic!r} has format {found}; this release reads {_FORMAT}")
        opened: list[_Partition] = []
        try:
            opened.extend(
                _Partition(self._directory / topic / str(number), number, self._settings)
                for number in range(config["partition_count"])
            )
        except BaseException:
            for partition in opened:
                partition.close()
            raise
        return opened


class _Partition:
    def __init__(self, directory: Path, number: int, settings: SegmentSettings) -> None:
        self.commit_file = CommitFile(directory)
        self.writer = SegmentWriter(directory, self.commit_file, settings)
        self.reader = SegmentReader(directory, number)
        try:
            if self.commit_file.is_writable:
                self.writer.open()
        except BaseException:
            self.commit_file.close()
            raise

    def close(self) -> None:
        self.writer.close()
        self.commit_file.close()


@contextmanager
def _file_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{subject}: {error}") from error


def _translated(items: Iterator[_Item], topic: str, partition: int) -> Iterator[_Item]:
    with _file_errors(f"topic {topic}, partition {partition}"):
        yield from items
