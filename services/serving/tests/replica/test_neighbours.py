"""Models of one program share a process where the operator says so."""

import functools
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from protos.queue_pb2 import PredictionRequest
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Wanted
from services.serving.tests.conftest import Play, StartManager
from services.serving.tests.support.manager_process import ManagerProcess
from services.serving.tests.support.played_replica import Played
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.same_program import expected
from services.serving.wire.prediction import read_tensor
from services.serving.wire.replica_state import LoadAttempt, ReplicaState, ServingState
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess
from testing.waiting import wait_until

_OF_A_MODEL = re.compile(r" serving-runner (\w)/1 warning: ")
pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture
def two(registry: RegistryProcess, start_manager: StartManager, same_program: Path) -> ManagerProcess:
    """Serves m, whose first version is state 1 of the plain program, and n, whose first one is state 2."""
    registry.add_model("n")
    registry.add_version("m", same_program / "plain/1")
    registry.add_version("n", same_program / "plain/2")
    manager = start_manager(models_per_runner="2")
    for model in ("m", "n"):
        manager.wait_available(model, 1, "production")
    return manager


def answered(redis: RedisServer, model: str, *, value: float = 1.0) -> tuple[int, float]:
    """(version, y)."""
    reply = Asker(redis.url, model, name=f"{model} {value}").ask(_request(b"a", value))
    return reply.version, float(read_tensor(reply.outputs[0])[0])


def _request(name: bytes, value: float) -> PredictionRequest:
    return request(name, {"x": np.array([[value, 0, 0]], "<f4")})


def _pids(manager: ManagerProcess, *keys: tuple[str, int]) -> list[int]:
    return [manager.version(*key).runner_pid for key in keys]


def _has_models(model: str, version: int, count: int, state: ReplicaState) -> bool:
    return (model, version, count) in {(found.model, found.version, found.runner_models) for found in state.versions}


@pytest.mark.covers("srv-multi-model")
def test_models_of_a_program_share_a_process_up_to_the_bound_and_leave_it_to_the_others(
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    registry: RegistryProcess,
    redis_server: RedisServer,
    same_program: Path,
) -> None:
    two: ManagerProcess = request.getfixturevalue("two")  # what it logs is read here
    (pid, other_pid) = _pids(two, ("m", 1), ("n", 1))
    assert pid == other_pid
    two.wait_until(functools.partial(_has_models, "m", 1, 2), "the process having two models")
    assert {two.version(model, 1).loaded for model in ("m", "n")} == {"program", "state"}
    assert [answered(redis_server, model) for model in ("m", "n", "m")] == [
        (1, expected(1, 1)), (1, expected(2, 1)), (1, expected(1, 1)),
    ]  # fmt: skip
    redis_server.kill()
    redis_server.start()
    named: set[str] = set()

    def has_named_both() -> bool:
        named.update(_OF_A_MODEL.findall(capfd.readouterr().err))
        return {"m", "n"} <= named

    wait_until(has_named_both, "a line of each model's loop in the log")
    registry.add_model("o")
    registry.add_version("o", same_program / "plain/3")
    assert two.wait_available("o", 1, "production").runner_pid != pid
    first, other = ("m", "n") if two.version("m", 1).loaded == "program" else ("n", "m")
    registry.add_version(first, same_program / "other")
    two.wait_available(first, 2, "production")
    two.wait_until(functools.partial(_has_models, other, 1, 1), f"{other} being alone in the process")
    two.wait_state(first, 1, ServingState.END)
    registry.add_version(other, same_program / "plain/5")
    two.wait_available(other, 2, "production")
    assert _pids(two, (other, 2)) == [pid]
    assert answered(redis_server, other, value=4) == (2, expected(5, 4))
    assert answered(redis_server, "o") == (1, expected(3, 1))


@pytest.mark.covers("srv-multi-model")
def test_after_a_crash_of_a_shared_process_each_model_answers_what_waited_from_a_process_of_its_own(
    two: ManagerProcess, redis_server: RedisServer
) -> None:
    (pid,) = set(_pids(two, ("m", 1), ("n", 1)))
    askers = {model: Asker(redis_server.url, model, name=f"all {model}") for model in ("m", "n")}
    names = [b"%d" % value for value in range(50)]
    for asker in askers.values():
        asker.enqueue(*(_request(name, value) for value, name in enumerate(names)), target="alias/production")
    os.kill(pid, signal.SIGSEGV)
    for number, (model, asker) in enumerate(askers.items(), 1):
        replies = asker.wait_for(*names)
        assert [(reply.version, float(read_tensor(reply.outputs[0])[0])) for reply in replies] == [
            (1, expected(number, value)) for value in range(50)
        ]
        two.wait_until(lambda state, model=model: _has_models(model, 1, 1, state), "a process of its own")  # type: ignore[misc]
        two.wait_available(model, 1, "production")
        assert "in a process of its own: the process that it shared" in two.version(model, 1).engine
    assert len({pid, *_pids(two, ("m", 1), ("n", 1))}) == 3


