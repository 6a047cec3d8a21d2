"""Where a topic of one partition has its files, for the tests that look into them or damage them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.eventlog.segment_files import data_path, index_path
from common.eventlog.segment_log import SegmentLog
from common.eventlog.segment_writer import SegmentSettings

TOPIC = "examples.test"


@contextmanager
def segment_log(directory: Path, **settings: int) -> Iterator[SegmentLog]:
    """Open, with topic TOPIC; `settings` of SegmentSettings."""
    with closing(SegmentLog(directory, SegmentSettings(**settings))) as opened:
        opened.create_topic(TOPIC, partition_count=1)
        yield opened


def partition_dir(directory: Path) -> Path:
    return directory / TOPIC / "0"


def segment_files(directory: Path) -> tuple[Path, Path]:
    return data_path(partition_dir(directory), 0), index_path(partition_dir(directory), 0)


def set_committed(directory: Path, offset: int) -> None:
    (partition_dir(directory) / "committed").write_bytes(offset.to_bytes(8, "little"))
