"""Ranges of ancestors that judge a round whose own held-out examples are few: the newest with enough.

The window follows the chain of parents, so no range of a rejected or rolled-back version is in it; a range that is
learned again is the next round's own. An ancestor that held out by another rule is passed over: today's rule may hold
out its learned events.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import NotFound
from common.eventlog.base import Position
from common.registry.catalog import JsonMap, OffsetRange, Round
from common.registry.client import RegistryClient
from services.trainer.plan.chain import ModelState

_MOST_ANCESTORS = 500
"""Versions that are looked at for a plan; each is read once."""
_KEPT = 10_000
_SPARE = 1.5
"""Of records beyond the share that is wanted of an ancestor's range: neither records nor held-out events lie evenly."""


@dataclass(frozen=True)
class _Ancestor:
    parent: int
    stream: str
    ranges: tuple[OffsetRange, ...]
    judging: float
    """How many of its events are held out and calibrate nothing."""
    rule: tuple[object, ...]


class Windows:
    """Not thread-safe: it remembers the registry's answers."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._known: dict[tuple[str, int], _Ancestor] = {}

    def ranges_of(
        self,
        configuration: JsonMap,
        *,
        model: str,
        parent: int,
        stream: str,
        schema_version: int,
        wanted: int,
        rounds: tuple[Round, ...],
        log_start: Position,
    ) -> tuple[OffsetRange, ...]:
        """Of a round with this configuration; joined where they touch, in order.

        Args:
            wanted: `evaluation.window_examples`; 0: no window.
            rounds: those that are known already.
        """
        rule, left = _rule(configuration, schema_version), float(wanted)
        found: list[OffsetRange] = []
        for _ in range(_MOST_ANCESTORS):
            if left <= 0 or not parent:
                break
            try:
                ancestor = self._ancestor(model, parent, rounds)
            except NotFound:
                break
            if ancestor.rule == rule and ancestor.stream == stream and ancestor.judging:
                share = min(1.0, _SPARE * left / ancestor.judging)
                found += filter(None, (_newest(piece, share, log_start) for piece in ancestor.ranges))
                left -= ancestor.judging
            parent = ancestor.parent
        return _joined(found)

    def learned(self, state: ModelState, parent: int, begins: Position) -> tuple[OffsetRange, ...]:
        """The ranges of the parent and its ancestors from these offsets on; joined where they touch, in order."""
        found: list[OffsetRange] = []
        for _ in range(_MOST_ANCESTORS if parent else 0):
            ancestor = self._ancestor(state.model.name, parent, state.rounds)
            pieces = [
                OffsetRange(piece.partition, max(piece.from_offset, begins.get(piece.partition, 0)), piece.to_offset)
                for piece in ancestor.ranges
            ]
            pieces = [piece for piece in pieces if piece.from_offset < piece.to_offset]
            found += pieces
            parent = ancestor.parent
            if not pieces or not parent:
                break
        return _joined(found)

    def _ancestor(self, model: str, number: int, rounds: tuple[Round, ...]) -> _Ancestor:
        key = (model, number)
        if key not in self._known:
            version = self._registry.get_version(model, number)
            made_by = next((round_ for round_ in rounds if round_.round_id == version.round_id), None)
            made_by = made_by or self._registry.get_round(model, version.round_id)
            configuration = made_by.plan.configuration
            calibrating = float(configuration.get("evaluation", {}).get("calibration_fraction", 0.0))
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = _Ancestor(
                version.parent_version,
                version.stream,
                version.ranges,
                version.events_held_out * (1 - calibrating),
                _rule(configuration, version.schema_version),
            )
        return self._known[key]


def _rule(configuration: JsonMap, schema_version: int) -> tuple[object, ...]:
    """By which events are held out. Which events are equal may change with the features of the schema."""
    evaluation: Mapping[str, object] = configuration.get("evaluation", {})
    split = evaluation.get("split", "content")
    names = ("holdout_fraction", "calibration_fraction", "split_by")
    rule = (configuration.get("seed"), split, *(evaluation.get(name) for name in names))
    return (*rule, schema_version) if split == "equal" else rule


def _newest(piece: OffsetRange, share: float, log_start: Position) -> OffsetRange | None:
    """The newest records of a range; None where the log has none of them."""
    begin = piece.to_offset - math.ceil(share * (piece.to_offset - piece.from_offset))
    begin = max(begin, log_start.get(piece.partition, piece.to_offset))
    return OffsetRange(piece.partition, begin, piece.to_offset) if begin < piece.to_offset else None


def _joined(pieces: list[OffsetRange]) -> tuple[OffsetRange, ...]:
    found: list[OffsetRange] = []
    for piece in sorted(pieces):
        if found and (found[-1].partition, found[-1].to_offset) == (piece.partition, piece.from_offset):
            piece = OffsetRange(piece.partition, found.pop().from_offset, piece.to_offset)
        found.append(piece)
    return tuple(found)
