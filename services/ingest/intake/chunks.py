"""From events to log records: framed events, the chunks they are grouped into, and the blocking append.

Nothing here knows asyncio; `PartitionAppender.append` runs in a thread, one call at a time per partition.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, RecordHeaders, RecordInfo, RequestMark
from common.eventlog.headers import MOST_TRACES
from services.ingest import metrics
from services.ingest.once.keys import KeyWindow, RequestKey

_SCAN_BLOCK_RECORDS = 2_000
_MARK_BYTES = 32
_FRAME_BYTES = tfrecord.HEADER_BYTES + tfrecord.FOOTER_BYTES


@dataclass(frozen=True)
class FramedEvents:
    """TFRecord frames, one after the other; `ends[i]` is where frame i ends in `value`, shape [count], int64."""

    value: memoryview
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Sequence[bytes], framed: bytes | None = None) -> "FramedEvents":
        """Frames the examples; `framed` are their frames when they came framed."""
        lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
        value = tfrecord.frame(examples) if framed is None else framed
        return cls(memoryview(value), np.cumsum(lengths + _FRAME_BYTES))

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, first: int, last: int) -> memoryview:
        return self.value[self.start_of(first) : self.start_of(last)]

    def start_of(self, index: int) -> int:
        return int(self.ends[index - 1]) if index else 0


@dataclass(frozen=True)
class Item:
    """Events of one request for one partition."""

    events: FramedEvents
    schema_version: int
    request: RequestKey | None = None
    trace: bytes = b""
    """Of the request's span, where it is traced."""


@dataclass(frozen=True)
class Appended:
    """Where an item is.

    Attributes:
        added: events appended now; the others had been there before.
        end_offset: the offset after the last record that holds an event of it; 0 for an empty item.
    """

    added: int
    end_offset: int


@dataclass
class _Chunk:
    schema_version: int
    parts: list[memoryview] = field(default_factory=list)
    marks: list[RequestMark] = field(default_factory=list)
    traces: list[bytes] = field(default_factory=list)
    byte_count: int = 0
    event_count: int = 0

    def add(self, item: Item, first: int, last: int) -> None:
        part = item.events.part(first, last)
        self.parts.append(part)
        self.byte_count += len(part)
        self.event_count += last - first
        if item.request is not None:
            self.byte_count += _MARK_BYTES
            self.marks.append(RequestMark(item.request.key_digest, item.request.body_digest, last - first))
        if item.trace and len(self.traces) < MOST_TRACES:
            self.byte_count += _MARK_BYTES
            self.traces.append(item.trace)

    def record(self, ingest_time: float) -> NewRecord:
        metrics.CHUNK_BYTES.observe(self.byte_count)
        metrics.CHUNK_EVENTS.observe(self.event_count)
        headers = RecordHeaders(
            self.schema_version, self.event_count, ingest_time, os.urandom(16), tuple(self.marks), tuple(self.traces)
        )
        return NewRecord(b"".join(self.parts), headers)


