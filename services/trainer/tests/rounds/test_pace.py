"""Where a round measures on its way and where it ends: by steps, and by evaluations that no longer improve."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import Version
from common.schema import Schema
from services.trainer.protocol.messages import Done, Progress, Stopped
from services.trainer.tests.rounds.test_measured_rounds import curves_of
from services.trainer.tests.support.small_rounds import LINEAR, SCHEMA, Platform, definition, event, events, rebuilt


def trained(
    platform: Platform, training: dict[str, Any], *, sections: Mapping[str, Any] = LINEAR, stop_after: int = 0
) -> Any:
    """The version of one round over 240 events, stopped and taken up again where asked; the same bits if rebuilt."""
    platform.append(events(240))
    lease = platform.lease(definition(**sections, training={"batch_size": 8, **training}))
    if stop_after:
        stopped = platform.train(lease, stop_requested=platform.after_blocks(stop_after), work_dir="first")
        assert isinstance(stopped, Stopped)
        lease = platform.registry.taken_up(lease)
    assert isinstance(platform.train(lease), Done)
    version = platform.registry.versions[0]
    if stop_after:
        found = rebuilt(platform, lease, 1)
        assert (found.missing, found.differences) == ((), ())
    return version


@pytest.mark.covers("est-train-evaluate", "loop-supervisor", "loop-global-step", "est-run-config", "loop-monitored")
def test_a_round_ends_after_max_steps_and_what_it_did_not_come_to_is_accounted_for(tmp_path: Path) -> None:
    asked = {"max_steps": 10, "evaluate_every_steps": 3, "save_every_steps": 4}
    platform = Platform(tmp_path, exports=False)
    version = trained(platform, asked, stop_after=2)
    assert version.step == 10
    course = version.environment["training"]
    assert (course["steps"], course["ended_by"]) == (10, "max_steps")
    left_out = course["left_out"]
    counts = version.metrics["examples"]
    assert counts["left_out"] == left_out["examples"] > 50
    assert left_out["reason"] == "max_steps"
    assert version.events_trained + version.events_held_out + version.events_unusable + left_out["examples"] == 240
    assert 60 < version.events_trained <= 80, "ten steps of at most 8 examples, somewhere in the third block"
    assert [one["step"] for one in version.evaluation["by_step"]] == [3, 6, 9, 10]
    last = version.evaluation["by_step"][-1]["metrics"]
    assert last == pytest.approx(version.metrics["candidate"]), "the last evaluation is the version's own"
    assert len(curves_of(platform)["evaluation/auc"]) == 4
    told = [one for one in platform.messages if isinstance(one, Progress) and one.stage == "train" and one.step]
    assert told[-1].step == 10
    assert told[1].resume_points >= 1, "by steps, behind the first block; the clock asks for none"
    assert told[-1].steps_per_second > 0 < told[-1].examples_per_second
    assert course["steps_per_second"] > 0 < course["examples_per_second"]
    assert told[-1].evaluation


def judged_by(directory: Path, judges: list[dict[str, Any]], **training: Any) -> Version:
    """A round over 120 events, judged by these."""
    platform = Platform(directory, exports=False).append(events(120))
    sections = {"training": {"batch_size": 8, **training}, "evaluation": {"examples": "judges.ndjson"}}
    lines = "\n".join(map(json.dumps, judges)).encode()
    platform.learn(definition(**LINEAR, **sections) | {"judges.ndjson": lines})
    return platform.registry.versions[0]


@pytest.mark.covers("est-train-evaluate")
def test_a_set_of_its_own_judges_and_evaluations_on_the_way_are_of_as_many_batches_as_asked(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    judges = [event(random) for _ in range(40)]
    flipped = [{**one, "late": 1 - one["late"]} for one in judges]
    own = judged_by(tmp_path / "own", judges, evaluate_every_steps=5, evaluate_steps=2)
    assert (own.events_trained, own.events_held_out) == (120, 0), "nothing of the stream is held out"
    assert own.evaluation["window"] == {"examples": 40, "earlier": 0, "own_set": 40, "unusable": 0, "ranges": []}
    other = judged_by(tmp_path / "flipped", flipped)
    assert own.weights_digest == other.weights_digest, "who judges teaches nothing"
    accuracy, opposite = (one.metrics["candidate"]["accuracy"] for one in (own, other))
    assert accuracy == pytest.approx(1 - opposite)
    two_batches = judged_by(tmp_path / "first", judges[:16], evaluate_every_steps=5)
    assert [one["step"] for one in own.evaluation["by_step"]] == [5, 10, 15]
    for found, expected in zip(own.evaluation["by_step"], two_batches.evaluation["by_step"], strict=True):
        assert found["metrics"] == pytest.approx(expected["metrics"])
    assert two_batches.metrics["candidate"]["log_loss"] != pytest.approx(own.metrics["candidate"]["log_loss"])


def test_an_event_that_judges_fits_the_stream() -> None:
    asked = definition(evaluation={"examples": "a.ndjson"}) | {"a.ndjson": b'\n{"x": 1}\n'}
    with pytest.raises(
        InvalidInput, match="model model: evaluation: examples: event 1: pair is missing; word is missing"
    ):
        parse_definition(asked).check_schema(Schema.from_mapping(SCHEMA))


@pytest.mark.covers("loop-supervisor", "est-run-config")
def test_early_stopping_ends_a_round_with_the_weights_of_its_best_evaluation(tmp_path: Path) -> None:
    """Nothing improves by ten: the first evaluation stays the best one."""
    stopping = {"metric": "log_loss", "patience": 2, "min_delta": 10.0}
    asked = {"evaluate_every_steps": 3, "early_stopping": stopping, "optimizer": {"name": "sgd", "use_ema": True}}
    platform = Platform(tmp_path, exports=False)
    version = trained(platform, asked, sections={}, stop_after=2)
    assert version.step == 3
    course = version.environment["training"]
    assert (course["ended_by"], course["best_step"]) == ("early_stopping", 3)
    assert [one["step"] for one in version.evaluation["by_step"]] == [3, 6, 9]
    assert version.evaluation["by_step"][0]["metrics"] == pytest.approx(version.metrics["candidate"])
    assert 15 <= version.events_trained <= 24
    assert version.events_trained + version.events_held_out + course["left_out"]["examples"] == 240
    assert len(curves_of(platform)["loss"]) == 3


@pytest.mark.covers("loop-supervisor")
def test_without_restore_best_a_round_that_stops_keeps_its_last_weights_and_a_second_pass_leaves_nothing_out(
    tmp_path: Path,
) -> None:
    stopping = {"metric": "log_loss", "patience": 1, "min_delta": 10.0, "restore_best": False}
    platform = Platform(tmp_path, exports=False)
    version = trained(platform, {"passes": 4, "evaluate_every_steps": 20, "early_stopping": stopping})
    assert version.step == 40
    course = version.environment["training"]
    assert (course["ended_by"], course["best_step"]) == ("early_stopping", 20)
    assert "left_out" not in course
    assert version.events_trained + version.events_held_out == 240
    assert np.isfinite(version.metrics["training"]["loss"])


@pytest.mark.covers("est-run-config")
def test_the_step_rate_is_reported_every_n_steps_also_after_a_resume_and_changes_no_weight(tmp_path: Path) -> None:
    """About 60 examples a block, in batches of 8: several reports within each, none twice."""
    plain, told = Platform(tmp_path / "plain", exports=False), Platform(tmp_path / "told", exports=False)
    versions = [trained(plain, {"passes": 2}), trained(told, {"passes": 2, "report_every_steps": 3}, stop_after=1)]
    assert versions[0].weights_digest == versions[1].weights_digest
    ends, heard = ([one for one in platform.messages if isinstance(one, Progress) and one.stage == "train" and one.step]
                   for platform in (plain, told))  # fmt: skip
    steps, last = [one.step for one in heard], versions[0].step
    assert sorted(set(steps)) == sorted({*range(3, last + 1, 3), *(one.step for one in ends)})
    assert all(one.steps_per_second > 0 < one.examples_per_second for one in heard)
    for end in ends:
        same = next(one for one in heard if one.step == end.step)
        assert (same.examples_done, same.pass_number) == (end.examples_done, end.pass_number)
    within = [one for one in heard if one.step not in {end.step for end in ends}]
    assert within
    assert all(0 < one.examples_done <= versions[0].events_trained for one in within)
