"""The line of a version, from it down to the first: its versions, and the sums of their events.

A row for each version holds its parent, a pointer that jumps over several ancestors, and the sums over its line, so
that neither question reads the line: with 100,000 versions an ancestor is found in some thirty rows (Myers, "An
applicative random-access stack", 1983) and the sums in one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from sqlalchemy import Connection, insert, select

from common.registry.catalog import OffsetRange, RoundPlan
from common.registry.plan_notes import FORGOTTEN, LEFT_OUT, SKIPPED
from common.registry.wire import json_text
from services.registry.rounds.plans import RoundRow, parent_end_of, plan_of
from services.registry.store.tables import lineage, rounds, versions

_MOST_REASONS, _MOST_PROBLEMS = 50, 20
_BATCH = 1000
_OTHER = "other reasons"


@dataclass(frozen=True)
class Totals:
    """Examples of a line.

    Attributes:
        again: of the others, late labels' second examples, whose event is counted with its own round.
        reasons: {why examples were unusable: how many}, the most frequent first.
        problems: the first sentences about sums that do not add up.
    """

    versions: int = 0
    trained: int = 0
    held_out: int = 0
    unusable: int = 0
    left_out: int = 0
    again: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def accounted(self) -> int:
        return self.trained + self.held_out + self.unusable + self.left_out - self.again

    def with_version(
        self, number: int, plan: RoundPlan, draft: Mapping[str, Any], parent_end: Mapping[int, int]
    ) -> "Totals":
        """With another version on the line.

        Args:
            parent_end: {partition: offset} where the line ended before.
        """
        trained, held_out, unusable = (draft[f"events_{kind}"] for kind in ("trained", "held_out", "unusable"))
        stretches = left_out_of(number, plan, draft)
        reasons = dict(self.reasons)
        for reason, count in draft.get("unusable", {}).get("reasons", {}).items():
            known = reason if reason in reasons or len(reasons) < _MOST_REASONS else _OTHER
            reasons[known] = reasons.get(known, 0) + count
        within = sum(entry["examples"] for entry in stretches if entry["partition"] is None)
        again = draft.get("environment", {}).get("labels", {}).get("again", 0)
        accounted = trained + held_out + unusable + within - again
        problems = list(self.problems)
        if accounted != plan.example_count:
            problems.append(f"version {number} accounts for {accounted} of {plan.example_count} examples")
        problems += [*_gaps(number, plan, stretches, parent_end), *uncounted(stretches)]
        return Totals(
            self.versions + 1, self.trained + trained, self.held_out + held_out, self.unusable + unusable,
            self.left_out + sum(entry["examples"] or 0 for entry in stretches), self.again + again,
            reasons, tuple(problems[:_MOST_PROBLEMS]),
        )  # fmt: skip


def left_out_of(number: int, plan: RoundPlan, draft: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As an account lists it: the plan's left-out ranges, then the rest after the round's early end, which has no
    place."""
    pieces = plan.configuration.get(LEFT_OUT)
    if pieces is None:  # a plan of before has no counts
        pieces = [{**piece, "examples": None, "reason": "unknown"} for piece in plan.configuration.get(SKIPPED, [])]
    stretches = [{**entry, "version": number} for entry in pieces]
    untouched = draft.get("environment", {}).get("training", {}).get("left_out", {"examples": 0})
    if untouched["examples"]:
        nowhere = dict.fromkeys(("partition", "from_offset", "to_offset"))
        stretches.append({**nowhere, **untouched, "version": number})
    return stretches


def uncounted(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"partition {entry['partition']} [{entry['from_offset']}, {entry['to_offset']}) was left out and not counted"
        for entry in entries
        if entry["examples"] is None and entry["reason"] != "retention"
    ]


def _gaps(
    number: int, plan: RoundPlan, stretches: Iterable[Mapping[str, Any]], parent_end: Mapping[int, int]
) -> list[str]:
    """The gaps between the pieces of a version, and between its parent's end and them. Forgotten events lie within
    the ranges."""
    placed = [piece for piece in stretches if piece["partition"] is not None and piece["reason"] != FORGOTTEN]
    gone = [OffsetRange(piece["partition"], piece["from_offset"], piece["to_offset"]) for piece in placed]
    pieces = [*plan.ranges, *gone]
    found, ends = [], dict(parent_end)
    for piece in sorted(pieces):
        before = ends.get(piece.partition, piece.from_offset)
        if before != piece.from_offset:
            found.append(f"version {number}, partition {piece.partition}: {before} is followed by {piece.from_offset}")
        ends[piece.partition] = piece.to_offset
    return found


