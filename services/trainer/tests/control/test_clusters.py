"""Trainers that compute a round together: who is in it changes while it runs, and no bit of what comes out."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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
from testing.processes import free_port
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

_TRAINING = "{shards: 3, batch_size: 8, passes: 100}"


@pytest.fixture
def trainers(trainer: TrainerProcess, tmp_path: Path) -> Iterator[list[TrainerProcess]]:
    """Three that know of each other, none started."""
    together = {
        "TRAINER_CLUSTER_HOST": "127.0.0.1", "TRAINER_CLUSTER_REGROUP_SECONDS": "1", "TRAINER_INTRA_OP_THREADS": "1",
        "TRAINER_BLOCK_EXAMPLES": "50", "TRAINER_RESUME_INTERVAL_SECONDS": "0", "TRAINER_LEASE_TTL_SECONDS": "60",
        "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    trainer.behave("together")
    found = [
        replace(
            trainer, environment=trainer.environment | together | {
                "TRAINER_ID": name, "TRAINER_DATA_DIR": str(tmp_path / name), "TRAINER_HTTP_PORT": str(free_port()),
            },
        )
        for name in ("a", "b", "c")
    ]  # fmt: skip
    yield found
    for one in found:
        if one.process is not None and one.process.poll() is None:
            one.stop()


def _trainers_of(trainer: TrainerProcess) -> list[str]:
    attempt = trainer.status()["attempt"]
    return list(attempt["trainers"]) if attempt else []


def _register(registry: RegistryClient) -> None:
    files = {"model.yaml": definition(gate="{}", training=_TRAINING)}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")


@pytest.mark.covers("dist-cluster")
def test_a_round_takes_in_who_comes_lets_go_who_leaves_and_outlives_who_dies(
    trainers: list[TrainerProcess], registry: RegistryClient, registry_process: RegistryServer, events: Events,
    tmp_path: Path,
) -> None:  # fmt: skip
    _register(registry)
    events.add(200)
    a, b, c = trainers
    c.environment["TRAINER_HELPER_IDLE_SECONDS"] = "3600"
    c.start()
    assert c.status()["helps_only"]
    wait_until(lambda: c.status()["zygote"]["ready"] and registry.list_rounds(MODEL), "a round is planned", seconds=60)
    a.start()
    wait_until(a.is_training, "a trains alone")
    assert last_round(registry).attempts == 1, "the helper has not taken it"
    b.start()
    wait_until(lambda: sorted(_all_trainers(trainers)) == ["a", "b", "c"], "all three compute the round", seconds=60)
    chief = next(one for one in trainers if one.status()["attempt"])
    leaver = next(one for one in trainers if one is not chief)
    wait_until(lambda: _ranks(trainers) == [1, 2], "each has a rank")
    registry_process.kill()
    registry_process.start()
    assert leaver.stop() == 0
    wait_until(lambda: len(_all_trainers(trainers)) == 2, "the round goes on without the one that left", seconds=60)
    left = f"trainer {leaver.environment['TRAINER_ID']}"
    wait_until(lambda: left in _regrouped(registry)["because"], "the round says who left")
    _member(trainers).kill()
    wait_until(lambda: _alone(trainers), "the round goes on without the one that died", seconds=60)
    (tmp_path / "finish").touch()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=60)
    assert _company(registry) == {"trainers": [], "addresses": []}


def _regrouped(registry: RegistryClient) -> dict[str, Any]:
    """How often, and because of what the last time."""
    return dict(last_round(registry).progress["regrouped"])


def _company(registry: RegistryClient) -> dict[str, list[str]]:
    """With whom the first version was computed."""
    environment = registry.get_version(MODEL, 1).environment
    return {name: environment[name] for name in ("trainers", "addresses")}


def _ranks(trainers: list[TrainerProcess]) -> list[int]:
    return sorted(found["rank"] for one in trainers if (found := one.status()["helping"]))


def _alive(trainers: list[TrainerProcess]) -> list[TrainerProcess]:
    return [one for one in trainers if one.process is not None and one.process.poll() is None]


def _all_trainers(trainers: list[TrainerProcess]) -> list[str]:
    return next((found for one in _alive(trainers) if (found := _trainers_of(one))), [])


def _member(trainers: list[TrainerProcess]) -> TrainerProcess:
    found = wait_until(
        lambda: next((one for one in _alive(trainers) if one.status()["helping"]), None), "one helps", seconds=60
    )
    assert found
    return found


def _alone(trainers: list[TrainerProcess]) -> bool:
    (left,) = _alive(trainers)
    return left.is_training() and not _trainers_of(left)


@pytest.mark.covers("dist-cluster")
def test_a_helper_that_no_round_needs_ends_well_and_one_that_nobody_reaches_is_refused(
    trainers: list[TrainerProcess],
) -> None:
    helper, hidden = trainers[:2]
    helper.environment["TRAINER_HELPER_IDLE_SECONDS"] = "0.1"
    assert helper.run() == 0
    hidden.environment |= {"TRAINER_HELPER_IDLE_SECONDS": "60", "TRAINER_CLUSTER_HOST": ""}
    assert hidden.run() == 2


@pytest.mark.covers("dist-cluster", "dist-chief-evaluator")
def test_a_chief_that_dies_is_replaced(
    trainers: list[TrainerProcess], registry: RegistryClient, events: Events, tmp_path: Path
) -> None:
    _register(registry)
    events.add(200)
    for one in trainers[:2]:
        one.environment |= {"TRAINER_LEASE_TTL_SECONDS": "2"}
        one.start()
    wait_until(lambda: len(_all_trainers(trainers)) == 2, "two compute the round", seconds=60)
    chief = next(one for one in trainers[:2] if one.status()["attempt"])
    chief.kill()
    wait_until(lambda: _alone(trainers), "the other one has taken the round", seconds=60)
    (tmp_path / "finish").touch()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=60)


@pytest.mark.covers("dist-tf-config", "dist-cluster")
def test_tf_config_says_who_leads_and_who_helps(
    trainers: list[TrainerProcess], registry: RegistryClient, events: Events, tmp_path: Path
) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    chief, worker, wrong = trainers
    wrong.environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    with pytest.raises(AssertionError, match="ended at once"):
        wrong.start()
    _register(registry)
    events.add(200)
    worker.environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    worker.start()
    wait_until(
        lambda: worker.status()["zygote"]["ready"] and registry.list_rounds(MODEL), "a round is planned", seconds=60
    )
    chief.environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    chief.start()
    wait_until(lambda: worker.status()["helping"], "the worker helps", seconds=60)
    (tmp_path / "finish").touch()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=60)
    found = last_round(registry)
    assert (found.attempts, found.lease_holder) == (1, "a"), "the worker has not taken it"
    assert _company(registry) == {"trainers": ["a", "b"], "addresses": addresses}
