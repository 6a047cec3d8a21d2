"""Dead letters: events that were refused, or that could not be trained on, each with its reason.

A letter is a DeadLetter message (protos/example.proto) in the topic deadletter.<stream>, TFRecord-framed as events are.
Every process that sets an event aside uses this module, so that there is one format and one bound. Only retention
removes letters.
"""

import base64
import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.topics import deadletter_topic
from protos.example_pb2 import DeadLetter

MAX_PAYLOAD_BYTES = 900 * 1024
"""A larger payload is left out and its size kept: a record must fit into Kafka's default of 1 MiB."""
_MAX_REASON_CHARACTERS = 4_000
_MAX_RECORD_LETTERS = 500
_MAX_RECORD_BYTES = 512 * 1024


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter and where it is: `index` counts within the record at `offset`."""

    offset: int
    index: int
    letter: DeadLetter

    def to_mapping(self) -> dict[str, Any]:
        """For people: JSON payloads as text, others as base64."""
        is_json = self.letter.format == DeadLetter.JSON
        payload = self.letter.payload
        return {
            "offset": self.offset,
            "index": self.index,
            "reason": self.letter.reason,
            "format": DeadLetter.Format.Name(self.letter.format).lower(),
            "payload": payload.decode(errors="backslashreplace") if is_json else base64.b64encode(payload).decode(),
            "left_out_bytes": self.letter.left_out_bytes,
            "schema_version": self.letter.schema_version,
            "refused_at": self.letter.refused_at_micros / 1e6,
        }


def dead_letter(
    stream: str, payload: bytes, reason: str, *, payload_format: DeadLetter.Format, schema_version: int
) -> DeadLetter:
    """A letter within the bounds: `left_out_bytes` is above 0 where the payload did not fit, and the reason says so."""
    letter = DeadLetter(
        stream=stream,
        payload=payload,
        format=payload_format,
        reason=reason[:_MAX_REASON_CHARACTERS],
        schema_version=schema_version,
        refused_at_micros=time.time_ns() // 1000,
    )
    if len(payload) > MAX_PAYLOAD_BYTES:
        letter.payload, letter.left_out_bytes = b"", len(payload)
        letter.reason += f" (its {len(payload)} bytes are not kept; at most {MAX_PAYLOAD_BYTES} are)"
    return letter


def append_letters(log: EventLog, stream: str, letters: Iterable[DeadLetter], *, written_by: str) -> int:
    """Appends the letters as records, and returns how many there were; nothing to append, nothing done.

    Args:
        written_by: names this writing, such as a round id. Chunk ids follow from it, so that a second writing after a
            crash differs from a first.

    Raises:
        Unavailable: some of the records may be in the log.
    """
    topic, count = deadletter_topic(stream), 0
    for number, part in enumerate(_by_record(letters)):
        if not number:
            log.create_topic(topic, partition_count=1)
        chunk_id = hashlib.blake2b(f"{written_by}/{number}".encode(), digest_size=16).digest()
        headers = RecordHeaders(part[0].schema_version, len(part), round(time.time(), 6), chunk_id)
        log.append(topic, 0, [NewRecord(tfrecord.frame([letter.SerializeToString() for letter in part]), headers)])
        count += len(part)
    return count


def read_letters(log: EventLog, stream: str, start: int, end: int) -> Iterator[StoredLetter]:
    """The letters in records [start, end), oldest first. Raises as EventLog.read."""
    for record in log.read(deadletter_topic(stream), 0, start, end):
        examples, _ = tfrecord.cut(record.value)
        for index, example in enumerate(examples):
            yield StoredLetter(record.offset, index, DeadLetter.FromString(example))


def newest_letters(
    log: EventLog, stream: str, limit: int, *, before: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """The newest `limit` letters, newest first, for people; `before`: those before this (offset, index). Raises as
    EventLog.read."""
    topic = deadletter_topic(stream)
    last = log.end_position(topic)[0]
    end = last if before is None else min(last, before[0] + 1)
    start = max(log.start_position(topic)[0], end - limit - 1)
    kept = (
        letter
        for letter in read_letters(log, stream, start, end)
        if before is None or (letter.offset, letter.index) < before
    )
    newest = deque(kept, maxlen=limit)
    return [letter.to_mapping() for letter in reversed(newest)]


def _by_record(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """In order; a record holds letters of a single schema version, up to a number and a size, at least one letter."""
    part: list[DeadLetter] = []
    part_bytes = 0
    for letter in letters:
        size = letter.ByteSize()
        is_full = len(part) == _MAX_RECORD_LETTERS or part_bytes + size > _MAX_RECORD_BYTES
        if part and (is_full or part[0].schema_version != letter.schema_version):
            yield part
            part, part_bytes = [], 0
        part.append(letter)
        part_bytes += size
    if part:
        yield part