@dataclass(frozen=True)
class _Place:
    """Of a version: 0 is none."""

    version: int = 0
    parent: int = 0
    depth: int = 0
    jump: int = 0


def add_to_line(
    connection: Connection, number: int, plan: RoundPlan, draft: Mapping[str, Any], parent_end: Mapping[int, int]
) -> None:
    """Stores the version's row; its parent's is there."""
    parent = _place(connection, plan.model, plan.parent_version)
    over = _place(connection, plan.model, parent.jump)
    far = _place(connection, plan.model, over.jump)
    jumps_far = bool(parent.jump) and parent.depth - over.depth == over.depth - far.depth
    totals = totals_of(connection, plan.model, parent.version).with_version(number, plan, draft, parent_end)
    connection.execute(
        insert(lineage).values(
            model=plan.model, version=number, parent_version=parent.version, depth=parent.depth + 1,
            jump_version=far.version if jumps_far else parent.version, accounted=totals.accounted,
            leaves_out=bool(left_out_of(number, plan, draft)), totals_json=json_text(asdict(totals)),
        )
    )  # fmt: skip


def totals_of(connection: Connection, model: str, version: int) -> Totals:
    """Zeros where there is no such version."""
    query = select(lineage.c.totals_json).where(lineage.c.model == model, lineage.c.version == version)
    text = connection.execute(query).scalar_one_or_none()
    if text is None:
        return Totals()
    found = Totals(**json.loads(text))
    return replace(found, problems=tuple(found.problems))


def is_on_line(connection: Connection, model: str, version: int, *, of: int) -> bool:
    """Whether `version` is `of` or one of its ancestors."""
    return bool(version) and ancestor_at_most(connection, model, of, version) == version


def ancestor_at_most(connection: Connection, model: str, version: int, bound: int) -> int:
    """The newest on the version's line whose number is at most `bound`; 0 for none."""
    place = _place(connection, model, version)
    while place.version > bound:
        place = _place(connection, model, place.jump if place.jump > bound else place.parent)
    return place.version


def first_of_line(connection: Connection, model: str, version: int) -> int:
    """The oldest ancestor, which continues nothing; 0 where there is no such version."""
    place = _place(connection, model, version)
    while place.parent:
        place = _place(connection, model, place.jump or place.parent)
    return place.version


def shared_ancestor(connection: Connection, model: str, first: int, second: int) -> int:
    """The newest version that is on both lines; 0 where there is none."""
    left, right = (_place(connection, model, version) for version in (first, second))
    if left.depth < right.depth:
        left, right = right, left
    while left.depth > right.depth:
        far = _place(connection, model, left.jump)
        left = far if far.depth >= right.depth else _place(connection, model, left.parent)
    while left.version != right.version:  # equal depths jump equally far
        is_below = left.jump == right.jump
        left, right = (_place(connection, model, at.parent if is_below else at.jump) for at in (left, right))
    return left.version


def _place(connection: Connection, model: str, version: int) -> _Place:
    if not version:
        return _Place()
    query = select(lineage.c.version, lineage.c.parent_version, lineage.c.depth, lineage.c.jump_version)
    row = connection.execute(query.where(lineage.c.model == model, lineage.c.version == version)).one_or_none()
    return _Place() if row is None else _Place(*row)


def complete(connection: Connection) -> None:
    """Adds the rows of versions that a registry registered which kept none."""
    joined = (lineage.c.model == versions.c.model) & (lineage.c.version == versions.c.version)
    query = (
        select(versions.c.model, versions.c.version, versions.c.draft_json, rounds.c.plan_json)
        .join(rounds, rounds.c.round_id == versions.c.round_id)
        .join(lineage, joined, isouter=True)
        .where(lineage.c.version.is_(None))
        .order_by(versions.c.model, versions.c.version)
        .limit(_BATCH)
    )
    while rows := connection.execute(query).all():
        for row in rows:
            plan = plan_of(cast(RoundRow, row))
            add_to_line(connection, row.version, plan, json.loads(row.draft_json), parent_end_of(connection, plan))
