"""Ranges are contiguous along the chain of parents: no event is left out or learned twice, unless the plan says so."""

from collections.abc import Mapping
from itertools import pairwise

from common.errors import Conflict, InvalidInput
from common.registry.catalog import OffsetRange, RoundPlan, ranges_from_json
from common.registry.forgotten import Forgotten, forgotten_of, read_ranges
from common.registry.plan_notes import SKIPPED, WINDOW


def check_contiguous(plan: RoundPlan, parent_end: Mapping[int, int]) -> None:
    """Passes when learned and skipped ranges together go on, per partition, exactly where the parent ended.

    A partition that the parent's chain has never seen may start anywhere: only the planner knows the log's start.

    Raises:
        InvalidInput: there is no range, or a range is empty, backwards or negative.
        Conflict: a range overlaps another, leaves a gap, or does not start at the parent's end.
    """
    if not plan.ranges:
        raise InvalidInput(f"round {plan.sequence} of {plan.model} has no ranges")
    for partition, pieces in _by_partition(plan).items():
        for piece in pieces:
            _check_piece(piece)
        for before, after in pairwise(pieces):
            if before.to_offset != after.from_offset:
                fault = "overlap" if before.to_offset > after.from_offset else "leave a gap"
                raise Conflict(f"{_shown(before)} and {_shown(after)} {fault}")
        start = parent_end.get(partition)
        if start is not None and pieces[0].from_offset != start:
            parent = f"version {plan.parent_version} of {plan.model}"
            raise Conflict(f"{_shown(pieces[0])} does not start at {start}, where {parent} ended")


def check_forgotten(plan: RoundPlan, known: Forgotten) -> None:
    """Raises Conflict: the plan would learn, or be judged on, events that the model has forgotten since its draft."""
    window = ranges_from_json(plan.configuration.get(WINDOW, []))
    if known.within(read_ranges(plan)).pieces != forgotten_of(plan).pieces or known.within(window):
        raise Conflict(
            f"round {plan.sequence} of {plan.model} does not leave out the events that the model has forgotten"
        )


def end_position(plan: RoundPlan, parent_end: Mapping[int, int]) -> dict[int, int]:
    """{partition: offset} where a round starts whose parent came of this plan."""
    ends = {partition: pieces[-1].to_offset for partition, pieces in _by_partition(plan).items()}
    return dict(sorted({**parent_end, **ends}.items()))


def _by_partition(plan: RoundPlan) -> dict[int, list[OffsetRange]]:
    skipped = ranges_from_json(plan.configuration.get(SKIPPED, []))
    pieces: dict[int, list[OffsetRange]] = {}
    for piece in sorted((*plan.ranges, *skipped)):
        pieces.setdefault(piece.partition, []).append(piece)
    return pieces


def _check_piece(piece: OffsetRange) -> None:
    if piece.partition < 0 or piece.from_offset < 0:
        raise InvalidInput(f"{_shown(piece)} is negative")
    if piece.from_offset >= piece.to_offset:
        raise InvalidInput(f"{_shown(piece)} is empty")


def _shown(piece: OffsetRange) -> str:
    return f"partition {piece.partition} [{piece.from_offset}, {piece.to_offset})"
