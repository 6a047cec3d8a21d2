"""Refused events in deadletter.<stream>: how they are written and read back. Only retention removes them."""

import base64
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.eventlog import tfrecord
from common.eventlog.base import EventLog
from protos.example_pb2 import DeadLetter
from services.ingest.codec.validation import PayloadFormat, Rejected
from services.ingest.intake.streams import deadletter_topic
from services.ingest.once.keys import RequestKey

_KEPT_PAYLOAD_BYTES = 512 * 1024
_FORMATS: dict[PayloadFormat, DeadLetter.Format] = {"json": DeadLetter.JSON, "example": DeadLetter.EXAMPLE}


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter and where it is: `index` counts within the record at `offset`."""

    offset: int
    index: int
    letter: DeadLetter

    def request_key(self) -> RequestKey:
        return replay_key(self.letter.stream, self.offset, self.index, self.letter.payload)

    def to_mapping(self) -> dict[str, Any]:
        """For people: JSON payloads as text, Examples as base64."""
        is_json = self.letter.format == DeadLetter.JSON
        payload = self.letter.payload
        return {
            "offset": self.offset,
            "index": self.index,
            "reason": self.letter.reason,
            "format": "json" if is_json else "example",
            "payload": payload.decode(errors="backslashreplace") if is_json else base64.b64encode(payload).decode(),
            "schema_version": self.letter.schema_version,
            "refused_at": self.letter.refused_at_micros / 1e6,
        }


def dead_letter(stream: str, rejected: Rejected, schema_version: int) -> bytes:
    """A serialized DeadLetter; a payload too large for a log record is left out, and the reason says so."""
    payload, reason = rejected.payload, rejected.reason
    if len(payload) > _KEPT_PAYLOAD_BYTES:
        reason += f" (its {len(payload)} bytes are not kept; at most {_KEPT_PAYLOAD_BYTES} are)"
        payload = b""
    letter = DeadLetter(
        stream=stream,
        payload=payload,
        format=_FORMATS[rejected.payload_format],
        reason=reason,
        schema_version=schema_version,
        refused_at_micros=time.time_ns() // 1000,
    )
    return letter.SerializeToString()


def replay_key(stream: str, offset: int, index: int, payload: bytes) -> RequestKey:
    """The idempotency key under which a dead letter is replayed: always the same one."""
    return RequestKey.of(f"deadletter/{stream}/{offset}/{index}", payload)


def read_letters(log: EventLog, stream: str, start: int, end: int) -> Iterator[StoredLetter]:
    """The letters in records [start, end), oldest first. Raises as EventLog.read."""
    for record in log.read(deadletter_topic(stream), 0, start, end):
        examples, _ = tfrecord.cut(record.value)
        for index, example in enumerate(examples):
            yield StoredLetter(record.offset, index, DeadLetter.FromString(example))


def newest_letters(log: EventLog, stream: str, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` letters, newest first, for people."""
    topic = deadletter_topic(stream)
    end = log.end_position(topic)[0]
    start = max(log.start_position(topic)[0], end - limit)
    newest = deque((letter.to_mapping() for letter in read_letters(log, stream, start, end)), maxlen=limit)
    return list(reversed(newest))
