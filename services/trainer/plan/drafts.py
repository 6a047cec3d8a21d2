"""The plan of a round, once its beginning and end are decided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from common.definition.joined_labels import JoinedLabels
from common.errors import HeadraceError, NotFound
from common.eventlog.base import EventLog, Position
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.topics import examples_topic, labels_topic, predictions_topic
from common.registry.catalog import Decision, OffsetRange, RoundPlan, ranges_as_json
from common.registry.client import RegistryClient
from common.registry.plan_notes import (
    EVENTS_FROM,
    FORGOTTEN,
    FROM_SCRATCH,
    HEAD_BEFORE,
    LABELS,
    LEFT_OUT,
    SKEW,
    SKIPPED,
    WINDOW,
    without_notes,
)
from services.trainer.plan import lineage
from services.trainer.plan.backlog import Stretch
from services.trainer.plan.chain import Beginning, ModelState, left_out
from services.trainer.plan.tracked import LogBounds
from services.trainer.plan.triggers import MANUAL, Fire
from services.trainer.plan.window import Windows
from services.trainer.settings import TrainerSettings

_KEPT_COUNTS = 10_000
Count = Callable[[str, OffsetRange], int | None]
"""Examples in a range of a topic."""
_SLACK_SECONDS = 60.0
"""Records of a partition lie in the order of their times but for the differences of clocks."""
_SCRATCH = "scratch"


class Drafts:
    """Writes plans. Not thread-safe: it remembers its counts and the registry's answers."""

    def __init__(self, settings: TrainerSettings, registry: RegistryClient, log: SourcedLog) -> None:
        self._settings, self._registry, self._log = settings, registry, log
        self._code_digest = lineage.code_digest()
        self._count = counting(log)
        self._windows = Windows(registry)
        self._reasons: dict[tuple[str, int], str] = {}

    def forget_counts(self) -> None:
        """Of ranges: a stream with the name of a deleted stream has offsets of its own."""
        self._count, self._windows = counting(self._log), Windows(self._registry)

    def plan_of(
        self,
        state: ModelState,
        log: LogBounds,
        beginning: Beginning,
        stretch: Stretch,
        fired: Fire,
        *,
        requested: Mapping[str, Any] | None,
        notes: Mapping[str, Any],
    ) -> RoundPlan:
        """
        Args:
            requested: author and reason of a round by hand; None where a trigger fired.
            notes: further records of the plan.
        """
        configuration = lineage.configuration_of(state.definition, self._settings)
        start = (requested or {}).get("from", "head")
        sequence, parent = state.model.round_sequence + 1, 0 if start == _SCRATCH else state.head
        notes = {**notes, **self._before_it(state, log, beginning, start), **self._within_it(state, log, stretch)}
        if fired.trigger == MANUAL:
            notes["requested"] = dict(requested or {})
        if forgotten := self.forgotten_of(state, log, stretch.ranges):
            notes[LEFT_OUT] = [*notes.get(LEFT_OUT, []), *forgotten]
        window = self._windows.ranges_of(
            configuration, model=state.model.name, parent=parent, stream=state.model.stream,
            schema_version=state.schema_version, wanted=state.definition.evaluation.window_examples,
            rounds=state.rounds, log_start=log.start,
        )  # fmt: skip
        window = state.forgotten.kept_of(window)
        notes |= {WINDOW: ranges_as_json(window)} if window else {}
        if labels := note_of(
            state, self._registry, self._log, self._windows, parent=parent, ranges=stretch.ranges, window=window
        ):
            notes[LABELS] = labels
        if state.definition.gate.max_skew is not None and self._has_topic(predictions_topic(state.model.name)):
            notes[SKEW] = True
        return RoundPlan(
            model=state.model.name,
            sequence=sequence,
            parent_version=parent,
            stream=state.model.stream,
            schema_version=state.schema_version,
            ranges=stretch.ranges,
            definition_digest=state.model.definition_digest,
            configuration=configuration | notes,
            configuration_digest=lineage.digest_of(without_notes(configuration | notes)),
            code_digest=self._code_digest,
            seed=lineage.seed_of(state.definition, sequence),
            example_count=stretch.example_count,
            trigger=fired.trigger,
            last_event_at=stretch.last_event_at,
        )

    def _before_it(self, state: ModelState, log: LogBounds, beginning: Beginning, start: object) -> dict[str, Any]:
        notes: dict[str, Any] = {FROM_SCRATCH: True, HEAD_BEFORE: state.head} if start == _SCRATCH else {}
        if skipped := left_out(beginning):
            notes[SKIPPED] = ranges_as_json(skipped)
            notes[LEFT_OUT] = self.left_out_of(state, log, beginning, reason="" if start == "head" else "chosen")
        return notes

    def _within_it(self, state: ModelState, log: LogBounds, stretch: Stretch) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        read = stretch.ranges
        if events := state.definition.event_window:
            read = _with_events_before(read, events.lookback_records, log.start)
            notes[EVENTS_FROM] = {str(piece.partition): piece.from_offset for piece in read}
        if forgotten := state.forgotten.within(read):
            notes[FORGOTTEN] = forgotten.as_json()
        return notes

    def _has_topic(self, topic: str) -> bool:
        try:
            return self._log.partition_count(topic) > 0
        except NotFound:
            return False

    def left_out_of(
        self, state: ModelState, log: LogBounds, beginning: Beginning, *, reason: str = ""
    ) -> list[dict[str, Any]]:
        """Events before the beginning that no round takes, as the account shows it; without a reason, as the chain
        of versions has it."""
        entries: list[dict[str, Any]] = []
        rolled_back_to = state.rolled_back_to if state.leaves_rolled_back_out and not reason else {}
        for piece in left_out(beginning):
            end = min(max(piece.from_offset, rolled_back_to.get(piece.partition, 0)), piece.to_offset)
            parts = [(OffsetRange(piece.partition, piece.from_offset, end), "rollback")]
            parts.append((OffsetRange(piece.partition, end, piece.to_offset), reason))
            for part, why in parts:
                if part.from_offset < part.to_offset:
                    topic = examples_topic(state.model.stream)
                    entries += entries_of([part], self._count, topic, log.start, why or self._reason_of(state))
        return entries

    def forgotten_of(self, state: ModelState, log: LogBounds, ranges: Iterable[OffsetRange]) -> list[dict[str, Any]]:
        """The forgotten events of these ranges, as the account shows it: single events of a partition as a
        single entry."""
        pieces = state.forgotten.within(ranges).pieces
        whole = [OffsetRange(piece.partition, piece.from_offset, piece.to_offset) for piece in pieces if not piece.rows]
        topic = examples_topic(state.model.stream)
        entries = entries_of(whole, self._count, topic, log.start, FORGOTTEN)
        for partition in sorted({piece.partition for piece in pieces if piece.rows}):
            single = [piece for piece in pieces if piece.rows and piece.partition == partition]
            entries.append(
                {"partition": partition, "from_offset": single[0].from_offset, "to_offset": single[-1].to_offset,
                 "examples": sum(len(piece.rows) for piece in single), "reason": FORGOTTEN}
            )  # fmt: skip
        return entries

    def _reason_of(self, state: ModelState) -> str:
        """Why events before the next round's beginning are left out."""
        triggers = state.definition.triggers
        if triggers.on_failure == "leave_out" and state.model.consecutive_failures >= triggers.max_failures:
            return "failed"
        return self.fate_of_finished(state)

    def fate_of_finished(self, state: ModelState) -> str:
        """Why no version holds the events of the last finished round; read once per round."""
        finished = state.last_finished
        if finished is None or finished.version == state.head:
            return "retention"
        key = (state.model.name, finished.version)
        if key not in self._reasons:
            version = self._registry.get_version(*key)
            kinds = {Decision.PROMOTE: "rollback", Decision.CANARY: "canary", Decision.HOLD: "held"}
            self._reasons[key] = kinds.get(version.verdict.decision, "rejection")
        return self._reasons[key]


