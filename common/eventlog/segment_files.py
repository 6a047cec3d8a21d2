"""The files of one partition of a SegmentLog: names, locks, and writes that are whole or undone.

<partition>/<first offset, 20 digits>.tfrecord   the values, one after the other: a TFRecord file
<partition>/<first offset, 20 digits>.index      see segment_index.py; a segment exists when its index exists
<partition>/committed                            locked by the appending process; holds the offset below which every
record
                                                 is durable (u64, not fsynced: a machine's crash may set it back)
<partition>/turn                                 held while waiting for `committed`, so that a busy appender cannot
                                                 overtake a waiting one
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import Unavailable
from common.whole_files import sync

_LOCK_POLL_SECONDS = 0.0002
_OFFSET_BYTES = 8


def data_path(directory: Path, first_offset: int) -> Path:
    return directory / f"{first_offset:020d}.tfrecord"


def index_path(directory: Path, first_offset: int) -> Path:
    return directory / f"{first_offset:020d}.index"


def first_offsets(directory: Path) -> list[int]:
    """The first offsets of the segments, ascending. Never empty in a partition that was made whole."""
    return sorted(int(name[:20]) for name in os.listdir(directory) if name.endswith(".index"))  # noqa: PTH208 hot


def create_segment(directory: Path, first_offset: int) -> None:
    """Makes an empty segment. A crash in between leaves a data file without an index, which is no segment."""
    for path in (data_path(directory, first_offset), index_path(directory, first_offset)):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644))
    sync(directory)


def delete_segment(directory: Path, first_offset: int) -> None:
    """A crash in between leaves a data file without an index, which the next retention removes."""
    index_path(directory, first_offset).unlink(missing_ok=True)
    data_path(directory, first_offset).unlink(missing_ok=True)


def write_at(descriptor: int, data: bytes, start: int) -> None:
    """Writes all of `data` at byte `start`."""
    written = os.pwrite(descriptor, data, start)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], start + written)


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """Up to `length` bytes from byte `start`; fewer only at the end of the file."""
    data = os.pread(descriptor, length, start)
    while 0 < len(data) < length:
        more = os.pread(descriptor, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


class CommitFile:
    """The `committed` file: the lock of the appenders and the end position for the readers."""

    def __init__(self, directory: Path, *, lock_timeout_seconds: float = 30.0) -> None:
        self._lock_timeout_seconds = lock_timeout_seconds
        self._path = directory / "committed"
        self.is_writable = True
        try:
            self._committed = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._turn = os.open(directory / "turn", os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:  # a process that may read only
            self.is_writable = False
            self._committed, self._turn = (os.open(directory / name, os.O_RDONLY) for name in ("committed", "turn"))

    def close(self) -> None:
        """A call that comes too late gets EBADF, not another's file."""
        committed, self._committed = self._committed, -1
        turn, self._turn = self._turn, -1
        os.close(committed)
        os.close(turn)

    def end_offset(self) -> int:
        """Every record below it is durable. 0 in a new partition, or when the file was lost."""
        return int.from_bytes(os.pread(self._committed, _OFFSET_BYTES, 0), "little")

    def set_end_offset(self, offset: int) -> None:
        """Only under the lock."""
        os.pwrite(self._committed, offset.to_bytes(_OFFSET_BYTES, "little"), 0)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes every other process and CommitFile. Raises Unavailable when the time to wait is over."""
        deadline = time.monotonic() + self._lock_timeout_seconds
        self._acquire(self._turn, deadline)
        try:
            self._acquire(self._committed, deadline)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._committed, fcntl.LOCK_UN)

    def _acquire(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self._path} is locked by another process for over {self._lock_timeout_seconds:.0f} s"
                    ) from error
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return
