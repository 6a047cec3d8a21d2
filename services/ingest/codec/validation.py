"""Events against a schema: which are taken, as framed bytes, and which are refused, with the reason.

The fast ways (columns.py, layout.py) decide nothing that ExampleCodec would decide otherwise; the examples that they do
not settle go through it alone. Long work gives way to other requests every few milliseconds.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from common.counted import counted
from common.errors import DataLoss, InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec, varint
from common.registry.catalog import Stream
from common.schema import Schema
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.layout import LockstepChecker, Passed

PayloadFormat = Literal["json", "example", "frame"]
_COLUMNAR_EVENTS, _COLUMNAR_BYTES = 512, 256 * 1024
_EVENTS_BETWEEN_PAUSES = 128


@dataclass(frozen=True)
class BadLine:
    """Stands in for an NDJSON line that is not JSON."""

    text: bytes
    reason: str


@dataclass(frozen=True)
class Rejected:
    """An event that is not taken, as it came."""

    index: int
    reason: str
    payload: bytes
    payload_format: PayloadFormat


@dataclass
class Checked:
    """The outcome for one request.

    Attributes:
        examples: serialized Examples of the events that passed, in order.
        framed: the same as TFRecord frames when the request came framed and nothing of it was changed.
        keys: the event key of each, when asked for.
    """

    examples: list[bytes] = field(default_factory=list)
    framed: bytes | None = None
    keys: list[bytes] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


class Validator:
    """For one schema version; belongs to one event loop."""

    def __init__(self, stream: Stream, *, max_event_bytes: int) -> None:
        self.schema_version = stream.schema_version
        self.schema = Schema.from_json(stream.schema_json)
        self._codec = ExampleCodec(self.schema, max_event_bytes=max_event_bytes)
        self._columns = ColumnarEncoder(self._codec)
        self._lockstep = LockstepChecker(self._codec)
        self._max_event_bytes = max_event_bytes

    async def check_json(self, events: Sequence[Any], *, with_keys: bool, body_bytes: int = 0) -> Checked:
        """`events` as parsed; what is no object is refused. `body_bytes`: of all of them; few large events go at
        once."""
        checked = Checked()
        at_once = max(1, min(_COLUMNAR_EVENTS, len(events) * _COLUMNAR_BYTES // max(1, body_bytes)))
        for first in range(0, len(events), at_once):
            part = events[first : first + at_once]
            examples = self._columns.encode(part)
            if examples is None or max(map(len, examples)) > self._max_event_bytes:
                try:
                    await self._check_each(checked, part, first, with_keys=with_keys)
                except RecursionError as error:  # the parser takes 1,024 levels, Python fewer
                    raise InvalidInput(f"an event after event {first} is nested too deeply to be read") from error
                continue
            checked.examples += examples
            if with_keys:
                checked.keys += [self._key_of_event(event) for event in part]
            await asyncio.sleep(0)
        return checked

    async def check_examples(
        self, framed: bytes, *, with_keys: bool, most: int | None = None, sets_aside: bool = False
    ) -> Checked:
        """`framed`: TFRecord frames of serialized Examples.

        Args:
            sets_aside: damaged frames are among the rejected, where there are sound frames.

        Raises:
            InvalidInput: the frames are cut short or damaged, or more than `most`.
        """
        try:
            examples, _ = tfrecord.cut(framed)
        except DataLoss as error:
            if sets_aside and (found := await self._check_sound(framed, with_keys=with_keys, most=most)):
                return found
            raise InvalidInput(f"the body is damaged, nothing of it is taken: {error.message}") from error
        check_count(len(examples), most)
        lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
        passed = self._lockstep.passed(framed, lengths)
        doubtful = np.flatnonzero(~passed.mask | (lengths > self._max_event_bytes)).tolist()
        keys = [framed[start:end] for start, end in _pairs(passed)] if with_keys else []
        if not doubtful:
            return Checked(examples=examples, framed=framed, keys=keys)
        rejected = await self._check_doubtful(examples, keys, doubtful)
        dropped = {item.index for item in rejected}
        kept = [index for index in range(len(examples)) if index not in dropped]
        return Checked(
            examples=[examples[index] for index in kept],
            keys=[keys[index] for index in kept] if with_keys else [],
            rejected=rejected,
        )

    async def _check_sound(self, framed: bytes, *, with_keys: bool, most: int | None) -> Checked | None:
        """As check_examples; None where no frame is sound."""
        sound, damaged = await asyncio.to_thread(tfrecord.cut_sound, framed)
        check_count(len(sound) + len(damaged), most)
        if not sound:
            return None
        numbers = [*sound]
        checked = await self.check_examples(tfrecord.frame([*sound.values()]), with_keys=with_keys)
        rejected = [replace(item, index=numbers[item.index]) for item in checked.rejected]
        rejected += [Rejected(damage.number, damage.reason, damage.content, "frame") for damage in damaged]
        return replace(checked, rejected=sorted(rejected, key=lambda item: item.index))

    async def _check_doubtful(self, examples: list[bytes], keys: list[bytes], doubtful: list[int]) -> list[Rejected]:
        """Puts the canonical form, and the key, in place of those that are valid after all; returns the others."""
        rejected: list[Rejected] = []
        for done, index in enumerate(doubtful):
            example = examples[index]
            try:
                examples[index] = self._fitting(self._codec.check(example))
                if keys:
                    keys[index] = self._codec.key_of(example)
            except InvalidInput as error:
                rejected.append(Rejected(index, error.message, example, "example"))
            if done % _EVENTS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
        return rejected

    async def _check_each(self, checked: Checked, events: Sequence[Any], first: int, *, with_keys: bool) -> None:
        for index, event in enumerate(events, start=first):
            try:
                if isinstance(event, BadLine):
                    raise InvalidInput(event.reason)
                checked.examples.append(self._fitting(self._codec.encode(event)))
            except InvalidInput as error:
                checked.rejected.append(Rejected(index, error.message, _as_json(event), "json"))
                continue
            if with_keys:
                checked.keys.append(self._key_of_event(event))
            if index % _EVENTS_BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)

    def _fitting(self, example: bytes) -> bytes:
        if len(example) > self._max_event_bytes:
            raise InvalidInput(
                f"the event takes {len(example)} bytes as an Example, expected at most {self._max_event_bytes}"
            )
        return example

    def _key_of_event(self, event: dict[str, Any]) -> bytes:
        column = self._codec.key_column
        value = self._codec.under_names(event).get(column.name) if column else None
        if column and value is None:
            value = column.feature.default
        if column and (isinstance(value, dict) or column.reads_words):
            (given,) = column.values_of(value)
            return given if isinstance(given, bytes) else varint(int(given))
        return value.encode() if isinstance(value, str) else varint(int(value or 0))


def check_count(event_count: int, most: int | None) -> None:
    """Raises InvalidInput: a request has more events than it may."""
    if most is not None and event_count > most:
        raise InvalidInput(f"the request has {counted(event_count, 'event')}, expected at most {most}")


def _pairs(passed: Passed) -> Iterable[tuple[int, int]]:
    return zip(passed.key_starts.tolist(), passed.key_ends.tolist(), strict=True)


def _as_json(event: object) -> bytes:
    if isinstance(event, BadLine):
        return event.text
    return json.dumps(event).encode()  # not orjson: NaN must stay NaN, and integers past 64 bits whole