def _with_events_before(ranges: Iterable[OffsetRange], records: int, start: Position) -> tuple[OffsetRange, ...]:
    """The ranges, each beginning this number of records earlier, or at the log's first record."""
    return tuple(
        replace(
            piece, from_offset=max(piece.from_offset - records, min(start.get(piece.partition, 0), piece.from_offset))
        )
        for piece in ranges
    )


def note_of(
    state: ModelState, registry: RegistryClient, log: EventLog, windows: Windows, *, parent: int,
    ranges: Sequence[OffsetRange], window: Sequence[OffsetRange],
) -> dict[str, Any]:  # fmt: skip
    """The labels that a round joins to its events (services/trainer/data/labelling.py does): {"key", "wait_seconds",
    "trains_late", "labels": ranges of their topic, "new": {partition: offset from which on no earlier round of the line
    has looked for late labels}, "events": ranges of earlier rounds, "late_weight": where it is not 1}; {} where the
    model's definition joins no labels. Raises Unavailable, DataLoss."""
    late, joined = state.late_labels, state.definition.labels
    if late is None or joined is None:
        return {}
    events, topic = examples_topic(state.model.stream), labels_topic(state.model.stream)
    try:
        starts, ends = log.start_position(topic), log.end_position(topic)
    except NotFound:  # no label has come yet
        starts, ends = {}, {}
    before = _noted_by(state, registry, parent)
    new = {part: int(before.get(str(part), starts[part] if before else end)) for part, end in ends.items()}
    earliest = min(_first_times(log, events, (*ranges, *window)), default=0.0)
    left = [OffsetRange(partition, offset, ends[partition]) for partition, offset in new.items()]
    learned: tuple[OffsetRange, ...] = ()
    if since := min(_first_times(log, topic, left), default=0.0):
        oldest = since - 2 * late.wait_seconds
        begins = {
            partition: _first_since(log, events, partition, start, log.end_position(events)[partition], oldest)
            for partition, start in log.start_position(events).items()
        }
        learned = state.forgotten.kept_of(windows.learned(state, parent, begins))
        earliest = min(earliest, oldest)
    pieces = (
        OffsetRange(part, _first_since(log, topic, part, starts[part], end, earliest - late.wait_seconds), end)
        for part, end in sorted(ends.items())
    )
    weighed = {"late_weight": joined.late_weight} if joined.late_weight != JoinedLabels.late_weight else {}
    return {
        "key": late.key, "wait_seconds": late.wait_seconds, "trains_late": joined.trains_late,
        "labels": ranges_as_json(tuple(piece for piece in pieces if piece.from_offset < piece.to_offset)),
        "new": {str(partition): offset for partition, offset in new.items()}, "events": ranges_as_json(learned),
        "ends": {str(partition): offset for partition, offset in ends.items()}, **weighed,
    }  # fmt: skip


