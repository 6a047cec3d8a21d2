"""The index beside a segment: one entry per record, in the order of the offsets.

An entry, all integers little-endian:

    4s   magic "HRix"
    u32  entry_bytes      the whole entry, magic to checksum
    u64  commit_start     byte of the index file at which the entries written together with this one begin
    u64  offset
    u64  value_start      byte of the segment file
    u64  value_bytes
    u32  value_crc        CRC32C of the value
    i32  schema_version
    u32  example_count
    f64  ingest_time
    16s  chunk_id
    u32  mark_count, then for each request and trace: 16s key_digest, 8s body_digest, u32 accepted_count (headers.py)
    u32  CRC32C of everything before

`commit_start` tells a torn tail from damage: entries of one commit may reach the disk in any order, so a bad entry is
the tail of a crash only if no good entry of a later commit follows it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from google_crc32c import value as crc32c

from common.errors import DataLoss
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.headers import MARK_BYTES, pack_marks, unpack_marks

_MAGIC = b"HRix"
_HEAD = struct.Struct("<4sIQQQQIiId16sI")
_CHECKSUM = struct.Struct("<I")
_SMALLEST_BYTES = _HEAD.size + _CHECKSUM.size
LARGEST_ENTRY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class IndexEntry:
    offset: int
    value_start: int
    value_bytes: int
    value_crc: int
    headers: RecordHeaders
    commit_start: int
    entry_bytes: int

    @property
    def value_end(self) -> int:
        return self.value_start + self.value_bytes


def encode_entries(
    records: Sequence[NewRecord], *, first_offset: int, value_start: int, commit_start: int
) -> list[bytes]:
    """The entries of records that are written together, whose headers have been checked."""
    entries = []
    for offset, record in enumerate(records, start=first_offset):
        entries.append(_encode_entry(record, offset, value_start, commit_start))
        value_start += len(record.value)
    return entries


def _encode_entry(record: NewRecord, offset: int, value_start: int, commit_start: int) -> bytes:
    headers = record.headers
    mark_count = len(headers.requests) + len(headers.traces)
    body = b"".join(
        (
            _HEAD.pack(
                _MAGIC,
                _SMALLEST_BYTES + MARK_BYTES * mark_count,
                commit_start,
                offset,
                value_start,
                len(record.value),
                crc32c(record.value),
                headers.schema_version,
                headers.example_count,
                headers.ingest_time,
                headers.chunk_id,
                mark_count,
            ),
            pack_marks(headers.requests, headers.traces),
        )
    )
    return body + _CHECKSUM.pack(crc32c(body))


def entry_at(data: bytes, start: int) -> IndexEntry | None:
    """The entry that begins at `start`, or None when there is no whole, correct entry."""
    if len(data) - start < _SMALLEST_BYTES:
        return None
    (magic, entry_bytes, commit_start, offset, value_start, value_bytes, value_crc, schema_version, example_count,
     ingest_time, chunk_id, mark_count) = _HEAD.unpack_from(data, start)  # fmt: skip
    end = start + entry_bytes
    if magic != _MAGIC or entry_bytes != _SMALLEST_BYTES + mark_count * MARK_BYTES or end > len(data):
        return None
    checksum_start = end - _CHECKSUM.size
    if crc32c(data[start:checksum_start]) != _CHECKSUM.unpack_from(data, checksum_start)[0]:
        return None
    requests, traces = unpack_marks(data[start + _HEAD.size : checksum_start]) if mark_count else ((), ())
    headers = RecordHeaders(schema_version, example_count, ingest_time, chunk_id, requests, traces)
    return IndexEntry(offset, value_start, value_bytes, value_crc, headers, commit_start, entry_bytes)


def skip_entries(data: bytes, start: int, count: int) -> tuple[int, int]:
    """Steps over up to `count` entries by their lengths alone; returns (where it stopped, how many it passed)."""
    passed = 0
    while passed < count and len(data) - start >= 8:
        entry_bytes = int.from_bytes(data[start + 4 : start + 8], "little")
        if data[start : start + 4] != _MAGIC or not _SMALLEST_BYTES <= entry_bytes <= len(data) - start:
            break
        start += entry_bytes
        passed += 1
    return start, passed


def parse_tail(data: bytes, *, data_start: int, first_offset: int, path: object) -> list[IndexEntry]:
    """The whole entries at the beginning of `data`, which are the bytes of an index file from `data_start` to its end.

    What follows them is the torn tail of a crash; the caller cuts it off. Raises DataLoss: a bad entry is followed by a
    good entry of a later commit, or offsets do not grow by one."""
    entries: list[IndexEntry] = []
    place = 0
    while (entry := entry_at(data, place)) is not None:
        if entry.offset != first_offset + len(entries):
            raise DataLoss(f"{path} has offset {entry.offset} at byte {data_start + place}; expected the next in order")
        entries.append(entry)
        place += entry.entry_bytes
    candidate = data.find(_MAGIC, place + 1)
    while candidate >= 0:
        later = entry_at(data, candidate)
        if later is not None and later.commit_start > data_start + place:
            raise DataLoss(f"{path} is damaged at byte {data_start + place}: whole entries follow it")
        candidate = data.find(_MAGIC, candidate + 1)
    return entries
