"""Versions of one program share a runner: the manager with a real registry, Redis and runners."""

import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from services.serving.replica.versions_wanted import routes_of
from services.serving.tests.conftest import StartManager
from services.serving.tests.replica.test_swap import Load, serves_only
from services.serving.tests.support.manager_process import ManagerProcess
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.same_program import expected
from services.serving.wire.prediction import read_tensor
from services.serving.wire.replica_state import ReplicaState, ServingState
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array([[value, 0, 0] for value in values], "<f4").reshape(-1, 3)}


def has_another_runner(manager: ManagerProcess, version: int, old_pid: int, state: ReplicaState) -> bool:
    return manager.version("m", version).runner_pid not in (0, old_pid)


@pytest.mark.covers("srv-hot-reload")
def test_no_prediction_fails_while_states_are_swapped_and_rolled_back_in_one_process(
    redis_server: RedisServer, registry: RegistryProcess, start_manager: StartManager, same_program: Path
) -> None:
    """Nor while a damaged state is given up; the next one is taken."""
    manager = start_manager(same_program / "1", load_attempts="2")
    first = manager.version("m", 1)
    assert first.loaded == "program"
    load = Load(redis_server.url, thousands=1.1)
    load.start()
    for version in (2, 3, 4):
        registry.add_version("m", same_program / f"{version}")
        manager.wait_until(functools.partial(serves_only, version), "the swap")
    for version in (3, 2, 1):
        registry.client.rollback("m", by="test", reason="back")
        manager.wait_until(functools.partial(serves_only, version), "the rollback")
        found = manager.version("m", version)
        assert (found.loaded, found.runner_pid) == ("state", first.runner_pid)
    registry.add_version("m", same_program / "flipped")
    assert "Checksum does not match" in manager.wait_state("m", 5, ServingState.END).error_message
    registry.add_version("m", same_program / "6")
    sixth = manager.wait_available("m", 6, "production")
    assert (sixth.loaded, sixth.runner_pid) == ("state", first.runner_pid)
    load.stop()
    assert load.finished
    assert load.wrong == []
    assert {1, 2, 3, 4} <= set(load.versions) <= {1, 2, 3, 4, 6}


def test_labels_share_a_runner_and_another_program_has_its_own(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, same_program: Path
) -> None:
    for number in (1, 2, 3):
        registry.add_version("m", same_program / f"{number}")
    for number, label in ((1, "first"), (2, "second")):
        registry.client.set_alias("m", label, number, by="test", reason="keep")
    manager = start_manager()
    for number, alias in ((1, "first"), (2, "second"), (3, "production")):
        manager.wait_available("m", number, alias)
        reply = asker.ask(request(alias.encode(), x(number)), target=f"alias/{alias}")
        assert (reply.version, read_tensor(reply.outputs[0]).tolist()) == (number, [expected(number, number)])
        reply = asker.ask(request(f"number {number}".encode(), x(0)), target=f"version/{number}")
        assert reply.version == number
    assert len({manager.version("m", number).runner_pid for number in (1, 2, 3)}) == 1
    assert sorted(manager.version("m", number).loaded for number in (1, 2, 3)) == ["program", "state", "state"]
    registry.add_version("m", same_program / "other")
    other = manager.wait_available("m", 4, "production")
    assert other.loaded == "program"
    assert other.runner_pid != manager.version("m", 1).runner_pid
    manager.wait_state("m", 3, ServingState.END)
    assert manager.version("m", 2).state is ServingState.AVAILABLE
    assert asker.ask(request(b"still", x(0)), target="alias/second").version == 2


def test_a_runner_that_dies_comes_back_with_all_its_states_and_what_it_held_is_answered(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, same_program: Path
) -> None:
    registry.add_version("m", same_program / "1")
    registry.client.set_alias("m", "stable", 1, by="test", reason="keep")
    manager = start_manager()
    manager.wait_available("m", 1, "stable")
    registry.add_version("m", same_program / "2")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        old_pid = manager.wait_available("m", 2, "production").runner_pid
        names = {alias: [f"{number} {alias} {i}".encode() for i in range(100)] for alias in ("stable", "production")}
        for alias, own in names.items():
            asker.enqueue(*(request(name, x(i)) for i, name in enumerate(own)), target=f"alias/{alias}")
        os.kill(old_pid, number)
        for version in (1, 2):
            manager.wait_until(functools.partial(has_another_runner, manager, version, old_pid), "another runner")
        for version, alias in ((1, "stable"), (2, "production")):
            manager.wait_available("m", version, alias)
            replies = asker.wait_for(*names[alias])
            assert [reply.version for reply in replies] == [version] * 100
            assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [
                [expected(version, i)] for i in range(100)
            ]
        assert manager.version("m", 1).runner_pid == manager.version("m", 2).runner_pid
        wait_until(lambda: asker.queue_length() == 0, "everything being answered")


def test_a_replica_that_starts_while_versions_come_arrives_at_the_newest(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, same_program: Path
) -> None:
    registry.add_version("m", same_program / "1")
    manager = start_manager()
    for number in range(2, 10):
        registry.add_version("m", same_program / f"{number}")
        manager.poll(0.5)
    manager.wait_available("m", 9, "production")
    assert asker.ask(request(b"a", x(1))).version == 9
    manager.wait_until(functools.partial(serves_only, 9), "the others being gone")


def test_a_runner_goes_on_reading_what_its_heir_does_not_read_yet() -> None:
    owners = {"alias/a": 2, "version/1": 1, "version/2": 2}
    before = {"alias/a": 1, "version/1": 1}
    assert routes_of(before, owners, held={1}, confirmed=()) == before
    assert routes_of(before, owners, held={1}, confirmed={"alias/a"}) == {"version/1": 1}
    assert routes_of(before, owners, held={1, 2}, confirmed=()) == owners
    assert routes_of({"alias/gone": 1} | before, owners, held={1, 2}, confirmed=()) == owners