def _noted_by(state: ModelState, registry: RegistryClient, parent: int) -> Mapping[str, Any]:
    """How far the parent's round had read labels; {} where it read none."""
    made_by = next((round_ for round_ in state.rounds if round_.version == parent), None) if parent else None
    if parent and made_by is None:
        made_by = registry.get_round(state.model.name, registry.get_version(state.model.name, parent).round_id)
    found: Mapping[str, Any] = made_by.plan.configuration.get(LABELS, {}).get("ends", {}) if made_by else {}
    return found


def _first_times(log: EventLog, topic: str, ranges: Iterable[OffsetRange]) -> Iterable[float]:
    for piece in ranges:
        if piece.from_offset < piece.to_offset:
            first = next(iter(log.scan(topic, piece.partition, piece.from_offset, piece.to_offset)), None)
            if first is not None:
                yield first.headers.ingest_time


def _first_since(log: EventLog, topic: str, partition: int, start: int, end: int, at: float) -> int:
    """Before this offset of [start, end) no record came at `at` or later, but for clocks that differ."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        found = next(iter(log.scan(topic, partition, middle, high)), None)
        if found is not None and found.headers.ingest_time < at - _SLACK_SECONDS:
            low = found.offset + 1
        else:
            high = middle
    return low


def counting(log: EventLog) -> Count:
    """Counts the examples of a range once; None where the log cannot give them."""

    @lru_cache(_KEPT_COUNTS)
    def count(topic: str, piece: OffsetRange) -> int | None:
        try:
            records = log.scan(topic, piece.partition, piece.from_offset, piece.to_offset)
            return sum(record.headers.example_count for record in records)
        except HeadraceError:
            return None

    return count


def entries_of(
    pieces: Iterable[OffsetRange], count: Count, topic: str, log_start: Position, reason: str
) -> list[dict[str, Any]]:
    """As a plan's `left_out` (common/registry/catalog.py): the part that retention has removed is a piece of its
    own."""
    entries = []
    for piece in pieces:
        kept_from = min(max(piece.from_offset, log_start.get(piece.partition, 0)), piece.to_offset)
        gone = OffsetRange(piece.partition, piece.from_offset, kept_from)
        kept = OffsetRange(piece.partition, kept_from, piece.to_offset)
        for part, why in ((gone, "retention"), (kept, reason)):
            if part.from_offset < part.to_offset:
                examples = count(topic, part) if part is kept else None
                entries.append({**asdict(part), "examples": examples, "reason": why})
    return entries
