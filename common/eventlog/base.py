"""The port to the event log.

A log has topics, a topic has partitions 0..n-1, a partition is a sequence of records with offsets 0, 1, 2, ... The
record is the unit of append and of offset; it holds one or more examples, framed exactly as in a TFRecord file, so
that the values of consecutive records, concatenated, are a TFRecord file.

Guarantees of every adapter, held by one contract suite (common/eventlog/tests/test_contract.py):

- When append returns, the record survives a crash of this process and (fsync, or acks=all) of the machine.
- Within a partition, records are read in the order of their offsets, each once, whole, byte for byte as appended.
- Offsets grow by one per record and are never used again. Kafka may leave gaps between them; nothing of ours counts
  records by subtracting offsets.
- Several processes may append to one partition and read it at the same time.
- A reader sees a record whole or not at all, and never a record whose append has failed for good.
- Retention removes whole records from the old end only; reading below it raises DataLoss instead of skipping.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Position = Mapping[int, int]
"""{partition: offset of the next record}."""


@dataclass(frozen=True)
class RequestMark:
    """Says that a record holds the events of a request with an idempotency key; a restarted ingest reads it back."""

    key_digest: bytes
    """16 bytes, BLAKE2b of the idempotency key."""
    body_digest: bytes
    """8 bytes, BLAKE2b of the request's body."""
    accepted_count: int
    """Events of the request in this record."""


@dataclass(frozen=True)
class RecordHeaders:
    """What travels beside the bytes.

    On Kafka: headers schema_version, example_count, ingest_time (decimal text), chunk_id (raw), requests (raw), and a
    traceparent (W3C Trace Context) for each of `traces`.
    """

    schema_version: int
    example_count: int
    ingest_time: float
    """Epoch seconds, UTC, microsecond resolution."""
    chunk_id: bytes
    """16 bytes, different for every record."""
    requests: tuple[RequestMark, ...] = ()
    traces: tuple[bytes, ...] = ()
    """Of requests that are traced and have events in the record: their spans, 24 bytes each, trace id and span id."""


@dataclass(frozen=True)
class NewRecord:
    value: bytes
    """TFRecord-framed examples."""
    headers: RecordHeaders


@dataclass(frozen=True)
class RecordInfo:
    partition: int
    offset: int
    value_bytes: int
    headers: RecordHeaders


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    value: bytes
    headers: RecordHeaders
    fault: str = ""
    """Why its only event cannot be used, and is no Example: a record of a foreign topic (sourced_log.py)."""


class EventLog(Protocol):
    """Thread-safe. Every method raises Unavailable when the log cannot be reached, NotFound for an unknown topic."""

    def create_topic(self, topic: str, *, partition_count: int) -> None:
        """Makes the topic; does nothing when it exists with as many partitions. Raises Conflict: it exists with another
        number of partitions."""

    def partition_count(self, topic: str) -> int: ...

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        """Appends the records in order and returns their offsets, once all of them are durable.

        Concurrent calls share the cost of a flush (group commit). When it raises Unavailable, none, some or all of the
        records may be in the log; the caller finds out by their chunk ids. It returns or raises when no part of it is
        under way any more, which may take as long as the log is away (`ping` tells): a record whose append has ended
        does not appear later.
        """

    def start_position(self, topic: str) -> dict[int, int]:
        """The oldest offset still kept, per partition."""

    def end_position(self, topic: str) -> dict[int, int]:
        """The offset that the next record will get, per partition; everything below it is durable."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records with start <= offset < end, in order. Ends at `end`, never waits for what is not yet appended.

        Raises:
            DataLoss: `start` is below the oldest kept offset, or what is stored about a record fails its checksum. A
                damaged value comes as it is: the frames in it have their own checksums (tfrecord.py).
            InvalidInput: `end` is above the end position.
        """

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        """Like read, without the values (an adapter that can avoids reading them)."""

    def ping(self, *, timeout_seconds: float) -> None:
        """Raises Unavailable when the log does not answer in time. Cheap; waits for nothing that is under way."""

    def close(self) -> None: ...
