"""The files of one partition of a SegmentLog: names, locks, and writes that are whole or undone.

<partition>/<first offset, 20 digits>.tfrecord   the values, one after the other: a TFRecord file
<partition>/<first offset, 20 digits>.index      see segment_index.py; a segment exists when its index exists
<partition>/committed                            the offset below which every record is durable (u64, not fsynced: a
                                                 machine's crash may set it back)
.locks/<topic>/<partition>.appends               locked by the appending process
.locks/<topic>/<partition>.turn                  held while waiting for it, so that a busy appender cannot overtake a
                                                 waiting one

A process that may only read a topic, as authors' code in a round may, could lock every file of it (flock(2)): so the
locks lie beside the topics.
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


def lock_paths(directory: Path) -> tuple[Path, Path]:
    """Of a partition's folder: appends, turn."""
    locks = directory.parents[1] / ".locks" / directory.parent.name
    return locks / f"{directory.name}.appends", locks / f"{directory.name}.turn"


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
    """The `committed` file with the end position for the readers, and the lock of the appenders."""

    def __init__(self, directory: Path, *, lock_timeout_seconds: float = 30.0) -> None:
        self._lock_timeout_seconds = lock_timeout_seconds
        self._path = directory / "committed"
        self.is_writable = True
        self._appends = self._turn = -1
        try:
            self._committed = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:  # a process that may read only
            self.is_writable = False
            self._committed = os.open(self._path, os.O_RDONLY)
            return
        self._appends, self._turn = (_opened(path) for path in lock_paths(directory))

    def close(self) -> None:
        """A call that comes too late gets EBADF, not another's file."""
        opened = self._committed, self._appends, self._turn
        self._committed = self._appends = self._turn = -1
        for descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)

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
            self._acquire(self._appends, deadline)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._appends, fcntl.LOCK_UN)

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


def _opened(lock: Path) -> int:
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