def test_a_state_that_fails_beside_another_model_harms_nothing_of_it(
    registry: RegistryProcess, start_manager: StartManager, redis_server: RedisServer, same_program: Path
) -> None:
    registry.add_model("n")
    manager = start_manager(same_program / "1", models_per_runner="2", load_attempts="2", load_retry_seconds="0")
    pid = manager.version("m", 1).runner_pid
    registry.add_version("n", same_program / "refusing")
    failed = manager.wait_state("n", 1, ServingState.END)
    assert "offset is negative" in failed.error_message
    assert manager.version("m", 1).runner_pid == pid
    assert answered(redis_server, "m") == (1, expected(1, 1))


def test_after_a_crash_during_a_load_the_others_share_a_process_again_and_that_model_is_loaded_alone(
    play: Play,
) -> None:
    played = play(models_per_runner=3, load_attempts=2, retry=0.0, programs=dict.fromkeys((1, 2, 3), "p"))
    played.replica.on_wanted(Wanted({name: {"production": version} for version, name in enumerate("mno", 1)}))
    played.fetch()
    assert played.forked == [1], "the others wait for the program"
    played.load(1)
    played.load(2)
    assert _processes(played) == {1: 1, 2: 1, 3: 1}
    played.replica.on_runner_ended(1, -signal.SIGSEGV)
    played.fetch()
    played.load(1)
    assert _processes(played) == {1: 1, 2: 1, 3: 3}


def test_the_system_may_end_a_shared_process_once_and_no_model_is_put_by_itself_for_it(
    play: Play,
) -> None:
    """As it does when memory is short, of which a process each would take more."""
    played = play(models_per_runner=3, load_attempts=3, retry=0.0, programs=dict.fromkeys((1, 2, 3), "p"))
    played.replica.on_wanted(Wanted({name: {"production": version} for version, name in enumerate("mno", 1)}))
    for _ in range(2):  # while the third is being loaded
        assert not any(slot.apart for slot in played.replica.slots())
        played.fetch()
        played.load(1)
        played.load(2)
        assert _processes(played) == {1: 1, 2: 1, 3: 1}
        played.replica.on_runner_ended(1, -signal.SIGKILL)
    assert [slot.model for slot in played.replica.slots() if slot.apart] == ["o"], "its load was there twice"


@pytest.mark.covers("srv-multi-model")
def test_models_that_share_a_process_take_of_a_budget_what_they_add_to_it(play: Play) -> None:
    played = play(models_per_runner=9, programs=dict.fromkeys((1, 2, 3), "p"), memory_bytes=30_000_000)
    played.replica.on_wanted(Wanted({name: {"production": version} for version, name in enumerate("mno", 1)}))
    played.replica.on_requested(["m", "n", "o"])
    assert played.forked == [], "nobody knows yet what it takes"
    played.fetch()
    assert played.forked == [1]
    for version in (1, 2, 3):
        played.fetch()
        played.load(version)
        for slot in played.replica.slots():
            slot.private_bytes = 20_000_000 // version if slot.is_ready else 0
        played.replica.tick()
    assert _processes(played) == {1: 1, 2: 1, 3: 1}
    memory = played.replica.memory()
    assert memory is not None
    assert (memory.loaded, memory.evictions) == (("m", "n", "o"), {})


def _processes(played: Played) -> dict[int, int]:
    """By version."""
    return {slot.version: slot.runner.pid for slot in played.replica.slots() if slot.runner is not None}


def test_what_is_heard_in_a_turn_is_decided_upon_once_and_a_model_out_of_memory_is_quiet(
    play: Play,
) -> None:
    replica = play(models_per_runner=9, memory_bytes=30_000_000).replica
    replica.on_wanted(Wanted({"m": {}}, versions={"m": (1,)}))
    assert replica.is_quiet()
    with replica.hearing():
        replica.on_requested(["m"])
        assert not replica.slots()[0].is_fetching
    assert replica.slots()[0].is_fetching
    assert not replica.is_quiet()


def test_a_model_out_of_memory_shows_its_newest_attempt() -> None:
    slot = VersionSlot("m", 1)
    slot.cool()
    shown = slot.snapshot(read_by_others=(), runner_models=0)
    assert slot.snapshot(read_by_others=(), runner_models=0) is shown
    slot.attempt = LoadAttempt(began_at=1.0, ended_at=2.0, error="no such bucket")
    assert slot.snapshot(read_by_others=(), runner_models=0).attempt.error == "no such bucket"
