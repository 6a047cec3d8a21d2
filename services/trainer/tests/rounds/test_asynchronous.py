"""Rounds whose variables lie on parameter servers: a worker that is killed, and training such a version again."""

import os
import signal
from typing import Any

import pytest

from common.registry.client import RegistryClient
from services.trainer.rounds.rebuild_check import metric_differences
from services.trainer.tests.support.platform_processes import MODEL, STREAM, Events, TrainerProcess, definition
from testing.processes import children_of
from testing.waiting import wait_until

_FEATURES = b"""features:
  near: {type: bucketized, of: distance, boundaries: [BOUNDARIES]}
  near_vector: {type: embedding, of: near, dimension: 3, parts: 2}
""".replace(b"BOUNDARIES", ", ".join(str(2 * number) for number in range(1, 100)).encode())


@pytest.mark.timeout(400)
@pytest.mark.covers("dist-ps-async", "eco-horn", "dist-replication", "dist-cluster")
def test_a_killed_server_costs_what_followed_the_last_resume_point_and_a_killed_worker_nothing(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    training = "{batch_size: 8, passes: 6, asynchronous: {workers: 2, servers: 2, tolerance: 0.9}}"
    # Not the area under the curve: of labels that nothing tells apart and twenty held-out events it may well be 0 once.
    written = (
        definition(gate="{metric: log_loss}", training=training)
        .replace(b"linear", b"dnn")
        .replace(b"features:\n", _FEATURES)
    )
    registry.register_model(MODEL, stream=STREAM, files={"model.yaml": written}, by="test")
    trainer.round_function = "services.trainer.rounds.process:run_round"
    trainer.environment |= {"TRAINER_BLOCK_EXAMPLES": "50", "TRAINER_LEASE_TTL_SECONDS": "60"}
    trainer.environment |= {"TRAINER_RESUME_INTERVAL_SECONDS": "0.1"}
    events.add(200)
    trainer.start()
    wait_until(lambda: _has_saved_twice(trainer), "a resume point after two blocks is saved", seconds=200)
    first = children_of(trainer.zygote_pid())[0]
    _, *others = children_of(first)
    assert len(others) == 4, "two servers, two workers"
    os.kill(others[0], signal.SIGKILL)
    chief = wait_until(lambda: _another_chief(trainer, first), "another attempt takes steps", seconds=200)
    found = registry.list_rounds(MODEL)[0]
    assert found.progress["deaths"] == 1
    assert "parameter server 0 ended by signal 9 (SIGKILL)" in found.progress["died"]
    progress = trainer.progress()
    assert (progress["pass_number"], progress["examples_done"]) >= (1, 50), "it went on from a resume point"
    os.kill(children_of(chief)[4], signal.SIGKILL)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    version = registry.get_version(MODEL, 1)
    assert version.environment["reproducible"] is False
    told = version.environment["training"]["asynchronous"]
    assert (told["workers"], told["lost"]) == (1, ["worker 1: ended by signal 9 (SIGKILL)"])
    assert version.step == 6 * 24
    assert 0 < told["updates"] == sum(told["batches_by_worker"]) < version.step, "the rest is of the first attempt"
    assert set(told["staleness"]) == {"mean", "max"}
    placed = {path: one["server"] for one in told["placement"] for path in one["variables"]}
    assert len(placed) == 8, "two parts of a table, three kernels, three biases"
    assert set(placed.values()) == {0, 1}
    assert [(one["variable"], one["rows"]) for one in told["by_row"]] == [
        ("near_vector_table/part_0", 50),
        ("near_vector_table/part_1", 50),
    ]
    assert all(one["most_held"] <= 8 for one in told["by_row"]), "a batch has eight examples"
    ended = trainer.rebuilt()
    assert (ended["state"], ended["reproducible"], ended["equal"]) == ("done", False, True), ended
    assert ended["metrics"]["log_loss"][0] == version.metrics["candidate"]["log_loss"]


def test_metrics_that_are_further_apart_than_the_tolerance_are_told() -> None:
    metrics = {"auc": (0.8, 0.75), "log_loss": (0.5, 0.9)}
    assert metric_differences(metrics, ["auc"], tolerance=0.1) == []
    assert metric_differences(metrics, ["auc"], tolerance=0.01) == [
        "auc was 0.8 and is 0.75: more than the tolerance of 0.01 apart"
    ]
    assert len(metric_differences(metrics, ["another"], tolerance=0.1)) == 1, "without a rule every metric counts"


def _another_chief(trainer: TrainerProcess, first: int) -> int:
    """Of the attempt after the one whose process was `first`, once its workers have taken steps; else 0."""
    found = [one for one in children_of(trainer.zygote_pid()) if one != first]
    return found[0] if found and _figures(trainer).get("updates", 0) > 0 else 0


def _has_saved_twice(trainer: TrainerProcess) -> bool:
    return bool(trainer.progress().get("resume_points", 0) > 1)


def _figures(trainer: TrainerProcess) -> dict[str, Any]:
    return dict(trainer.progress().get("asynchronous", {}))
