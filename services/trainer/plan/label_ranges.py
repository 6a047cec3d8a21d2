"""Which stretches of `labels.<stream>` a round joins to its events, and which earlier events its late labels may be of
(`labels` of model.yaml; services/trainer/data/labelling.py joins them).

The plan's note: {"key", "wait_seconds", "trains_late", "labels": ranges of the labels' topic, "new": {partition: offset
from which on no earlier round of the line has looked for late labels}, "events": ranges of earlier rounds,
"late_weight": where it is not 1}.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.definition.joined_labels import JoinedLabels
from common.errors import NotFound
from common.eventlog.base import EventLog
from common.eventlog.topics import examples_topic, labels_topic
from common.registry.catalog import OffsetRange, ranges_as_json
from common.registry.client import RegistryClient
from common.registry.plan_notes import LABELS
from services.trainer.plan.chain import ModelState
from services.trainer.plan.window import Windows

_SLACK_SECONDS = 60.0
"""Records of a partition lie in the order of their times but for the differences of clocks."""


def note_of(
    state: ModelState, registry: RegistryClient, log: EventLog, windows: Windows, *, parent: int,
    ranges: Sequence[OffsetRange], window: Sequence[OffsetRange],
) -> dict[str, Any]:  # fmt: skip
    """{} where the model's definition joins no labels. Raises Unavailable, DataLoss."""
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
