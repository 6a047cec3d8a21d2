"""Where a model's next round begins: pure functions of the registry's state and the log's start.

Ranges are contiguous along the chain of parents. `chain_end` is where the head of the line ended (production, or a
canary or held version after it); `begin` is where the next round may start; events between them are left out and
recorded in the plan; `judged_to` is how far events count as seen by the triggers, so that a rejected round is not
planned again before anything new has come.

    the last finished round            retry                              skip
    became the head                    begin = its end                    begin = its end
    was not promoted                   begin = its start: judged again    begin = its end; its stretch is left out
                                       with what followed
    was rolled back by hand            as the model says (Model.rolled_back): begin = the head's end, or behind what
                                       only versions learned that production was moved back from
    was undone to forget events        begin = the head's end: what is kept of what followed is new again
    failed                             as if it had never been planned    the same

A stretch that is judged again comes on top of the max_round_examples new examples. When it has grown past
max_round_examples itself, only its newest max_round_examples are judged again (`Backlog.newest`): the oldest, which
were judged at least twice by then, are left out. A new definition judges everything since the head's end anew.

Where triggers.on_failure is leave_out, a range on which max_failures rounds in a row have failed is left out: that of
the first of them, since later ones had grown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.definition.model import Definition
from common.errors import InvalidInput
from common.eventlog.base import Position
from common.late_labels import LateLabels
from common.registry.catalog import LEAVE_OUT, Model, OffsetRange, Round, RoundState, ranges_from_json
from common.registry.forgotten import NOTHING, Forgotten
from common.registry.plan_notes import SKIPPED, UPSTREAM_VERSION


@dataclass(frozen=True)
class ModelState:
    """A model as the registry knows it at a moment."""

    model: Model
    definition: Definition
    schema_version: int
    rounds: tuple[Round, ...]
    """The newest first, as many as were requested."""
    head_end: Mapping[int, int]
    """Version.end_position of the head; {} when there is none."""
    log_name: str = ""
    """Stream.log_name."""
    forgotten: Forgotten = NOTHING
    late_labels: LateLabels | None = None
    """Of the stream; None too where the model's rounds do not wait for them."""

    @property
    def head(self) -> int:
        """The version that the next round starts from; 0: none."""
        return self.model.head_version

    @property
    def rolled_back_to(self) -> Position:
        """Where the events end that only rolled-back versions have learned; {} where there are none."""
        offsets = self.model.rolled_back_now().get("end_position", {})
        return {int(partition): offset for partition, offset in offsets.items()}

    @property
    def leaves_rolled_back_out(self) -> bool:
        return self.model.rolled_back_now().get("events") == LEAVE_OUT

    @property
    def was_rolled_back(self) -> bool:
        """Whether the last finished round's version is among those that production was moved back from, or before."""
        newest = self.model.rolled_back_now().get("newest_version", 0)
        return self.last_finished is not None and self.last_finished.version <= newest

    @property
    def learns_again_in_order(self) -> bool:
        """Whether all behind the head is learned again, because that was the newest without forgotten events."""
        return bool(self.model.rolled_back_now().get("forgot")) and self.was_rolled_back

    @property
    def open_round(self) -> Round | None:
        return next((r for r in self.rounds if r.state in (RoundState.PLANNED, RoundState.RUNNING)), None)

    @property
    def upstream_before(self) -> int:
        """The version of triggers.upstream that was in production when the last round was planned that has not failed;
        0: none."""
        return int(self.noted_before(UPSTREAM_VERSION).get(self.definition.triggers.upstream, 0))

    def noted_before(self, key: str) -> Mapping[str, Any]:
        """The value of this key in the configuration of the last plan that has not failed; {} for none."""
        planned = next((found for found in self.rounds if found.state is not RoundState.FAILED), None)
        return planned.plan.configuration.get(key, {}) if planned else {}

    @property
    def last_finished(self) -> Round | None:
        """The newest that gave a version, under the definition of today."""
        done = next((found for found in self.rounds if found.state is RoundState.DONE), None)
        is_current = done is not None and done.plan.definition_digest == self.model.definition_digest
        return done if is_current else None


