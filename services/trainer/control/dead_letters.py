"""Events that a round could not use, written to the stream's dead letters. The round's process names their places; the
events themselves come from the log, so that its code can neither invent an event nor write to another stream."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby, pairwise

from common.errors import InvalidInput, PermissionDenied
from common.eventlog.base import EventLog, Record
from common.eventlog.dead_letters import append_letters, dead_letter
from common.eventlog.tfrecord import cut_sound
from common.eventlog.topics import examples_topic
from common.registry.catalog import RoundPlan
from common.registry.forgotten import forgotten_of
from protos.example_pb2 import DeadLetter
from services.trainer.protocol.calls import Place

logger = logging.getLogger(__name__)
_MOST_REASON = 1_000
_BEFORE_ALL = Place(-1, -1, -1, "")


class RoundLetters:
    """Of a round: each event of its range at most once.

    Args:
        open_log: for each writing.
        written_by: as for append_letters.
    """

    def __init__(
        self, plan: RoundPlan, open_log: Callable[[], AbstractContextManager[EventLog]], *, written_by: str
    ) -> None:
        self._plan, self._open_log, self._written_by = plan, open_log, written_by
        self._last, self._named = _BEFORE_ALL, 0

    def write(self, places: Sequence[Place], *, most: int) -> int:
        """The number of letters; a place of which the log has no event, or a forgotten event, gives none.

        Args:
            places: in order, all of them behind those that were named before.
            most: events that the round has counted as unusable.

        Raises:
            InvalidInput, PermissionDenied: they are not, or not of the round's range; nothing is written.
            DataLoss, Unavailable: some letters may be in the log.
        """
        if not places:
            return 0
        self._check(places, most)
        written_by = f"{self._written_by}/{places[0].partition}:{places[0].offset}:{places[0].number}"
        self._last, self._named = places[-1], self._named + len(places)
        with self._open_log() as log:
            return append_letters(log, self._plan.stream, self._letters(log, places), written_by=written_by)

    def _check(self, places: Sequence[Place], most: int) -> None:
        if any(place[:3] >= other[:3] for place, other in pairwise((self._last, *places))):
            raise InvalidInput("places of unusable events are named in the order of the log, each once")
        if self._named + len(places) > most:
            raise InvalidInput(f"the round names {self._named + len(places)} unusable events, and has counted {most}")
        ends = {piece.partition: piece for piece in self._plan.ranges}
        for place in places:
            own = ends.get(place.partition)
            if own is None or not own.from_offset <= place.offset < own.to_offset:
                raise PermissionDenied(f"offset {place.offset} of partition {place.partition} is not the round's")

    def _letters(self, log: EventLog, places: Sequence[Place]) -> Iterator[DeadLetter]:
        topic, left_out = examples_topic(self._plan.stream), 0
        for partition, group in groupby(places, key=lambda place: place.partition):
            named: dict[int, dict[int, str]] = {}
            for place in group:
                named.setdefault(place.offset, {})[place.number] = place.reason
            for record in log.read(topic, partition, min(named), max(named) + 1):
                for letter in self._of_record(record, named.get(record.offset, {})):
                    left_out += letter.left_out_bytes > 0
                    yield letter
        if left_out:
            logger.warning(
                "dead letters without their event, which was too large",
                extra={"model": self._plan.model, "stream": self._plan.stream, "count": left_out},
            )

    def _of_record(self, record: Record, reasons: Mapping[int, str]) -> Iterator[DeadLetter]:
        if not reasons:
            return
        gone = forgotten_of(self._plan).rows_of(record.partition, record.offset, record.headers.example_count)
        found, damaged = cut_sound(record.value)
        frames = {frame.number: frame.content for frame in damaged}
        for number, reason in reasons.items():
            payload = frames.get(number, found.get(number))
            if payload is not None and number not in gone:
                yield dead_letter(
                    self._plan.stream, payload, reason[:_MOST_REASON], schema_version=self._plan.schema_version,
                    payload_format=DeadLetter.FRAME if number in frames else _format_of(payload),
                )  # fmt: skip


def _format_of(payload: bytes) -> DeadLetter.Format:
    """An Example begins with the tag of its only field, and never as JSON does."""
    return DeadLetter.JSON if payload[:1] in (b"{", b"[") else DeadLetter.EXAMPLE
