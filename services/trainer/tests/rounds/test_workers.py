"""A round on several processes: one of them dies, the round goes on with those that are left, and to the same bits."""

import os
import signal

import pytest

from common.registry.client import RegistryClient
from services.trainer.tests.support.platform_processes import (
    MODEL,
    STREAM,
    Events,
    TrainerProcess,
    definition,
    last_round,
)
from testing.processes import children_of
from testing.waiting import wait_until


@pytest.mark.timeout(400)
@pytest.mark.covers("dist-multiworker", "dist-chief-evaluator", "dist-input")
def test_a_round_goes_on_without_the_worker_that_died_and_one_process_rebuilds_it(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    # Every worker finds by itself that nothing has improved by ten for three evaluations.
    stopping = "early_stopping: {metric: log_loss, patience: 3, min_delta: 10, restore_best: false}"
    training = f"{{shards: 3, batch_size: 8, passes: 100, evaluate_every_steps: 50, {stopping}}}"
    files = {"model.yaml": definition(gate="{}", training=training)}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.round_function = "services.trainer.rounds.process:run_round"
    trainer.environment |= {
        "TRAINER_WORKERS": "3", "TRAINER_BLOCK_EXAMPLES": "50", "TRAINER_RESUME_INTERVAL_SECONDS": "0",
        "TRAINER_LEASE_TTL_SECONDS": "60", "TRAINER_COMPARE_WORKERS": "true",
    }  # fmt: skip
    events.add(200)
    trainer.start()
    wait_until(lambda: trainer.progress().get("resume_points", 0) > 1, "a point is saved", seconds=200)
    (chief,) = children_of(trainer.zygote_pid())
    fresh, *workers = children_of(chief)
    assert len(workers) == 2, f"beside {fresh}, which tries exports"
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    found, version = last_round(registry), registry.get_version(MODEL, 1)
    assert (found.attempts, found.progress["regrouped"]["times"]) == (1, 1)
    assert found.progress["regrouped"]["because"] == "worker 1 of 3 ended: signal 9 (SIGKILL)"
    assert (version.environment["shards"], version.environment["workers"]) == (3, 2)
    assert version.environment["exchange"] == "memory"
    assert version.environment["training"]["ended_by"] == "early_stopping"
    assert version.environment["training"]["workers_compared"]["workers"] == 2
    assert [(member["rank"], member["taken_over_records"]) for member in version.environment["members"]] == [
        (0, 0),
        (1, 0),
    ]
    ended = trainer.rebuilt()
    assert (ended["state"], ended["equal"]) == ("done", True)


_FROM_ITS_PROCESS = b"""
import os
import keras

def build_model(schema, parameters):
    distance = keras.Input((), name="distance")
    drawn = keras.initializers.RandomUniform(seed=os.getpid())
    return keras.Model(distance, keras.layers.Dense(1, kernel_initializer=drawn)(distance[:, None]))
"""


@pytest.mark.timeout(400)
@pytest.mark.covers("dist-multiworker")
def test_workers_that_begin_with_different_weights_take_no_step_together(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    model = f"name: {MODEL}\nstream: {STREAM}\nlabel: late\ntask: binary\nmodule: own.py\ngate: {{}}\n"
    files = {
        "model.yaml": f"{model}triggers: {{min_examples: 10}}\ntraining: {{shards: 2}}\n".encode(),
        "own.py": _FROM_ITS_PROCESS,
    }
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.round_function = "services.trainer.rounds.process:run_round"
    trainer.environment |= {"TRAINER_WORKERS": "2", "TRAINER_LEASE_TTL_SECONDS": "60"}
    events.add(200)
    trainer.start()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    found, version = last_round(registry), registry.get_version(MODEL, 1)
    assert version.environment["workers"] == 1
    assert "worker 1 of 2 does not begin with the weights of worker 0" in found.progress["regrouped"]["because"]
