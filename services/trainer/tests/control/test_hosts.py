"""Rounds whose members are on other hosts, which one pulled cable makes silent: nothing closes a connection."""

import os
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
from testing.hosts import Network
from testing.processes import free_port
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

pytestmark = [
    pytest.mark.needs("ip"),
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes network namespaces"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def network() -> Iterator[Network]:
    found = Network(f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}")
    yield found
    found.close()


@pytest.fixture
def registry_process(tmp_path: Path) -> Iterator[RegistryServer]:
    process = RegistryServer(tmp_path / "registry", {"REGISTRY_HOST": "0.0.0.0", "REGISTRY_ALLOW_ANONYMOUS": "yes"})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def trainers(
    network: Network, registry_process: RegistryServer, trainer: TrainerProcess, tmp_path: Path
) -> Iterator[list[TrainerProcess]]:
    """Two, each on a host; they find each other by the addresses on their way to the registry."""
    found = []
    for name in ("a", "b"):
        host = network.add_host()
        environment = {
            "TRAINER_ID": name, "TRAINER_DATA_DIR": str(tmp_path / name), "TRAINER_HTTP_PORT": str(free_port()),
            "TRAINER_HOST": host.address, "TRAINER_CLUSTER_HOST": "auto", "ALLOW_ANONYMOUS": "yes",
            "TRAINER_REGISTRY_ADDRESS": f"{network.address}:{registry_process.grpc_port}",
            "TRAINER_CLUSTER_REGROUP_SECONDS": "1", "TRAINER_BLOCK_EXAMPLES": "50",
            "TRAINER_RESUME_INTERVAL_SECONDS": "0", "TRAINER_LEASE_TTL_SECONDS": "60",
        }  # fmt: skip
        environment = trainer.environment | environment
        found.append(replace(trainer, directory=tmp_path / name, environment=environment, host=host))
    yield found
    for one in found:
        if one.process is not None:
            one.kill()


@pytest.mark.covers("dist-cluster", "dist-multiworker", "dist-chief-evaluator", "dist-input")
def test_a_round_outlives_a_silent_host_and_is_rebuilt_by_a_single_process(
    trainers: list[TrainerProcess], registry: RegistryClient, events: Events
) -> None:
    _register(registry, "{shards: 3, batch_size: 8, passes: 8, evaluate_every_steps: 40}")
    events.add(200)
    for one in trainers:
        one.environment["TRAINER_EVALUATOR"] = "process"
        one.start()
    member = wait_until(lambda: next((one for one in trainers if _steps(one) > 100), None), "both train", seconds=200)
    assert member is not None
    assert member.host is not None
    (chief,) = [one for one in trainers if one is not member]
    member.host.pull_cable()
    lost = member.environment["TRAINER_ID"]
    wait_until(lambda: f"trainer {lost}" in _regrouped(registry).get("because", ""), "the chief goes on", seconds=100)
    member.host.plug_cable()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    version = registry.get_version(MODEL, 1)
    assert version.environment["shards"] == 3
    assert version.environment["training"]["evaluated_by"] == "evaluator"
    assert len(version.evaluation["by_step"]) >= 4
    assert all(found["metrics"] for found in version.evaluation["by_step"])
    assert not any(found["taken_over_records"] for found in version.environment["members"])
    member.kill()
    found = chief.rebuilt()
    assert (found["state"], found["equal"]) == ("done", True), "a process alone trains the same bits"


@pytest.mark.covers("dist-ps-async", "dist-cluster")
def test_a_round_with_parameter_servers_outlives_the_host_of_a_worker(
    trainers: list[TrainerProcess], registry: RegistryClient, events: Events
) -> None:
    _register(registry, "{batch_size: 8, passes: 6, asynchronous: {workers: 2, servers: 2}}")
    for one in trainers:
        one.environment |= {"TRAINER_WORKERS": "2", "TRAINER_RESUME_INTERVAL_SECONDS": "0.5"}  # of which one fits in
        one.start()
    for one in trainers:
        wait_until(lambda one=one: one.status()["zygote"]["ready"], "it can take rounds", seconds=200)  # type: ignore[misc]
    events.add(200, per_record=200)
    chief = wait_until(lambda: _chief_of_two(trainers), "workers of both have computed batches", seconds=200)
    (member,) = [one for one in trainers if one is not chief]
    assert member.host is not None
    member.host.pull_cable()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished", seconds=200)
    version = registry.get_version(MODEL, 1)
    found = version.environment["training"]["asynchronous"]
    assert (found["workers"], found["workers_elsewhere"], len(found["lost"])) == (1, 0, 1)
    assert found["lost"][0].startswith("worker 1: ")
    assert (version.environment["trainers"], version.step) == (2, 6 * 23)


def _register(registry: RegistryClient, training: str) -> None:
    files = {"model.yaml": definition(gate="{}", training=training)}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")


def _steps(trainer: TrainerProcess) -> int:
    """Examples that it has trained as a member of another trainer's round."""
    helping = trainer.status()["helping"]
    return int(helping["examples_done"]) if helping and helping["stage"] == "train" else 0


def _regrouped(registry: RegistryClient) -> dict[str, Any]:
    found = last_round(registry)
    return dict(found.progress.get("regrouped") or {}) if found else {}


def _chief_of_two(trainers: list[TrainerProcess]) -> TrainerProcess | None:
    """The trainer that leads a round in which a worker of the other trainer has computed a batch."""
    for one in trainers:
        attempt = one.status()["attempt"]
        found = attempt["progress"]["asynchronous"] if attempt else {}
        if found and found["workers_elsewhere"] and min(found["batches_by_worker"]):
            return one
    return None
