"""Whether the events since the head's have shifted from those that it has learned from (triggers: drift).

Events that no round has judged are cut into windows, and the newest whole window is compared (shift.py), once. Where
windows begin follows from the log and the head alone, and so do the draws: any trainer finds the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.counted import counted
from common.definition.triggers import Drift
from common.eventlog.base import EventLog, Position
from common.eventlog.topics import examples_topic
from common.registry.client import RegistryClient
from common.schema import Schema
from common.statistics.shift import Values, find_shift, values_of
from services.trainer.plan.backlog import Backlog, Stretch
from services.trainer.plan.drift import Drifts

_LEAST_EXAMPLES = 100


@dataclass(frozen=True)
class _Learned:
    key: tuple[int, Drift]
    schema: Schema
    values: Mapping[str, Values]
    examples: int


class Shifts:
    """Not thread-safe. `drifts` knows the fields that a version reads and samples events."""

    def __init__(self, registry: RegistryClient, log: EventLog, drifts: Drifts) -> None:
        self._registry, self._log, self._drifts = registry, log, drifts
        self._learned: dict[str, _Learned] = {}
        self._found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def of(self, model: str, head: int, drift: Drift, backlog: Backlog, judged_to: Position) -> dict[str, Any]:
        """The newest whole window: its number from 1, 0 where none is whole; the fields of Finding; `says`.

        Args:
            judged_to: where events begin that no round has judged.

        Raises:
            Unavailable: the log or the registry is away. DataLoss: their data are damaged.
        """
        fresh = backlog.examples_from(judged_to)
        number = fresh // drift.window_examples
        if not number:
            return {"window": 0, "says": f"{fresh} of {drift.window_examples} new examples to compare"}
        key = (head, drift, number, tuple(sorted(judged_to.items())))
        known = self._found.get(model)
        if known is None or known[0] != key:
            window = window_of(backlog, judged_to, number, drift.window_examples)
            known = self._found[model] = (key, self._compared(model, head, drift, window, number))
        return known[1]

    def _compared(self, model: str, head: int, drift: Drift, window: Stretch, number: int) -> dict[str, Any]:
        learned = self._learned_by(model, head, drift)
        if not learned.values or learned.examples < _LEAST_EXAMPLES:
            rest = f"{counted(learned.examples, 'event')} of version {head} is left" if learned.values else "nothing"
            return {"window": number, "says": f"{rest} to compare new events with"}
        topic = examples_topic(self._registry.get_model(model).stream)
        sample = [*self._drifts.sample(topic, window.ranges, window.example_count)]
        if not sample:
            return {"window": number, "says": "none of the new events to compare can be read"}
        seen = values_of(sample, learned.schema, list(learned.values))
        finding = find_shift(learned.values, seen, alpha=drift.alpha, seed=head * 1_000_003 + number)
        about = f"{counted(len(sample), 'new example')} against {learned.examples:,} of version {head}"
        fault = f"{finding.furthest} is the furthest, at {finding.distance:.3g}, below its threshold"
        if finding.shifted:
            moves = (f"{move.feature} {move.distance:.3g} above {move.threshold:.3g}" for move in finding.shifted)
            fault = ", ".join(moves)
        sentence = f"{fault} (alpha {drift.alpha:g} over {counted(finding.features, 'feature')}; {about})"
        return {"version": head, "window": number, "examples": len(sample), "alpha": drift.alpha,
                **finding.to_mapping(), "says": sentence}  # fmt: skip

    def _learned_by(self, model: str, head: int, drift: Drift) -> _Learned:
        known = self._learned.get(model)
        if known is None or known.key != (head, drift):
            version = self._registry.get_version(model, head)
            stream = self._registry.get_stream(version.stream, schema_version=version.schema_version)
            schema, topic = Schema.from_json(stream.schema_json), examples_topic(version.stream)
            starts = self._log.start_position(topic)
            begins = (max(piece.from_offset, starts.get(piece.partition, 0)) for piece in version.ranges)
            kept = zip(version.ranges, begins, strict=True)
            left = [replace(piece, from_offset=begin) for piece, begin in kept if begin < piece.to_offset]
            count = version.events_trained + version.events_held_out + version.events_unusable
            sample = [*self._drifts.sample(topic, left, count)]
            values = values_of(sample, schema, compared_features(self._drifts.read_by(model, head), schema, drift))
            known = self._learned[model] = _Learned((head, drift), schema, values, len(sample))
        return known


def window_of(backlog: Backlog, start: Position, number: int, examples: int) -> Stretch:
    """The window of this number, in a round's order; records are never split."""
    if number > 1:
        before = backlog.cut(start, max_examples=(number - 1) * examples)
        start = {**start, **{piece.partition: piece.to_offset for piece in before.ranges}}
    return backlog.cut(start, max_examples=examples)


def compared_features(read: frozenset[str], schema: Schema, drift: Drift) -> list[str]:
    """Of the fields that the version reads: no label, no weight, no event time, for these move without a model being
    worse."""
    out = {*drift.leave_out, schema.event_time, schema.weight, *(label.name for label in schema.labels)}
    known = [feature.name for feature in schema.features if feature.dtype != "bytes"]
    return [name for name in known if name in read and name not in out]