class Chunker:
    """Groups the events of many items into chunks, in order; a chunk holds one schema version."""

    def __init__(self, *, chunk_bytes: int, chunk_events: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunk_events = chunk_events
        self.chunks: list[_Chunk] = []

    def add(self, item: Item, first: int) -> int:
        """Puts the item's events from `first` on into chunks; returns the number of chunks so far."""
        while first < len(item.events):
            chunk = self._open_chunk(item.schema_version)
            last = self._last_that_fits(item.events, first, chunk)
            if last == first:
                self.chunks.append(_Chunk(item.schema_version))
                continue
            chunk.add(item, first, last)
            first = last
        return len(self.chunks)

    def _open_chunk(self, schema_version: int) -> _Chunk:
        if not self.chunks or self.chunks[-1].schema_version != schema_version:
            self.chunks.append(_Chunk(schema_version))
        return self.chunks[-1]

    def _last_that_fits(self, events: FramedEvents, first: int, chunk: _Chunk) -> int:
        limit = events.start_of(first) + self._chunk_bytes - chunk.byte_count
        last = int(np.searchsorted(events.ends, limit, side="right"))
        last = min(last, first + self._chunk_events - chunk.event_count)
        # An event larger than a chunk is a separate chunk.
        return max(last, first + 1) if not chunk.event_count else max(last, first)


class PartitionAppender:
    """Appends items to one partition, leaving out what the log already holds of a request with a key.

    Not thread-safe: one call at a time.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        stream: str,
        topic: str,
        partition: int,
        window: KeyWindow,
        chunk_bytes: int,
        chunk_events: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._stream = stream
        self._place = (topic, partition)
        self._window = window
        self._chunk_bytes = chunk_bytes
        self._chunk_events = chunk_events
        self._clock = clock
        self._scanned_end = 0

    def open(self) -> None:
        """Learns the requests in the newest records, as far back as the window reaches. Raises Unavailable: the log
        does not answer."""
        topic, partition = self._place
        oldest = self._log.start_position(topic)[partition]
        end = self._log.end_position(topic)[partition]
        since = self._clock() - self._window.window_seconds
        blocks: list[list[RecordInfo]] = []
        first = end
        while first > oldest:
            last, first = first, max(oldest, first - _SCAN_BLOCK_RECORDS)
            blocks.append(list(self._log.scan(topic, partition, first, last)))
            if blocks[-1] and blocks[-1][0].headers.ingest_time < since:
                break
        for block in reversed(blocks):
            for info in block:
                if info.headers.ingest_time >= since:
                    self._window.learn(self._stream, topic, info)
        self._scanned_end = end

    def append(self, items: Sequence[Item]) -> list[Appended]:
        """Appends the items' events, in order. Raises Unavailable: none, some or all of them may be in the log. An item
        with a key is resolved when it is given again: the log is first scanned from the last known end."""
        topic, partition = self._place
        if any(item.request is not None for item in items):
            self._catch_up()
        chunker = Chunker(chunk_bytes=self._chunk_bytes, chunk_events=self._chunk_events)
        there = [self._in_log(item) for item in items]
        chunk_ends = [
            chunker.add(item, min(count, len(item.events))) for item, (count, _) in zip(items, there, strict=True)
        ]
        now = round(self._clock(), 6)
        records = [chunk.record(now) for chunk in chunker.chunks]
        offsets = self._log.append(topic, partition, records) if records else []
        self._learn(records, offsets)
        return [
            Appended(len(item.events) - count, offsets[chunk_end - 1] + 1)
            if count < len(item.events)
            else Appended(0, end_offset)
            for item, (count, end_offset), chunk_end in zip(items, there, chunk_ends, strict=True)
        ]

    def _in_log(self, item: Item) -> tuple[int, int]:
        if item.request is None:
            return 0, 0
        return self._window.in_log(self._stream, item.request.key_digest, self._place)

    def _catch_up(self) -> None:
        """Learns what was appended since, by another process or by an append of ours that failed halfway."""
        topic, partition = self._place
        end = self._log.end_position(topic)[partition]
        if end > self._scanned_end:
            start = max(self._scanned_end, self._log.start_position(topic)[partition])
            for info in self._log.scan(topic, partition, start, end):
                self._window.learn(self._stream, topic, info)
            self._scanned_end = end

    def _learn(self, records: Sequence[NewRecord], offsets: Sequence[int]) -> None:
        topic, partition = self._place
        for record, offset in zip(records, offsets, strict=True):
            if record.headers.requests:
                info = RecordInfo(partition, offset, len(record.value), record.headers)
                self._window.learn(self._stream, topic, info)
        if offsets and offsets[0] == self._scanned_end and offsets[-1] - offsets[0] == len(offsets) - 1:
            self._scanned_end = offsets[-1] + 1
