"""What judges a small round beside its own held-out examples: the newest that its ancestors have held out.

The plan names their ranges, so that each attempt and every rebuild is judged on the same examples. A process that goes
on to a further round keeps those that it has read, serialized, and reads only what is new. They are parsed and scored
as one block in the order of the log, so that it does not matter where they come from.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from common.eventlog.base import EventLog
from common.facts import present
from common.registry.catalog import JsonMap, OffsetRange, RoundPlan, ranges_as_json, ranges_from_json
from common.registry.forgotten import Forgotten, Piece
from common.registry.plan_notes import LABELS, WINDOW
from services.trainer.data.dataset import Reading
from services.trainer.data.event_windows import EventWindows
from services.trainer.families.port import Answering
from services.trainer.rounds.blocks import HeldOut, RoundData
from services.trainer.rounds.prepared import PreparedBlock, prepare

_MOST_BYTES = 64 * 1024 * 1024
"""Of examples that are kept; more are read again in each round."""


@dataclass
class Kept:
    """Stretches of the log that the process has read, with what is held out of them."""

    stretches: list[HeldOut] = field(default_factory=list)

    def of(self, ranges: Sequence[OffsetRange], data: RoundData, log: Reading) -> HeldOut:
        """What is held out of the ranges; reads those of them that are not kept.

        Raises:
            DataLoss: the log no longer has all of it, or it is damaged.
            InvalidInput: it ends before.
        """
        for piece in _places(part for kept in self.stretches for part in kept.ranges).kept_of(ranges):
            unread = RoundData(
                log, data.topic, (piece,), data.block_examples, data.schema, data.definition, data.split, data.readers
            )
            self.stretches += unread.all_held_out()
        return _within(ranges, self.stretches)

    def keep(self, ranges: Sequence[OffsetRange], own: Iterable[HeldOut]) -> None:
        """After a round: what the next may be judged on is its window, and what it has held out itself."""
        new = [*own]
        wanted, learned = _places(ranges), _places(piece for stretch in new for piece in stretch.ranges)
        before = [
            stretch
            for stretch in self.stretches
            if wanted.within(stretch.ranges) and not learned.within(stretch.ranges)
        ]
        self.stretches = before + new
        if sum(len(example) for stretch in self.stretches for example in stretch.examples) > _MOST_BYTES:
            self.stretches = []


@dataclass
class Window:
    """Of one round.

    Attributes:
        ranges: as the plan says.
        most: examples on which a round is judged, its own included, unless it has more.
        fault: why the ranges could not be read; the round is judged on its own examples then.
    """

    ranges: tuple[OffsetRange, ...]
    most: int
    kept: Kept
    data: RoundData
    log: Reading
    fault: str = ""
    chosen: int = 0

    @classmethod
    def of(cls, plan: RoundPlan, data: RoundData, log: EventLog, kept: Kept) -> "Window":
        ranges = ranges_from_json(plan.configuration.get(WINDOW, []))
        seen = data.log if LABELS in plan.configuration else log
        if events := data.definition.event_window:
            seen = EventWindows(log, events, data.schema, log.start_position(data.topic))
        return cls(ranges, data.definition.evaluation.window_examples, kept, data, seen)

    def blocks(self, model: Answering, own_count: int) -> Iterator[PreparedBlock]:
        """One with the definition's own examples, where it has some; else none where the round's are enough, or one
        with the newest of the ranges."""
        if own := self.data.definition.evaluation.examples:
            self.chosen = len(own)
            yield from self.data.judges(model)
            return
        wanted = self.most - own_count
        if not self.ranges or wanted <= 0:
            return
        try:
            found = self.kept.of(self.ranges, self.data, self.log)
        except (DataLoss, InvalidInput) as error:
            self.fault = error.message
            return
        newest = np.lexsort([found.places[name] for name in ("offset", "partition", "ingest_time")])[-wanted:]
        self.chosen = len(newest)
        if self.chosen:
            yield prepare(model, self.data.earlier([found.examples[row] for row in newest.tolist()]))

    def facts(self, *, own_count: int, count: int) -> JsonMap:
        """As common/registry/catalog.py says; `count`: of examples that candidate and parent were judged on."""
        is_own_set = bool(self.data.definition.evaluation.examples)
        return {
            "examples": count,
            "earlier": 0 if is_own_set else count - own_count,
            **present(own_set=count if is_own_set else None),
            "unusable": self.chosen - (count - own_count),
            "ranges": ranges_as_json(self.ranges) if self.chosen and not is_own_set else [],
        }


def _within(ranges: Sequence[OffsetRange], stretches: Iterable[HeldOut]) -> HeldOut:
    """Those examples of the stretches that lie in the ranges."""
    examples, places = list[bytes](), list[NDArray[np.void]]()
    for stretch in stretches:
        is_there = np.zeros(len(stretch.examples), np.bool_)
        for piece in ranges:
            partitions, offsets = stretch.places["partition"], stretch.places["offset"]
            is_there |= (partitions == piece.partition) & (piece.from_offset <= offsets) & (offsets < piece.to_offset)
        examples += [example for example, is_kept in zip(stretch.examples, is_there.tolist(), strict=True) if is_kept]
        places.append(stretch.places[is_there])
    return HeldOut(tuple(ranges), examples, np.concatenate(places))


def _places(ranges: Iterable[OffsetRange]) -> Forgotten:
    """The same, to be cut out of others."""
    return Forgotten(Piece(part.partition, part.from_offset, part.to_offset) for part in ranges)
