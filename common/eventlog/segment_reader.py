"""Reading one partition of a SegmentLog, without locks: only committed records are looked at, and those never change.

A reader keeps the segment it is in open, so retention cannot pull it away; when the next segment is gone it raises.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import DataLoss
from common.eventlog.base import Record, RecordInfo
from common.eventlog.segment_files import data_path, first_offsets, index_path, read_at
from common.eventlog.segment_index import LARGEST_ENTRY_BYTES, IndexEntry, entry_at, skip_entries

_INDEX_READ_BYTES = 256 << 10
_SLAB_BYTES = 1 << 20
_PLACES_LIMIT = 64


class SegmentReader:
    """Thread-safe. Holds about 1 MiB, or one value if that is larger, for each iteration under way."""

    def __init__(self, directory: Path, partition: int) -> None:
        self._directory = directory
        self._partition = partition
        # Where earlier iterations ended: {(segment, offset): byte of its index file}. The next one often goes on there.
        self._places: dict[tuple[int, int], int] = {}
        self._places_lock = threading.Lock()

    def start_offset(self) -> int:
        return first_offsets(self._directory)[0]

    def read(self, start: int, end: int) -> Iterator[Record]:
        for segment, entries in self._segments(start, end):
            with self._opened(data_path(self._directory, segment), start) as data:
                for slab in _slabs(entries):
                    yield from self._records(segment, data, slab)

    def scan(self, start: int, end: int) -> Iterator[RecordInfo]:
        for _, entries in self._segments(start, end):
            for entry in entries:
                yield RecordInfo(self._partition, entry.offset, entry.value_bytes, entry.headers)

    def _records(self, segment: int, data: int, slab: list[IndexEntry]) -> Iterator[Record]:
        slab_start = slab[0].value_start
        values = read_at(data, slab_start, slab[-1].value_end - slab_start)
        for entry in slab:
            value = values[entry.value_start - slab_start : entry.value_end - slab_start]
            if len(value) != entry.value_bytes:
                path = data_path(self._directory, segment)
                raise DataLoss(f"{path}: offset {entry.offset} at byte {entry.value_start} is cut short")
            yield Record(self._partition, entry.offset, value, entry.headers)

    def _segments(self, start: int, end: int) -> Iterator[tuple[int, Iterator[IndexEntry]]]:
        """The segments that hold [start, end), each with its entries in that range."""
        while start < end:
            offsets = first_offsets(self._directory)
            segment = offsets[bisect_right(offsets, start) - 1]
            if segment > start:
                raise self._gone(start)
            following = offsets[bisect_right(offsets, start) :]
            segment_end = min(end, following[0]) if following else end
            yield segment, self._entries(segment, start, segment_end)
            start = segment_end

    def _entries(self, segment: int, start: int, end: int) -> Iterator[IndexEntry]:
        with self._opened(index_path(self._directory, segment), start) as index:
            place = self._place(index, segment, start)
            read_bytes = _INDEX_READ_BYTES
            while start < end:
                data = read_at(index, place, read_bytes)
                at = 0
                while start < end and (entry := entry_at(data, at)) is not None:
                    if entry.offset != start:
                        raise self._damaged(segment, start)
                    yield entry
                    start += 1
                    at += entry.entry_bytes
                if at == 0 and (len(data) < read_bytes or read_bytes > LARGEST_ENTRY_BYTES):
                    raise self._damaged(segment, start)
                if at == 0:
                    read_bytes = LARGEST_ENTRY_BYTES + 1
                place += at
            self._remember(segment, start, place)

    def _place(self, index: int, segment: int, offset: int) -> int:
        """The byte of the index file at which the entry of `offset` begins."""
        with self._places_lock:
            place = self._places.get((segment, offset))
        if place is not None:
            return place
        place, left = 0, offset - segment
        while left > 0:
            data = read_at(index, place, LARGEST_ENTRY_BYTES)
            passed_bytes, passed = skip_entries(data, 0, left)
            if passed == 0:
                raise self._damaged(segment, offset - left)
            place += passed_bytes
            left -= passed
        return place

    def _remember(self, segment: int, offset: int, place: int) -> None:
        with self._places_lock:
            self._places[segment, offset] = place
            while len(self._places) > _PLACES_LIMIT:
                del self._places[next(iter(self._places))]

    @contextmanager
    def _opened(self, path: Path, offset: int) -> Iterator[int]:
        """A descriptor for reading. Raises DataLoss when the file has been removed since it was listed."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise self._gone(offset) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _damaged(self, segment: int, offset: int) -> DataLoss:
        return DataLoss(f"{index_path(self._directory, segment)} has no correct entry for offset {offset}")

    def _gone(self, offset: int) -> DataLoss:
        return DataLoss(f"offset {offset} of {self._directory} is no longer kept; the oldest is {self.start_offset()}")


def _slabs(entries: Iterator[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Neighbouring entries whose values are read in one go."""
    slab: list[IndexEntry] = []
    slab_bytes = 0
    for entry in entries:
        if slab and slab_bytes + entry.value_bytes > _SLAB_BYTES:
            yield slab
            slab, slab_bytes = [], 0
        slab.append(entry)
        slab_bytes += entry.value_bytes
    if slab:
        yield slab
