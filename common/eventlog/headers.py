"""What both adapters do with record headers: refuse what cannot be stored, and lay out the request marks.

A request mark is 28 bytes, little-endian: 16s key_digest, 8s body_digest, u32 accepted_count. One of 2^32 - 1
events is a trace: its digests are a trace id and a span id. So a release that knows of no traces reads the same file.
"""

import math
import struct
from collections.abc import Iterable, Sequence

from common.counted import counted
from common.errors import DataLoss, InvalidInput
from common.eventlog.base import RecordHeaders, RequestMark
from common.process.tracing import LINK_BYTES, TRACEPARENT, link_of, traceparent_of

MARK_BYTES = 28
_MARK = struct.Struct("<16s8sI")
_MARKS_LIMIT = 100_000
MOST_TRACES = 16
_TRACE_ID_BYTES = 16
_IS_TRACE = (1 << 32) - 1


def pack_marks(marks: Sequence[RequestMark], traces: Sequence[bytes] = ()) -> bytes:
    packed = b"".join(_MARK.pack(mark.key_digest, mark.body_digest, mark.accepted_count) for mark in marks)
    return packed + b"".join(
        _MARK.pack(trace[:_TRACE_ID_BYTES], trace[_TRACE_ID_BYTES:], _IS_TRACE) for trace in traces
    )


def unpack_marks(data: bytes) -> tuple[tuple[RequestMark, ...], tuple[bytes, ...]]:
    """The marks, and the traces. Raises struct.error when `data` is not a whole number of marks."""
    marks = [RequestMark(*fields) for fields in _MARK.iter_unpack(data)]
    return (
        tuple(mark for mark in marks if mark.accepted_count != _IS_TRACE),
        tuple(mark.key_digest + mark.body_digest for mark in marks if mark.accepted_count == _IS_TRACE),
    )


def check_headers(headers: RecordHeaders) -> None:
    """Raises InvalidInput for headers that cannot be stored."""
    if len(headers.chunk_id) != 16:
        raise InvalidInput(f"chunk_id has {len(headers.chunk_id)} bytes; expected 16")
    for mark in headers.requests:
        if len(mark.key_digest) != 16 or len(mark.body_digest) != 8:
            raise InvalidInput(
                f"request mark has digests of {len(mark.key_digest)} and {len(mark.body_digest)} bytes; "
                "expected 16 and 8"
            )
    counts = (headers.example_count, *(mark.accepted_count for mark in headers.requests))
    if not all(0 <= count < _IS_TRACE for count in counts) or not 0 <= headers.schema_version < 1 << 31:
        raise InvalidInput(
            f"schema version {headers.schema_version} or one of the counts {counts} is negative or too large"
        )
    if len(headers.traces) > MOST_TRACES or any(len(trace) != LINK_BYTES for trace in headers.traces):
        raise InvalidInput(f"a record has at most {MOST_TRACES} traces of {LINK_BYTES} bytes")
    if len(headers.requests) > _MARKS_LIMIT:
        raise InvalidInput(f"record names {counted(len(headers.requests), 'request')}; at most {_MARKS_LIMIT} fit")


def as_pairs(headers: RecordHeaders) -> list[tuple[str, bytes]]:
    """As a Kafka message carries them."""
    return [
        ("schema_version", b"%d" % headers.schema_version),
        ("example_count", b"%d" % headers.example_count),
        ("ingest_time", repr(headers.ingest_time).encode()),
        ("chunk_id", headers.chunk_id),
        ("requests", pack_marks(headers.requests)),
        *((TRACEPARENT, traceparent_of(trace).encode()) for trace in headers.traces),
    ]


def from_pairs(pairs: Iterable[tuple[str, bytes | None]], *, place: str) -> RecordHeaders:
    """The inverse of as_pairs. Raises DataLoss: they are not an event record's: anybody may write into a topic of
    Kafka."""
    given = [(name, value) for name, value in pairs if value is not None]
    found = dict(given)
    traces = [link_of(value.decode("latin-1")) for name, value in given if name == TRACEPARENT]
    try:
        headers = RecordHeaders(
            schema_version=int(found["schema_version"]),
            example_count=int(found["example_count"]),
            ingest_time=float(found["ingest_time"]),
            chunk_id=found["chunk_id"],
            requests=unpack_marks(found["requests"])[0],
            traces=tuple(trace for trace in traces if trace is not None)[:MOST_TRACES],
        )
        check_headers(headers)
        if not math.isfinite(headers.ingest_time):
            raise ValueError(f"ingest_time is {headers.ingest_time}")
    except (KeyError, ValueError, struct.error, InvalidInput) as error:
        raise DataLoss(f"{place} has headers that are not an event record's: {error}") from error
    return headers
