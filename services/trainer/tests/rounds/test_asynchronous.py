"""Rounds whose variables lie on parameter servers: a worker that is killed, and training such a version again."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from common.registry.client import RegistryClient
from services.trainer.rounds.rebuild_check import metric_differences
from services.trainer.tests.support.platform_processes import (
    MODEL,
    STREAM,
    Events,
    TrainerProcess,
    definition,
)
from testing.waiting import wait_until


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(400)
@pytest.mark.covers("dist-ps-async", "eco-horn", "dist-replication")
def test_a_killed_worker_stops_nothing_and_the_version_says_that_it_cannot_be_rebuilt_bit_for_bit(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    training = "{batch_size: 8, passes: 60, asynchronous: {workers: 2, servers: 2, tolerance: 0.9}}"
    registry.register_model(
        MODEL, stream=STREAM, files={"model.yaml": definition(gate="{}", training=training)}, by="test"
    )
    trainer.round_function = "services.trainer.rounds.process:run_round"
    trainer.environment |= {"TRAINER_BLOCK_EXAMPLES": "50", "TRAINER_LEASE_TTL_SECONDS": "60"}
    events.add(200)
    trainer.start()
    wait_until(lambda: _figures(trainer).get("updates", 0) > 20, "workers take steps", seconds=200)
    chief = _children(int(trainer.status()["zygote"]["pid"]))[0]
    _, *others = _children(chief)
    assert len(others) == 4, "two servers, two workers"
    os.kill(others[3], signal.SIGKILL)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    version = registry.get_version(MODEL, 1)
    assert version.environment["reproducible"] is False
    told = version.environment["training"]["asynchronous"]
    assert (told["workers"], told["lost"]) == (1, ["worker 1: ended by signal 9 (SIGKILL)"])
    assert told["updates"] == version.step == sum(told["batches_by_worker"])
    assert set(told["staleness"]) == {"mean", "max"}
    assert len([path for one in told["placement"] for path in one["variables"]]) == 2, "a weight and a bias"
    assert {one["server"] for one in told["placement"]} == {0, 1}
    rebuild = trainer.post(f"/v1/models/{MODEL}/versions/1:rebuild", {})[1]["rebuild_id"]
    ended = wait_until(lambda: _ended(trainer, rebuild), "the rebuild ends", seconds=200)
    assert (ended["state"], ended["reproducible"], ended["equal"]) == ("done", False, True), ended
    assert ended["metrics"]["auc"][0] == version.metrics["candidate"]["auc"]


def test_metrics_that_are_further_apart_than_the_tolerance_are_told() -> None:
    metrics = {"auc": (0.8, 0.75), "log_loss": (0.5, 0.9)}
    assert metric_differences(metrics, ["auc"], tolerance=0.1) == []
    assert metric_differences(metrics, ["auc"], tolerance=0.01) == [
        "auc was 0.8 and is 0.75: more than the tolerance of 0.01 apart"
    ]
    assert len(metric_differences(metrics, ["another"], tolerance=0.1)) == 1, "without a rule every metric counts"


def _figures(trainer: TrainerProcess) -> dict[str, Any]:
    attempt = trainer.status()["attempt"]
    return dict(attempt["progress"]["asynchronous"]) if attempt else {}


def _ended(trainer: TrainerProcess, rebuild_id: str) -> dict[str, Any]:
    found = trainer.get(f"/v1/rebuilds/{rebuild_id}")[1]
    return dict(found) if found["state"] in ("done", "failed") else {}
