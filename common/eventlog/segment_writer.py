"""Appending to one partition of a SegmentLog: group commit, recovery of the tail, rolling, retention.

One commit, under the partition's lock: values are written and flushed, then their index entries are written and
flushed, then the end offset in `committed` moves on and the callers are answered. A crash leaves, at any point, bytes
after the last committed record; the next to open or append keeps those of them that are whole and cuts the rest off.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google_crc32c import value as crc32c

from common.errors import DataLoss, HeadraceError, Unavailable
from common.eventlog.base import NewRecord
from common.eventlog.headers import check_headers
from common.eventlog.segment_files import (
    CommitFile,
    create_segment,
    data_path,
    delete_segment,
    first_offsets,
    index_path,
    read_at,
    write_at,
)
from common.eventlog.segment_index import encode_entries, parse_tail

logger = logging.getLogger(__name__)
_APPEND_TIMEOUT_SECONDS = 60.0
_COMMIT_LIMIT_BYTES = 16 << 20
_INDEX_LIMIT_BYTES = 16 << 20
_RETENTION_PERIOD_SECONDS = 60.0


@dataclass(frozen=True)
class SegmentSettings:
    """How a partition is split into files, and what is kept. The newest segment is always kept, be it empty."""

    segment_bytes: int = 128 << 20
    retention_bytes: int | None = None
    retention_seconds: float | None = None
    """Counted from the last append to a segment."""


@dataclass(eq=False)
class _Waiting:
    """One append call on its way to the disk."""

    records: Sequence[NewRecord]
    wake: threading.Event = field(default_factory=threading.Event)
    settled: bool = False
    first_offset: int = -1
    error: HeadraceError | None = None

    def offsets(self) -> list[int]:
        if self.error is not None:
            raise self.error
        return list(range(self.first_offset, self.first_offset + len(self.records)))


@dataclass
class _Tail:
    """The newest segment, open for writing, up to its last committed record."""

    first_offset: int
    data: int
    index: int
    next_offset: int
    data_end: int = 0
    index_end: int = 0

    @classmethod
    def open(cls, directory: Path, first_offset: int) -> "_Tail":
        data = os.open(data_path(directory, first_offset), os.O_RDWR)
        index = os.open(index_path(directory, first_offset), os.O_RDWR)
        return cls(first_offset, data, index, first_offset)

    def close(self) -> None:
        os.close(self.data)
        os.close(self.index)

    def is_as_known(self, directory: Path) -> bool:
        """Whether no other process appended to it, left something behind in it, rolled it or removed it."""
        index = os.fstat(self.index)
        return (
            index.st_size == self.index_end
            and index.st_nlink > 0
            and os.fstat(self.data).st_size == self.data_end
            and (self.index_end == 0 or not index_path(directory, self.next_offset).exists())
        )

    def cut_back(self) -> None:
        """Removes what lies after the last committed record."""
        os.ftruncate(self.index, self.index_end)
        os.ftruncate(self.data, self.data_end)

    def advance(self, *, records: int, data_bytes: int, index_bytes: int) -> None:
        self.next_offset += records
        self.data_end += data_bytes
        self.index_end += index_bytes


class SegmentWriter:
    """Thread-safe. Concurrent appends share one write and one pair of flushes: an append that comes while a commit is
    under way waits, and the first of those who waited commits for all of them."""

    def __init__(self, directory: Path, commit_file: CommitFile, settings: SegmentSettings) -> None:
        self._directory = directory
        self._commit_file = commit_file
        self._settings = settings
        self._queue: deque[_Waiting] = deque()
        self._queue_lock = threading.Lock()
        self._someone_leads = False
        self._tail: _Tail | None = None
        self._tail_lock = threading.Lock()
        self._retention_at = time.monotonic() + _RETENTION_PERIOD_SECONDS
        self._closed = False
        self.flush_count = 0
        """fdatasync calls so far; two for each commit."""

    def open(self) -> None:
        """Recovers the tail. Raises DataLoss when committed records are damaged or gone."""
        with self._tail_lock, self._commit_file.locked():
            self._current_tail()

    def close(self) -> None:
        """Waits for the commit under way; appends that come later raise Unavailable."""
        with self._tail_lock:
            self._closed = True
            self._drop_tail()

    def append(self, records: Sequence[NewRecord]) -> list[int]:
        """See EventLog.append."""
        for record in records:
            check_headers(record.headers)
        waiting = _Waiting(records)
        with self._queue_lock:
            self._queue.append(waiting)
            leads, self._someone_leads = not self._someone_leads, True
        if not leads:
            self._wait(waiting)
        if not waiting.settled:
            self._lead()
        return waiting.offsets()

    def _wait(self, waiting: _Waiting) -> None:
        """Returns when the records are settled, or when it is this caller's turn to lead."""
        if waiting.wake.wait(_APPEND_TIMEOUT_SECONDS):
            return
        with self._queue_lock:
            if waiting.wake.is_set():
                return
            if waiting in self._queue:
                self._queue.remove(waiting)
        raise Unavailable(f"{self._directory} did not take the records within {_APPEND_TIMEOUT_SECONDS:.0f} s")

    def _lead(self) -> None:
        """Commits what is queued, the caller's own records first, then passes the lead on."""
        batch = self._take_batch()
        try:
            with self._tail_lock:
                if self._closed:
                    raise Unavailable(f"{self._directory} is closed")
                self._commit(batch)
        except HeadraceError as error:
            for waiting in batch:
                waiting.error = error
        except OSError as error:
            for waiting in batch:
                waiting.error = Unavailable(f"cannot append to {self._directory}: {error}")
                waiting.error.__cause__ = error
        finally:
            for waiting in batch:
                if waiting.error is None and waiting.first_offset < 0:
                    waiting.error = Unavailable(f"the append to {self._directory} was interrupted")
                waiting.settled = True
                waiting.wake.set()
            with self._queue_lock:
                if self._queue:
                    self._queue[0].wake.set()
                self._someone_leads = bool(self._queue)

    def _take_batch(self) -> list[_Waiting]:
        with self._queue_lock:
            batch = [self._queue.popleft()]
            size_bytes = _size_bytes(batch[0])
            while self._queue and (size_bytes := size_bytes + _size_bytes(self._queue[0])) <= _COMMIT_LIMIT_BYTES:
                batch.append(self._queue.popleft())
            return batch

    def _commit(self, batch: Sequence[_Waiting]) -> None:
        records = [record for waiting in batch for record in waiting.records]
        values = b"".join([record.value for record in records])
        with self._commit_file.locked():
            tail = self._tail_with_room(len(values))
            entries = encode_entries(
                records, first_offset=tail.next_offset, value_start=tail.data_end, commit_start=tail.index_end
            )
            first_offset = tail.next_offset
            self._write(tail, values, entries)
            for waiting in batch:
                waiting.first_offset = first_offset
                first_offset += len(waiting.records)
            if time.monotonic() >= self._retention_at:
                self._retention_at = time.monotonic() + _RETENTION_PERIOD_SECONDS
                self._try_retention()

    def _write(self, tail: _Tail, values: bytes, entries: Sequence[bytes]) -> None:
        """Writes and flushes; after a failure, such as a full disk, the files are as before."""
        index_bytes = b"".join(entries)
        try:
            write_at(tail.data, values, tail.data_end)
            self._flush(tail.data)
            write_at(tail.index, index_bytes, tail.index_end)
            self._flush(tail.index)
            self._commit_file.set_end_offset(tail.next_offset + len(entries))
        except OSError:
            # What stays behind if this fails too is cut off by the next recovery, which a forgotten tail brings about.
            self._tail = None
            try:
                tail.cut_back()
            finally:
                tail.close()
            raise
        tail.advance(records=len(entries), data_bytes=len(values), index_bytes=len(index_bytes))

    def _flush(self, descriptor: int) -> None:
        self.flush_count += 1
        os.fdatasync(descriptor)

    def _tail_with_room(self, size_bytes: int) -> _Tail:
        tail = self._current_tail()
        if tail.data_end == 0 or (
            tail.data_end + size_bytes <= self._settings.segment_bytes and tail.index_end < _INDEX_LIMIT_BYTES
        ):
            return tail
        return self._roll(tail)

    def _roll(self, tail: _Tail) -> _Tail:
        """Starts a new segment. A crash in between leaves it empty, which is a tail like any other."""
        create_segment(self._directory, tail.next_offset)
        self._drop_tail()
        self._tail = _Tail.open(self._directory, tail.next_offset)
        return self._tail

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _current_tail(self) -> _Tail:
        """The tail as it is on disk now. Only under both locks."""
        tail = self._tail
        if tail is not None and tail.is_as_known(self._directory):
            return tail
        offsets = first_offsets(self._directory)
        if not offsets:
            raise DataLoss(f"{self._directory} has no index file; its records cannot be separated")
        if tail is None or tail.first_offset != offsets[-1]:
            self._drop_tail()
            tail = self._tail = _Tail.open(self._directory, offsets[-1])
        try:
            self._recover(tail)
        except BaseException:
            self._drop_tail()
            raise
        return tail

    def _recover(self, tail: _Tail) -> None:
        """Takes over what others appended; keeps what a crash left whole, cuts off the rest."""
        committed = self._commit_file.end_offset()
        path = index_path(self._directory, tail.first_offset)
        unread = read_at(tail.index, tail.index_end, os.fstat(tail.index).st_size - tail.index_end)
        data_bytes = os.fstat(tail.data).st_size
        for entry in parse_tail(unread, data_start=tail.index_end, first_offset=tail.next_offset, path=path):
            whole = entry.value_start == tail.data_end and entry.value_end <= data_bytes
            if whole and entry.offset >= committed:
                whole = crc32c(read_at(tail.data, entry.value_start, entry.value_bytes)) == entry.value_crc
            if not whole:
                break
            tail.advance(records=1, data_bytes=entry.value_bytes, index_bytes=entry.entry_bytes)
        if tail.next_offset < committed:
            raise DataLoss(
                f"{path} ends before offset {tail.next_offset}, but offsets below {committed} were acknowledged"
            )
        tail.cut_back()
        if tail.next_offset > committed:
            self._flush(tail.data)
            self._flush(tail.index)
            self._commit_file.set_end_offset(tail.next_offset)

    def apply_retention(self) -> int:
        """Removes the segments that are past the limits; returns how many."""
        with self._tail_lock:
            if self._closed:
                raise Unavailable(f"{self._directory} is closed")
            with self._commit_file.locked():
                return self._apply_retention()

    def _try_retention(self) -> None:
        try:
            self._apply_retention()
        except OSError as error:
            logger.warning("retention failed", extra={"directory": str(self._directory), "reason": str(error)})

    def _apply_retention(self) -> int:
        settings = self._settings
        if settings.retention_bytes is None and settings.retention_seconds is None:
            return 0
        tail = self._current_tail()
        if tail.data_end > 0 and self._is_old(tail.first_offset):
            tail = self._roll(tail)
        offsets = first_offsets(self._directory)
        sizes = [data_path(self._directory, offset).stat().st_size for offset in offsets]
        kept_bytes, removed = sum(sizes), 0
        for offset, size_bytes in zip(offsets[:-1], sizes[:-1], strict=True):
            too_much = settings.retention_bytes is not None and kept_bytes > settings.retention_bytes
            if not too_much and not self._is_old(offset):
                break
            delete_segment(self._directory, offset)
            kept_bytes -= size_bytes
            removed += 1
        self._remove_leftovers(first_offsets(self._directory)[0])
        return removed

    def _is_old(self, first_offset: int) -> bool:
        limit_seconds = self._settings.retention_seconds
        if limit_seconds is None:
            return False
        return time.time() - data_path(self._directory, first_offset).stat().st_mtime > limit_seconds

    def _remove_leftovers(self, oldest_offset: int) -> None:
        """Data files whose deletion was interrupted after their index was gone."""
        for path in self._directory.glob("*.tfrecord"):
            if int(path.stem) < oldest_offset:
                path.unlink(missing_ok=True)


def _size_bytes(waiting: _Waiting) -> int:
    return sum(len(record.value) for record in waiting.records)