@dataclass(frozen=True)
class Beginning:
    """Positions name every partition of the topic."""

    chain_end: Position
    begin: Position
    judged_to: Position
    """Never before `begin`."""


def beginning_of(state: ModelState, log_start: Position) -> Beginning:
    """See the table above. Nothing begins before `log_start`: events that retention has removed are left out and
    recorded."""
    finished = None if state.learns_again_in_order else state.last_finished
    chain_end = {partition: state.head_end.get(partition, start) for partition, start in log_start.items()}
    if finished is not None and not state.head:
        chain_end |= _ends_of(finished, first=True)
    begin = judged_to = chain_end
    if finished is not None and finished.version != state.head:
        judged_to = chain_end | {p: max(o, chain_end.get(p, o)) for p, o in _ends_of(finished).items()}
        if finished.plan.parent_version == state.head:
            starts = {item.partition: item.from_offset for item in finished.plan.ranges}
            begin = chain_end | _ends_of(finished) | starts
        if state.definition.gate.on_reject == "skip" and not state.was_rolled_back:
            begin = judged_to
    if state.leaves_rolled_back_out:
        begin = _at_least(begin, state.rolled_back_to)
    begin = _at_least(_at_least(begin, _after_failures(state)), log_start)
    return Beginning(chain_end, begin, _at_least(judged_to, begin))


def _after_failures(state: ModelState) -> dict[int, int]:
    """Where the last of the rounds that have failed in a row leave off, if their events are to be left out."""
    triggers = state.definition.triggers
    streak: list[Round] = []
    for found in state.rounds[: state.model.consecutive_failures]:
        if found.state is not RoundState.FAILED:
            break
        streak.append(found)
    if triggers.on_failure != "leave_out" or not streak:
        return {}
    starts = _starts_of(streak[0])
    same = [found for found in streak if _starts_of(found) == starts]
    if len(same) < triggers.max_failures:
        return starts
    return {item.partition: item.to_offset for item in same[-1].plan.ranges}


def _starts_of(found: Round) -> dict[int, int]:
    return {item.partition: item.from_offset for item in found.plan.ranges}


def left_out(beginning: Beginning) -> tuple[OffsetRange, ...]:
    """The records between production's end and the beginning; every non-empty piece."""
    return tuple(
        OffsetRange(partition, offset, beginning.begin[partition])
        for partition, offset in sorted(beginning.chain_end.items())
        if offset < beginning.begin[partition]
    )


def from_chosen(beginning: Beginning, start: Mapping[int, int], log_end: Position) -> Beginning:
    """Raises InvalidInput for a position that is not in the log, or would be learned twice."""
    for partition, offset in start.items():
        end = log_end.get(partition)
        if end is None:
            raise InvalidInput(f"there is no partition {partition}; the log has {', '.join(map(str, sorted(log_end)))}")
        if not beginning.chain_end[partition] <= offset <= end:
            raise InvalidInput(
                f"partition {partition} can begin from {beginning.chain_end[partition]}, where the head of the model "
                f"ended, to {end}, where the log ends, not at {offset}; only `scratch` learns events again"
            )
    begin = {partition: start.get(partition, offset) for partition, offset in beginning.begin.items()}
    return Beginning(beginning.chain_end, begin, begin)


def _ends_of(finished: Round, *, first: bool = False) -> dict[int, int]:
    """Where the round's pieces (learned and left out) end, or with `first` where they begin, by partition."""
    pieces = sorted((*finished.plan.ranges, *ranges_from_json(finished.plan.configuration.get(SKIPPED, []))))
    if first:
        return {piece.partition: piece.from_offset for piece in reversed(pieces)}
    return {piece.partition: piece.to_offset for piece in pieces}


def _at_least(position: Position, floor: Position) -> dict[int, int]:
    return {partition: max(offset, floor.get(partition, offset)) for partition, offset in position.items()}
