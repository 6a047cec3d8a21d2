"""Labels that come after their events are learned as if they had come with them, to the bit."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.joined_labels import JoinedLabels, check_joined_labels
from common.errors import InvalidInput
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.tfrecord import frame
from common.registry.catalog import Lease, Version
from common.registry.plan_notes import LABELS
from common.schema import Schema
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import LINEAR, SCHEMA, Platform, definition, event, rebuilt, serialized

_LATE: Mapping[str, Any] = {
    "features": [*SCHEMA["features"], {"name": "key", "dtype": "int64"}],
    "labels": [{"name": "late", "dtype": "int64"}],
    "late_labels": {"key": "key", "wait_seconds": 100},
}
_FILES = definition(**LINEAR)
_WEIGHT = {"name": "importance", "dtype": "float32", "required": False, "default": 1.0}
_EVENTS, _PER_RECORD, _WAIT = 80, 10, 100.0
Row = dict[str, Any]


def _rows() -> list[Row]:
    drawn = np.random.default_rng(3)
    return [{**event(drawn), "key": number} for number in range(_EVENTS)]


def _features(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("late", "kind", "amount")}


def _platform(directory: Path, records: Sequence[Sequence[Row]], schema: Mapping[str, Any] = _LATE) -> Platform:
    """With these records of events, a second apart."""
    platform = Platform(directory, schema, exports=False, eager=True)
    for number, rows in enumerate(records):
        headers = RecordHeaders(1, len(rows), 1000.0 + number, b"%016d" % number)
        platform.log.append("examples.stream", 0, [NewRecord(frame([serialized(row) for row in rows]), headers)])
    return platform


def _append_labels(platform: Platform, labels: Sequence[tuple[float, int, int]]) -> None:
    """(when, key, label), a record each, in two partitions."""
    platform.log.create_topic("labels.stream", partition_count=2)
    for number, (at, key, label) in enumerate(labels):
        value = frame([serialized({"key": key, "late": label})])
        headers = RecordHeaders(1, 1, at, b"label %010d" % number)
        platform.log.append("labels.stream", number % 2, [NewRecord(value, headers)])


def _joining(platform: Platform, lease: Lease, *, trains_late: bool = False, **weighed: float) -> Lease:
    """The lease with a plan that joins all labels that there are. `weighed`: late_weight."""
    ends = platform.log.end_position("labels.stream")
    pieces = [{"partition": one, "from_offset": 0, "to_offset": end} for one, end in ends.items()]
    note = {
        "key": "key", "wait_seconds": _WAIT, "trains_late": trains_late, "labels": pieces, "new": {}, "events": [],
        "ends": {}, **weighed,
    }  # fmt: skip
    plan = replace(lease.round.plan, configuration={**lease.round.plan.configuration, LABELS: note})
    return replace(lease, round=replace(lease.round, plan=plan))


def _version(platform: Platform, lease: Lease) -> Version:
    outcome = platform.train(lease)
    assert isinstance(outcome, Done), outcome
    return platform.registry.versions[-1]


def _cut(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + _PER_RECORD] for start in range(0, len(rows), _PER_RECORD)]


@pytest.fixture(scope="module")
def with_labels(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """What a round learns from events that bring their labels, but for the first ten."""
    rows = _rows()
    records = _cut([*map(_features, rows[:10]), *rows[10:]])
    platform = _platform(tmp_path_factory.mktemp("with"), records)
    return _version(platform, platform.lease(_FILES))


@pytest.mark.parametrize("seed", [1, 2])
def test_shuffled_delayed_and_repeated_labels_in_time_give_the_bits_of_labels_that_came_with_their_events(
    with_labels: Version, tmp_path: Path, seed: int
) -> None:
    rows, drawn = _rows(), random.Random(seed)
    waiting, own = rows[10:75], rows[75:]
    labels = [(1000.0 + row["key"] // 10 + drawn.uniform(-50, 99), row["key"], row["late"]) for row in waiting]
    labels += [(at + 200.0, key, 1 - label) for at, key, label in drawn.sample(labels, 30)]  # again, and otherwise
    labels += [(1000.0 + 2 * _WAIT + 1, key, 1) for key in range(5)]  # too late for anything
    labels += [(1007.0, row["key"], 1 - row["late"]) for row in own]  # of events that bring another along
    platform = _platform(tmp_path, _cut([*map(_features, rows[:75]), *own]))
    _append_labels(platform, drawn.sample(sorted(labels), len(labels)) if seed == 1 else sorted(labels))
    lease = _joining(platform, platform.lease(_FILES), trains_late=True)
    version = _version(platform, lease)
    assert version.weights_digest == with_labels.weights_digest
    assert version.metrics["candidate"] == with_labels.metrics["candidate"]
    assert version.environment["labels"] == {
        "wait_seconds": _WAIT, "in_time": 65, "own": 5, "never": 10, "late": 0, "again": 0,
    }  # fmt: skip
    if seed == 1:
        found = rebuilt(platform, lease, 1)
        assert (found.weights_digest, found.missing, found.differences) == (version.weights_digest, (), ())


def test_late_labels_are_counted_and_learned_as_further_examples_where_the_definition_says_so(tmp_path: Path) -> None:
    """As a log would have it whose first record holds these events once more, with their labels."""
    rows = _rows()
    labels = [(1000.0 + row["key"] // 10, row["key"], row["late"]) for row in rows[10:]]
    labels += [(1000.0 + 1.5 * _WAIT, row["key"], row["late"]) for row in rows[:7]]
    records = _cut([*map(_features, rows[:10]), *rows[10:]])
    by_hand = _platform(tmp_path / "by hand", [[*records[0], *rows[:7]], *records[1:]])
    expected = _version(by_hand, by_hand.lease(_FILES))
    found = {}
    for trains_late in (True, False):
        platform = _platform(tmp_path / str(trains_late), _cut([*map(_features, rows)]))
        _append_labels(platform, labels)
        found[trains_late] = _version(platform, _joining(platform, platform.lease(_FILES), trains_late=trains_late))
    trained, left_out = found[True], found[False]
    assert trained.weights_digest == expected.weights_digest != left_out.weights_digest
    assert trained.events_trained + trained.events_held_out == _EVENTS + 7
    assert left_out.events_trained + left_out.events_held_out == _EVENTS
    assert [one.environment["labels"]["late"] for one in (trained, left_out)] == [7, 7]
    assert [one.environment["labels"]["again"] for one in (trained, left_out)] == [7, 0]


def test_a_late_weight_multiplies_the_weights_of_what_is_learned_late(tmp_path: Path) -> None:
    """As a log would have it in which these events come once more, with their labels and a quarter of their weights."""
    schema = {**_LATE, "features": [*_LATE["features"], _WEIGHT], "weight": "importance"}
    rows = [{**row, "importance": 2.0} if row["key"] % 2 else row for row in _rows()]
    late = [{**row, "importance": 0.25 * row.get("importance", 1.0)} for row in rows[:7]]
    records = _cut([*map(_features, rows[:10]), *rows[10:]])
    by_hand = _platform(tmp_path / "by hand", [[*records[0], *late], *records[1:]], schema)
    expected = _version(by_hand, by_hand.lease(_FILES))
    labels = [(1000.0 + row["key"] // 10, row["key"], row["late"]) for row in rows[10:]]
    labels += [(1000.0 + 1.5 * _WAIT, row["key"], row["late"]) for row in rows[:7]]
    platform = _platform(tmp_path / "late", _cut([*map(_features, rows)]), schema)
    _append_labels(platform, labels)
    lease = _joining(platform, platform.lease(_FILES), trains_late=True, late_weight=0.25)
    version = _version(platform, lease)
    assert version.weights_digest == expected.weights_digest
    assert version.environment["labels"]["late_weight"] == 0.25
    with pytest.raises(InvalidInput, match="late_weight multiplies an event's weight"):
        check_joined_labels(JoinedLabels(True, 0.25), Schema.from_mapping(_LATE), place="model m")
