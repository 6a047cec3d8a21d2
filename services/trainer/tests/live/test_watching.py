"""Live quality is read from the log and handed in: each label once, whoever reads, however often it begins again."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.rollout import Judge
from common.errors import Conflict
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from common.eventlog.segment_writer import SegmentSettings
from common.eventlog.tfrecord import frame
from common.examples.codec import ExampleCodec
from common.registry.catalog import Model, Stream, Version
from common.registry.live import Evidence
from common.schema import Schema
from protos.prediction_log_pb2 import PredictionLog
from protos.tfserving_pb2 import DT_FLOAT, DT_STRING
from services.trainer.live.guards import Guards
from services.trainer.live.watch import LiveWatch
from services.trainer.live.watching import MOST_RECORDS

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "id", "dtype": "int64"},
            {"name": "distance", "dtype": "float32"},
            {"name": "part", "dtype": "string", "required": False, "default": "a"},
        ],
        "labels": [{"name": "late", "dtype": "string", "vocabulary": ["no", "yes"]}],
        "late_labels": {"key": "id", "wait_seconds": 100},
    }
)
DEFINITION = b"""
name: m
stream: s
label: late
estimator: linear_classifier
features: {distance: {type: numeric}}
live: {window_examples: 50}
rollout: {judge: {metric: error_rate, margin: 0.02, min_samples: 20}}
"""
NOW = 1_000_000.0


@dataclass
class Registry:
    """One model; takes evidence as the registry does (services/registry/versions/live.py)."""

    aliases: dict[str, int]
    canary: dict[str, Any] = field(default_factory=dict)
    stored: Evidence = field(default_factory=lambda: Evidence(0))
    handed_in: list[Evidence] = field(default_factory=list)
    definition: bytes = DEFINITION
    schema: Schema = SCHEMA
    evaluation: dict[str, Any] = field(default_factory=dict)

    def list_streams(self) -> list[Stream]:
        return [Stream("s", 1, self.schema.to_json(), 0.0)]

    def list_models(self) -> list[Model]:
        return [Model("m", "s", "digest", 0.0, aliases=dict(self.aliases), canary=dict(self.canary))]

    def get_model(self, name: str) -> Model:
        return self.list_models()[0]

    def get_definition(self, digest: str) -> dict[str, bytes]:
        return {"model.yaml": self.definition}

    def get_version(self, model: str, number: int) -> Version:
        """Right on 90 of 100 events that were held out."""
        fields = dict.fromkeys(one.name for one in dataclasses.fields(Version))
        known = {"version": number, "metrics": {"candidate": {"accuracy": 0.9}}, "events_held_out": 100}
        return Version(**{**fields, "evaluation": self.evaluation, **known})  # type: ignore[arg-type]  # no more is asked for

    def get_evidence(self, model: str) -> Evidence:
        return self.stored

    def put_evidence(self, model: str, evidence: Evidence) -> int:
        if evidence.revision != self.stored.revision:
            raise Conflict("another trainer was first")
        self.handed_in.append(evidence)
        self.stored = Evidence(evidence.revision + 1, json.loads(json.dumps(evidence.state)))
        if evidence.back_from:
            self.aliases = {"production": self.aliases["predecessor"]}
        if evidence.canary.get("decision") == "advance":
            self.canary["stage"] += 1
        elif evidence.canary:
            self.canary = {}
        return self.stored.revision

    def track(self, version: int, alias: str) -> dict[str, Any]:
        """As last handed in."""
        documents = [one.versions[version] for one in self.handed_in if version in one.versions]
        return next(one for one in documents[-1]["tracks"] if one["alias"] == alias)


class Log:
    """Predictions and labels as serving and ingest write them."""

    def __init__(self, directory: Path, settings: SegmentSettings | None = None) -> None:
        self.log = SegmentLog(directory, settings)
        self.log.create_topic("predictions.m", partition_count=1)
        self.log.create_topic("labels.s", partition_count=2)
        self._codec = ExampleCodec(SCHEMA.of_late_labels("s"))
        self._appended = 0

    def predict(
        self,
        keys: Sequence[int],
        chance: float,
        version: int,
        alias: str,
        *,
        at: float = NOW,
        inputs: bool = True,
        **ended: Any,
    ) -> None:
        """ended: fields of the record."""
        record = PredictionLog(prediction_keys=map(str, keys), alias=alias, **ended)
        if inputs:
            parts = record.predict_log.request.inputs["part"]
            parts.dtype = DT_STRING
            parts.tensor_shape.dim.add(size=len(keys))
            parts.string_val.extend(b"a" if key % 5 else b"b" for key in keys)
        record.log_metadata.model_spec.version.value = version
        output = record.predict_log.response.outputs["probability"]
        output.dtype = DT_FLOAT
        for size in (len(keys), 1):
            output.tensor_shape.dim.add(size=size)
        output.tensor_content = np.full((len(keys), 1), chance, "<f4").tobytes()
        self._append("predictions.m", 0, [record.SerializeToString()], at)

    def event(self, keys: Sequence[int], late: str, *, at: float = NOW + 1) -> None:
        """Whole, as a stream has them whose labels come at once."""
        codec = ExampleCodec(replace(SCHEMA, late_labels=None))
        events = [codec.encode({"id": key, "distance": 1.0, "late": late}) for key in keys]
        self._append("examples.s", 0, events, at)

    def label(self, keys: Sequence[int], late: str, *, at: float = NOW + 1) -> None:
        for partition in (0, 1):
            own = [self._codec.encode({"id": key, "late": late}) for key in keys if key % 2 == partition]
            self._append("labels.s", partition, own, at)

    def both(self, keys: Sequence[int], chance: float, *, before: float = 0.9) -> None:
        """Production and its predecessor answer "yes" by these chances, and all labels are that."""
        self.predict(keys, chance, 2, "production")
        self.predict(keys, before, 1, "predecessor")
        self.label(keys, "yes")

    def _append(self, topic: str, partition: int, values: list[bytes], at: float) -> None:
        self._appended += 1
        headers = RecordHeaders(1, len(values), at, self._appended.to_bytes(16, "little"))
        if values:
            self.log.append(topic, partition, [NewRecord(frame(values), headers)])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.log.close()


def _watch(registry: Registry, log: Log) -> LiveWatch:
    return LiveWatch(registry, log.log)  # type: ignore[arg-type]  # the part of the client that is asked


def test_predictions_and_labels_become_metrics_by_version_and_alias(log: Log) -> None:
    registry = Registry({"production": 2, "predecessor": 1})
    log.predict([1, 2, 3, 4], 0.9, 2, "production")
    log.predict([1, 2, 3, 4], 0.2, 1, "predecessor")
    log.predict([5], 0.9, 3, "canary")
    log.label([1, 2, 3], "yes")
    log.label([4], "no")
    assert _watch(registry, log).turn() == 1
    live = registry.track(2, "production")
    assert live["total"] == {"examples": 4, "metrics": {"accuracy": 0.75, "log_loss": pytest.approx(0.6546667)}}
    assert (live["window"]["metrics"]["accuracy"], live["since"]) == (0.75, NOW + 1)
    assert registry.track(1, "predecessor")["total"]["metrics"]["accuracy"] == 0.25
    counts = registry.handed_in[-1].counts
    assert (counts["labelled"], counts["waiting"]) == (8, 1)


SLICED = DEFINITION.replace(b"window_examples: 50", b"window_examples: 50, slices: part")


def test_metrics_are_told_by_the_values_of_a_feature_for_shadows_too_and_across_a_restart(log: Log) -> None:
    """Every fifth key has the value b, and production is wrong at key 35 alone. The window of 50 has the second
    turn and the ten that were labelled last in the first, 25 and 35 among them."""
    registry = Registry({"production": 2, "predecessor": 1}, definition=SLICED)
    for first in (0, 40):
        keys = range(first, first + 40)
        log.predict(keys, 0.9, 2, "production")
        log.predict(keys, 0.4, 1, "predecessor", is_shadow=True, inputs=False)
        log.label([key for key in keys if key != 35], "yes")
        log.label([key for key in keys if key == 35], "no")
        assert _watch(registry, log).turn() == 1
    wrong, right = -math.log(0.1), -math.log(0.9)
    live, shadow = registry.track(2, "production"), registry.track(1, "predecessor")
    a, b = live["slices"]
    assert (a["where"], b["where"]) == ({"part": "a"}, {"part": "b"})
    assert (a["total"]["examples"], b["total"]["examples"]) == (64, 16)
    assert (a["window"]["examples"], b["window"]["examples"]) == (40, 10)
    assert a["total"]["metrics"] == {"accuracy": 1.0, "log_loss": pytest.approx(right, rel=1e-6)}
    assert b["total"]["metrics"] == {
        "accuracy": 15 / 16,
        "log_loss": pytest.approx((15 * right + wrong) / 16, rel=1e-6),
    }
    assert b["window"]["metrics"]["accuracy"] == 0.9
    assert [one["total"]["metrics"]["accuracy"] for one in shadow["slices"]] == [0.0, 1 / 16]
    others = [key for key in range(200, 280) if key % 5]
    log.predict(others, 0.9, 2, "production")
    log.label(others, "yes")
    _watch(registry, log).turn()
    a, b = registry.track(2, "production")["slices"]
    assert (a["window"]["examples"], b["window"]) == (50, {"examples": 0, "metrics": {}}), (
        "no value b is among the newest"
    )
    assert b["total"]["examples"] == 16
    registry.definition = SLICED.replace(b"slices: part", b"slices: id")
    log.predict([100], 0.9, 2, "production")
    log.label([100], "yes")
    _watch(registry, log).turn()
    assert registry.track(2, "production")["slices"] == [], "the input of another feature was not logged"
    assert registry.track(2, "production")["total"]["examples"] == 81 + len(others)


def test_a_stream_whose_labels_come_with_its_events_is_left_alone_whatever_its_features_are_called(log: Log) -> None:
    features = (*SCHEMA.features, replace(SCHEMA.feature("distance"), name="late_labels"))
    registry = Registry({"production": 1}, schema=replace(SCHEMA, features=features, late_labels=None))
    assert _watch(registry, log).turn() == 0


WATCHED = (
    DEFINITION.partition(b"rollout")[0]
    + b"""
