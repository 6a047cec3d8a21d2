"""Records for tests: small, and each telling who wrote it and as which."""

import time
import uuid
from collections.abc import Sequence

from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, Record, RecordHeaders, RequestMark


def record(*examples: bytes, writer: str = "test", requests: int = 0) -> NewRecord:
    examples = examples or (f"{writer} says something".encode(),)
    marks = tuple(RequestMark(bytes([number]) * 16, b"body-----"[:8], number) for number in range(requests))
    traces = tuple(bytes([number + 1]) * 24 for number in range(requests))
    headers = RecordHeaders(3, len(examples), round(time.time(), 6), uuid.uuid4().bytes, marks, traces)
    return NewRecord(tfrecord.frame(examples), headers)


def read_all(log: EventLog, topic: str, partition: int = 0) -> list[Record]:
    start, end = log.start_position(topic)[partition], log.end_position(topic)[partition]
    return list(log.read(topic, partition, start, end))


def examples_of(records: Sequence[Record]) -> list[bytes]:
    """Every example in order, each checked against its checksum."""
    found = []
    for each in records:
        examples, _ = tfrecord.cut(each.value)
        assert len(examples) == each.headers.example_count
        found.extend(examples)
    return found
