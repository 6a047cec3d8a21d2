"""Examples that could not be trained on go to deadletter.<stream>, each with its reason."""

import hashlib
import time
from collections.abc import Sequence

from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.tfrecord import frame
from protos import example_pb2

_LETTERS_PER_RECORD = 500


def write_dead_letters(
    log: EventLog, stream: str, unusable: Sequence[tuple[bytes, str]], *, schema_version: int, round_id: str
) -> None:
    """Appends (serialized example, reason) pairs; nothing to append, nothing done.

    A crash before this leaves them unwritten; they are counted with the version either way. Chunk ids follow from the
    round, so that a second writing can be told from a first.
    """
    topic = f"deadletter.{stream}"
    if unusable:
        log.create_topic(topic, partition_count=1)
    now = time.time()
    for start in range(0, len(unusable), _LETTERS_PER_RECORD):
        part = unusable[start : start + _LETTERS_PER_RECORD]
        letters = [
            example_pb2.DeadLetter(
                stream=stream,
                payload=payload,
                format=example_pb2.DeadLetter.EXAMPLE,
                reason=reason,
                schema_version=schema_version,
                refused_at_micros=int(now * 1e6),
            ).SerializeToString()
            for payload, reason in part
        ]
        chunk_id = hashlib.blake2b(f"{round_id}/{start}".encode(), digest_size=16).digest()
        headers = RecordHeaders(schema_version, len(letters), now, chunk_id)
        log.append(topic, 0, [NewRecord(frame(letters), headers)])