triggers: {quality: {metric: error_rate, margin: 0.05, alpha: 0.02, min_samples: 20}}
"""
)


def test_quality_alarms_where_the_version_is_wrong_more_often_than_its_evaluation_lets_be_meant(log: Log) -> None:
    registry, watch = Registry({"production": 2}, definition=WATCHED), None
    for turn in range(40):
        keys = range(20 * turn, 20 * turn + 20)
        log.predict(keys, 0.9, 2, "production")
        log.label(keys[:2] if turn < 20 else keys[:15], "no")
        log.label(keys[2:] if turn < 20 else keys[15:], "yes")
        watch = watch if turn % 3 else _watch(registry, log)  # another trainer goes on from what is stored
        assert watch is not None
        watch.turn()
        quality = registry.track(2, "production")["quality"]
        assert not quality["alarms"] or turn >= 20, "as often as in its evaluation"
    assert (quality["figure"], quality["limit"]) == (pytest.approx(0.1), 100.0)
    chances = [math.comb(100, n) * quality["highest"] ** n * (1 - quality["highest"]) ** (100 - n) for n in range(11)]
    assert sum(chances) <= 0.01, "10 errors or fewer in the evaluation were luck"
    alarm = quality["alarm"]
    assert alarm["e_value"] >= 100.0
    assert 2 <= quality["alarms"] == alarm["number"], "another test begins after an alarm"
    assert "error_rate of version 2 is " in alarm["says"]
    assert ", 0.1 in its evaluation, where at most " in alarm["says"]
    assert registry.stored.state["quality"]["2"] == quality


def test_answers_of_production_that_have_shifted_alarm_without_a_label_and_each_answer_counts_once(log: Log) -> None:
    """The version answered half of its held-out examples with 0.2 and half with 0.9."""
    scores = [[0.5, 500], [None, 500]]
    drawn = {"curves": {"candidate": {"late": {"scores": scores}}}}
    asked = DEFINITION + b"triggers: {drift: {window_examples: 100, scores: true}}\n"
    registry = Registry({"production": 2, "predecessor": 1}, definition=asked, evaluation=drawn)
    for turn in range(12):
        keys = range(20 * turn, 20 * turn + 20)
        log.predict(keys[:10], 0.2 if turn < 5 else 0.9, 2, "production")
        log.predict(keys[10:], 0.9, 2, "production")
        log.predict(keys, 0.9, 1, "predecessor", is_shadow=True)
        _watch(registry, log).turn()  # each time another trainer
        told = registry.stored.state["scores"]["2"]
        assert (told["windows"], told["alarms"]) == (20 * (turn + 1) // 100, int(turn == 9) or int(turn > 9))
    assert told["alarm"]["window"] == 2
    assert told["alarm"]["says"].startswith("scores 0.5 above 0.")


def test_labels_that_come_with_their_events_find_predictions_by_a_feature_of_theirs(log: Log) -> None:
    log.log.create_topic("examples.s", partition_count=1)
    keyed = WATCHED.replace(b"window_examples: 50", b"window_examples: 50, key: id, wait_seconds: 100")
    registry = Registry({"production": 2}, definition=keyed, schema=replace(SCHEMA, late_labels=None))
    watch = _watch(registry, log)
    log.event(range(50), "yes", at=NOW - 500)
    assert watch.turn() == 1
    assert not registry.handed_in, "without a prediction no event is read"
    log.event([7], "no", at=NOW - 50)
    log.predict([7, 8, 9], 0.9, 2, "production")
    log.event([8, 9], "yes")
    watch.turn()
    live = registry.track(2, "production")
    assert (live["total"]["examples"], live["quality"]["samples"]) == (3, 3)
    assert live["quality"]["live"] == pytest.approx(1 / 3)
    assert registry.stored.state["positions"]["examples.s"] == {"0": 3}
    assert registry.handed_in[-1].counts.get("unmatched", 0) == 0


def test_the_window_holds_the_newest_and_the_total_all(log: Log) -> None:
    registry = Registry({"production": 1})
    log.predict(range(100), 0.9, 1, "production")
    log.label(range(80), "no")
    log.label(range(80, 100), "yes", at=NOW + 2)
    _watch(registry, log).turn()
    live = registry.track(1, "production")
    assert (live["window"]["examples"], live["window"]["metrics"]["accuracy"]) == (50, 0.4)
    assert (live["total"]["examples"], live["total"]["metrics"]["accuracy"]) == (100, pytest.approx(0.2))


def _steps(log: Log) -> list[Any]:
    """What may happen, in an order in which labels wait, come twice and come late."""
    return [
        lambda: log.predict([1, 2, 3], 0.9, 2, "production"),
        lambda: log.label([1], "yes"),
        lambda: log.predict([1, 2, 3], 0.2, 1, "predecessor"),
        lambda: log.label([1, 2], "yes"),
        lambda: log.predict([4, 5], 0.9, 2, "production", at=NOW + 90),
        lambda: log.label([3], "yes", at=NOW + 150),
        lambda: log.label([4, 5, 5], "no", at=NOW + 160),
    ]


def test_a_trainer_that_starts_again_after_each_step_counts_the_same_as_a_single_one(tmp_path: Path) -> None:
    results = []
    for name, begins_again in (("single", False), ("again", True)):
        log, registry = Log(tmp_path / name), Registry({"production": 2, "predecessor": 1})
        watch = _watch(registry, log)
        for step in _steps(log):
            step()
            watch = _watch(registry, log) if begins_again else watch
            watch.turn()
        log.log.close()
        tracks = [registry.track(2, "production"), registry.track(1, "predecessor")]
        judge = registry.handed_in[-1].versions[2]["judge"]
        results.append((registry.handed_in[-1].counts, tracks, judge["samples"], judge["difference"], judge["e_value"]))
    assert results[0] == results[1]
    counts, tracks, samples, *_ = results[0]
    assert (counts["labelled"], counts["late"], counts["duplicate_labels"]) == (6, 1, 2)
    assert (tracks[0]["total"]["examples"], tracks[1]["total"]["examples"], samples) == (4, 2, 2)


def test_two_trainers_count_every_label_once(log: Log) -> None:
    registry = Registry({"production": 1})
    clock = [0.0]
    first, second = (LiveWatch(registry, log.log, lambda: clock[0]) for _ in range(2))  # type: ignore[arg-type]  # as above
    for turn in range(20):
        log.predict([turn], 0.9, 1, "production")
        log.label([turn], "yes")
        for watch in (first, second) if turn % 2 else (second, first):
            watch.turn()
        clock[0] += 3.0
    clock[0] += 100.0
    first.turn()
    clock[0] += 100.0
    first.turn()
    assert registry.track(1, "production")["total"]["examples"] == 20
    assert registry.stored.state["counts"]["labelled"] == 20


def test_a_worse_version_goes_back_with_its_numbers_and_is_not_compared_again(log: Log) -> None:
    registry = Registry({"production": 2, "predecessor": 1})
    watch = _watch(registry, log)
    for start in range(0, 200, 20):
        log.both(range(start, start + 20), 0.1)
        watch.turn()
    back = [one for one in registry.handed_in if one.back_from]
    assert [one.back_from for one in back] == [2]
    judge = back[0].versions[2]["judge"]
    assert (judge["verdict"], judge["difference"], judge["against"]) == ("worse", 1.0, 1)
    assert judge["e_value"] >= 100
    assert judge["curve"][-1][0] == judge["samples"]
    assert back[0].reason.startswith("error_rate of version 2 is +1 against version 1 on the same")
    registry.aliases = {"production": 2, "predecessor": 1}
    log.predict([900], 0.1, 2, "production")
    log.label([900], "yes")
    _watch(registry, log).turn()
    assert "judge" not in registry.handed_in[-1].versions[2], "a person has promoted it again"


def test_a_version_that_is_no_worse_stays(log: Log) -> None:
    registry = Registry({"production": 2, "predecessor": 1})
    watch = _watch(registry, log)
    for start in range(0, 400, 20):
        log.both(range(start, start + 20), 0.8)
        watch.turn()
    assert not [one for one in registry.handed_in if one.back_from]
    assert registry.handed_in[-1].versions[2]["judge"]["samples"] == 400


@pytest.mark.parametrize(
    ("rollout", "chance", "verdict", "goes_back"),
    [
        ("{judge: {metric: error_rate, max_samples: 100, then: back}}", 0.8, "inconclusive", [2]),
        ("{judge: {metric: error_rate, max_samples: 100}}", 0.8, "inconclusive", []),
        ("{judge: {metric: error_rate, max_samples: 100}, back: manual}", 0.8, "inconclusive", []),
        ("{judge: {metric: error_rate, margin: 0.02, min_samples: 20}, back: manual}", 0.1, "worse", []),
    ],
)
def test_the_verdict_is_kept_and_production_goes_back_where_the_rollout_says_so(
    log: Log, rollout: str, chance: float, verdict: str, goes_back: list[int]
) -> None:
    definition = DEFINITION.partition(b"rollout")[0] + f"rollout: {rollout}\n".encode()
    registry = Registry({"production": 2, "predecessor": 1}, definition=definition)
    log.both(range(100), chance)
    _watch(registry, log).turn()
    assert registry.handed_in[-1].versions[2]["judge"]["verdict"] == verdict
    assert [one.back_from for one in registry.handed_in if one.back_from] == goes_back


def test_what_cannot_be_used_is_counted(log: Log) -> None:
    registry = Registry({"production": 1})
    record = PredictionLog(prediction_keys=["1", "2"])
    log._append("predictions.m", 0, [record.SerializeToString(), b"\xff\xff"], NOW)
    log.predict([3], 0.9, 1, "production")
    log.label([3], "yes")
    _watch(registry, log).turn()
    assert registry.handed_in[-1].counts["unusable"] == 3
    assert registry.track(1, "production")["total"]["examples"] == 1


def test_after_a_long_backlog_labels_in_time_are_in_time(log: Log) -> None:
    """Both topics are read by time, not one to its end before the other."""
    registry = Registry({"production": 1})
    for number in range(60):
        log.predict([number], 0.9, 1, "production", at=NOW + 30 * number)
        log.label([number], "yes", at=NOW + 30 * number + 20)
    _watch(registry, log).turn()
    counts = registry.handed_in[-1].counts
    assert (counts["labelled"], counts.get("late", 0), counts.get("never", 0)) == (60, 0, 0)


def _canary(registry: Registry, log: Log, *, chances: tuple[float, float], first: int = 0, rounds: int = 12) -> None:
    """Canary and production answer "yes" by these chances, as all labels are; another trainer takes each other turn."""
    watch = _watch(registry, log)
    for number in range(first, first + rounds):
        keys = range(20 * number, 20 * number + 20)
        for version, alias, chance in zip((3, 2), ("canary", "production"), chances, strict=True):
            log.predict(keys, chance, version, alias)
        log.label(keys, "yes")
        watch = _watch(registry, log) if number % 2 else watch
        watch.turn()


def _decided(registry: Registry) -> list[tuple[str, int, int]]:
    """(decision, stage, samples) of each."""
    told = [(one.canary, one.versions[3]["canary"]) for one in registry.handed_in if one.canary]
    return [(canary["decision"], canary["stage"], shown["samples"]) for canary, shown in told]


def _staged(rule: str = "then: hold", since: float = math.inf) -> Registry:
    canary = {"version": 3, "stage": 0, "share": 1.0, "by": "key", "since": since, "verdict": ""}
    samples = "" if "stage_samples" in rule else "stage_samples: 60, max_samples: 200, "
    stages = f"canary: {{share: [1, 50], {samples}{rule}}}"
    definition = DEFINITION.replace(b"min_samples: 20}}", f"min_samples: 20}}, {stages}}}".encode())
    return Registry({"production": 2, "canary": 3}, canary, definition=definition)


def test_a_canary_that_is_no_worse_goes_on_after_the_samples_of_each_stage_and_becomes_production(log: Log) -> None:
    registry = _staged()
    _canary(registry, log, chances=(0.9, 0.8))
    assert _decided(registry) == [("advance", 0, 60), ("promote", 1, 120)]
    passed = registry.handed_in[5]
    shown = passed.versions[3]["canary"]
    assert (shown["verdict"], shown["difference"], shown["stage_samples"], shown["stage"]) == ("passed", 0.0, 60, 1)
    assert passed.canary["reason"].startswith(
        "canary version 3 at stage 2: error_rate +0 against version 2 on the same"
    )
    assert "canary" not in registry.handed_in[-1].versions.get(3, {}), "it is judged no more"


def test_evidence_that_a_canary_is_better_ends_a_stage_before_its_samples(log: Log) -> None:
    registry = _staged()
    _canary(registry, log, chances=(0.9, 0.1))
    (first, one, early), (last, two, late) = _decided(registry)
    assert (first, one, last, two) == ("advance", 0, "promote", 1)
    assert early < 60
    assert late - early < 60


def test_a_canary_that_turns_worse_goes_back_from_a_later_stage(log: Log) -> None:
    registry = _staged()
    _canary(registry, log, chances=(0.9, 0.9), rounds=3)
    _canary(registry, log, chances=(0.1, 0.9), first=3)
    decided = _decided(registry)
    assert [(decision, stage) for decision, stage, _ in decided] == [("advance", 0), ("back", 1)]
    shown = next(one.versions[3]["canary"] for one in registry.handed_in if one.canary.get("decision") == "back")
    assert (shown["verdict"], shown["e_value"] >= 100) == ("worse", True)


@pytest.mark.parametrize("then", ["back", "promote", "hold"])
def test_a_canary_without_a_verdict_is_dealt_with_as_the_definition_says(log: Log, then: str) -> None:
    registry = _staged(f"max_seconds: 60, then: {then}", since=0.0)
    log.predict([1], 0.9, 3, "canary")
    _watch(registry, log).turn()
    (decided,) = (one.canary for one in registry.handed_in)
    assert (decided["decision"], registry.handed_in[0].versions[3]["canary"]["difference"]) == (then, None)
    assert "error_rate not compared yet" in decided["reason"]


_GUARDED = "guards: {errors: 0.05, latency: 2, answers: 0.3, slices: part}, then: hold"
_KEPT = {"chance": 0.8, "latency_seconds": 0.019}


@pytest.mark.parametrize(
    ("guard", "canary"),
    [
        ("", _KEPT),
        ("latency", _KEPT | {"latency_seconds": 0.03}),
        ("errors", _KEPT | {"error_code": 13}),
        ("answers", _KEPT | {"chance": 0.1}),
        ("answers", _KEPT | {"chance": math.nan}),
    ],
)
def test_a_guard_takes_a_canary_away_without_a_label_and_is_named(log: Log, guard: str, canary: dict[str, Any]) -> None:
    registry = _staged(_GUARDED)
    watch = _watch(registry, log)
    for number in range(60):
        log.predict([number], 0.9, 2, "production", latency_seconds=0.01)
        log.predict([number], 0.9, 2, "production", latency_seconds=5.0, is_shadow=True)
        log.predict([number], version=3, alias="canary", **canary)
        watch = _watch(registry, log) if number % 7 == 0 else watch
        watch.turn()
    decided = [one.canary for one in registry.handed_in if one.canary]
    assert [one["decision"] for one in decided] == (["back"] if guard else [])
    if guard:
        assert f"does not keep to the guard {guard}: " in decided[0]["reason"]
        return
    shown = {one["guard"]: one for one in registry.handed_in[-1].versions[3]["canary"]["guards"]}
    assert {name: (one["samples"], one["value"]) for name, one in shown.items()} == {
        "errors": (60, 0.0), "latency": (60, 0.0), "answers": (60, pytest.approx(0.1, abs=1e-6)),
    }  # fmt: skip
    assert shown["errors"]["of"] == 500.0, "five tests share an alpha of 1 %"


def test_a_slice_that_is_lost_takes_a_canary_away_though_it_is_better_on_the_whole(log: Log) -> None:
    registry = _staged("guards: {slices: part}, stage_samples: null, max_samples: null, then: hold")
    watch = _watch(registry, log)
    for number in range(100):
        in_b = number % 5 == 0
        log.predict([number], 0.1 if in_b else 0.9, 3, "canary")
        log.predict([number], 0.9 if in_b or number % 3 else 0.1, 2, "production")
        log.label([number], "yes")
        watch = _watch(registry, log) if number % 7 == 0 else watch
        watch.turn()
        if (decided := registry.handed_in[-1].canary).get("decision") == "back":
            break
    assert "does not keep to the guard slice b: 1 on" in decided["reason"]
    shown = {one["guard"]: one for one in registry.handed_in[-1].versions[3]["canary"]["guards"]}
    assert (shown["slice b"]["of"], shown["slice a"]["of"]) == (400.0, 1200.0), (
        "half an alpha of 1 %, divided by k (k + 1)"
    )
    assert shown["slice a"]["value"] < 0


def test_a_guard_tests_sixteen_slices_at_most_and_none_of_a_long_value() -> None:
    guards, values = Guards({}), ["x" * 101, *(f"c{n}" for n in range(20)), "x" * 100]
    guards.of_slices(Judge("error_rate"), values[:16], np.zeros(16), np.ones(16))
    guards.of_slices(Judge("error_rate"), values[16:], np.zeros(6), np.ones(6))
    assert [one["guard"] for one in guards.shown(0.01)] == [f"slice c{n}" for n in range(16)]


def test_an_error_of_one_model_holds_up_no_other(log: Log) -> None:
    @dataclass
    class Two(Registry):
        def list_models(self) -> list[Model]:
            return [Model("a", "s", "digest", 0.0, aliases=dict(self.aliases)), *super().list_models()]

        def get_evidence(self, model: str) -> Evidence:
            if model == "a":
                raise ValueError("a state that nobody understands")
            return super().get_evidence(model)

    registry = Two({"production": 1})
    assert _watch(registry, log).turn() == 2
    log.predict([1], 0.9, 1, "production")
    log.label([1], "yes")
    _watch(registry, log).turn()
    assert registry.track(1, "production")["total"]["examples"] == 1


def test_what_the_log_no_longer_has_is_passed_over_and_an_answer_that_is_no_number_is_the_largest_loss(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path, SegmentSettings(segment_bytes=1000, retention_bytes=5000))
    for number in range(2 * MOST_RECORDS):
        log.predict([number], 0.9, 2, "production")
    assert log.log.apply_retention()
    definition = DEFINITION.replace(b"error_rate, margin: 0.02", b"brier_score, margin: 0.02")
    registry = Registry({"production": 2, "predecessor": 1}, definition=definition)
    log.both(range(5000, 5040), math.nan)
    _watch(registry, log).turn()
    log.log.close()
    judge = registry.handed_in[-1].versions[2]["judge"]
    assert (judge["samples"], judge["verdict"]) == (20, "worse"), "by the first record of labels"
    assert judge["difference"] == pytest.approx(1 - 0.1**2)


def test_production_that_is_older_than_many_versions_keeps_its_count_and_its_comparison(log: Log) -> None:
    registry = Registry({"production": 1, "predecessor": 30})
    for number in range(2, 20):
        log.predict([number], 0.9, number, "")
        log.label([number], "yes")
    _watch(registry, log).turn()
    for number in range(100, 103):
        log.predict([number], 0.9, 1, "production")
        log.predict([number], 0.9, 30, "predecessor")
        log.label([number], "yes")
        _watch(registry, log).turn()
    assert registry.track(1, "production")["total"]["examples"] == 3
    assert registry.handed_in[-1].versions[1]["judge"]["samples"] == 3
