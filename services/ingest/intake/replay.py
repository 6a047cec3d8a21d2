"""Dead letters given another chance: checked under the newest schema, appended once however often this is asked for.

Each letter is a request with its own idempotency key. Whether it was replayed before is read from the whole log,
not only from the window of recent keys.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from common.errors import Conflict
from common.eventlog import tfrecord
from common.eventlog.base import EventLog
from common.eventlog.dead_letters import StoredLetter, read_letters
from protos.example_pb2 import DeadLetter
from services.ingest.codec import bodies
from services.ingest.codec.validation import Checked, Validator
from services.ingest.intake.accept import Intake
from services.ingest.intake.chunks import Appended, FramedEvents, Item
from services.ingest.intake.streams import OpenStream, check_takes_events
from services.ingest.once.keys import RequestKey

_RECORDS_PER_PAGE = 64
_NAMED_REFUSALS = 100


@dataclass
class ReplayReport:
    """What became of the dead letters.

    Attributes:
        refused: of those refused again, the first hundred: (offset, index, reason).
    """

    replayed: int = 0
    replayed_before: int = 0
    refused_count: int = 0
    refused: list[tuple[int, int, str]] = field(default_factory=list)

    def refuse(self, stored: StoredLetter, reason: str) -> None:
        self.refused_count += 1
        if len(self.refused) < _NAMED_REFUSALS:
            self.refused.append((stored.offset, stored.index, reason))

    def to_mapping(self) -> dict[str, Any]:
        named = ("offset", "index", "reason")
        return vars(self) | {"refused": [dict(zip(named, entry, strict=True)) for entry in self.refused]}


async def replay(intake: Intake, stream_name: str) -> ReplayReport:
    """Replays every letter that the log still keeps.

    Raises:
        NotFound: no such stream.
        Conflict: it is archived, or reads a foreign topic.
        Unavailable: the log or the registry does not answer; what was appended stays, asking again goes on.
    """
    stream = await intake.open(stream_name)
    schema = await intake.in_thread(intake.schemas.fetch, stream_name)
    if schema.archived:
        raise Conflict(f"stream {stream_name} is archived and takes no events; restore it first")
    validator = stream.validator(schema)
    check_takes_events(stream_name, validator)
    topic = stream.letters_topic
    start = (await intake.in_thread(intake.log.start_position, topic))[0]
    end = (await intake.in_thread(intake.log.end_position, topic))[0]
    done = await intake.in_thread(_replayed, intake.log, stream, start, end)
    report = ReplayReport()
    for first in range(start, end, _RECORDS_PER_PAGE):
        intake.watch.check()
        last = min(first + _RECORDS_PER_PAGE, end)
        letters = await intake.in_thread(
            lambda f, t: list(read_letters(intake.log, stream.log_name, f, t)), first, last
        )
        await _replay_page(stream, validator, letters, done, report)
    return report


async def _replay_page(
    stream: OpenStream, validator: Validator, letters: list[StoredLetter], done: set[bytes], report: ReplayReport
) -> None:
    waits: list[asyncio.Future[Appended]] = []
    for stored in letters:
        key = _replay_key(stream.log_name, stored.offset, stored.index, stored.letter.payload)
        if key.key_digest in done:
            report.replayed_before += 1
            continue
        if stored.letter.left_out_bytes:
            report.refuse(stored, f"its {stored.letter.left_out_bytes} bytes were not kept")
            continue
        if stored.letter.format == DeadLetter.FRAME:
            report.refuse(stored, "its bytes are damaged")
            continue
        checked = await _checked(validator, stored)
        if checked.rejected:
            report.refuse(stored, checked.rejected[0].reason)
            continue
        waits.append(_put(stream, validator, checked, key))
    for place in await asyncio.gather(*waits):
        report.replayed += place.added
        report.replayed_before += 1 - place.added


async def _checked(validator: Validator, stored: StoredLetter) -> Checked:
    if stored.letter.format == DeadLetter.JSON:
        return await validator.check_json([bodies.event_of_json(stored.letter.payload)], with_keys=True)
    return await validator.check_examples(tfrecord.frame([stored.letter.payload]), with_keys=True)


def _replay_key(stream: str, offset: int, index: int, payload: bytes) -> RequestKey:
    """The idempotency key under which a dead letter is replayed: always the same key."""
    return RequestKey.of(f"deadletter/{stream}/{offset}/{index}", payload)


def _put(stream: OpenStream, validator: Validator, checked: Checked, key: RequestKey) -> asyncio.Future[Appended]:
    partition = (
        stream.partition_of_event(checked.keys[0])
        if validator.schema.key
        else stream.partition_of_request(key.key_digest)
    )
    item = Item(FramedEvents.of(checked.examples), validator.schema_version, key)
    return stream.writers[partition].put(item)


def _replayed(log: EventLog, stream: OpenStream, start: int, end: int) -> set[bytes]:
    """Key digests of the letters in records [start, end) that the stream's topic already holds; blocks."""
    letters = {
        _replay_key(stream.log_name, info.offset, index, b"").key_digest
        for info in log.scan(stream.letters_topic, 0, start, end)
        for index in range(info.headers.example_count)
    }
    if not letters:
        return set()
    oldest, newest = log.start_position(stream.topic), log.end_position(stream.topic)
    return {
        mark.key_digest
        for partition in newest
        for info in log.scan(stream.topic, partition, oldest[partition], newest[partition])
        for mark in info.headers.requests
        if mark.key_digest in letters
    }
