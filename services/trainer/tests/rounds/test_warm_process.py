"""A real trainer's process goes on from round to round, is killed on the way, and every version is rebuilt."""

import os
import signal
from collections.abc import Callable
from typing import Any

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
from testing.waiting import wait_until


@pytest.mark.timeout(600)
def test_versions_of_a_warm_process_are_those_of_new_ones_whenever_it_is_killed(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    files = {
        "model.yaml": definition(triggers="{min_examples: 100}", gate="{}", training="{batch_size: 8, passes: 10}")
    }
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.round_function = "services.trainer.rounds.process:run_round"
    trainer.environment |= {
        "TRAINER_BLOCK_EXAMPLES": "50", "TRAINER_RESUME_INTERVAL_SECONDS": "0.2", "TRAINER_LEASE_TTL_SECONDS": "60",
    }  # fmt: skip
    trainer.start()

    def version(number: int) -> dict[str, Any]:
        newest: Callable[[], bool] = lambda: registry.get_model(MODEL).newest_version == number  # noqa: E731 - waited for once
        wait_until(newest, f"version {number}", seconds=200)
        return dict(registry.get_version(MODEL, number).environment["process"])

    events.add(100)
    assert version(1) == {"round": 1, "warm": False, "because": "first round of its process"}
    events.add(100)
    assert version(2) == {"round": 2, "warm": True}
    (waiting,) = wait_until(lambda: trainer.status()["zygote"]["warm"], "the process waits")
    events.add(100)
    wait_until(trainer.is_training, "it trains the third")
    os.kill(waiting["pid"], signal.SIGKILL)
    assert not version(3)["warm"], "what is killed is taken up by a new process"
    assert last_round(registry).attempts == 2
    (waiting,) = wait_until(lambda: trainer.status()["zygote"]["warm"], "the new process waits")
    os.kill(waiting["pid"], signal.SIGKILL)
    events.add(100)
    assert not version(4)["warm"]
    told = trainer.rebuilt(2)
    assert told["equal"] is True, told
