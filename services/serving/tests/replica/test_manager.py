"""The manager with a real registry, Redis and runners: aliases decide what is served, and nothing is lost."""

import functools
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from services.serving.tests.conftest import StartManager
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.wire.codes import Code
from services.serving.wire.prediction import read_tensor
from services.serving.wire.replica_state import ReplicaState, ServingState
from testing.processes import is_running
from testing.registry_process import RegistryProcess
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array([[value, 0, 0] for value in values], "<f4").reshape(-1, 3)}


def break_model(saved_model: Path, target: Path) -> Path:
    """A copy that the registry takes and no TensorFlow loads: the bytes of its variables are others."""
    shutil.copytree(saved_model, target)
    for path in (target / "variables").glob("variables.data-*"):
        path.write_bytes(bytes(path.stat().st_size))
    return target


def has_new_runner(old_pid: int, state: ReplicaState) -> bool:
    return state.versions[0].runner_pid not in (0, old_pid)


def has_failed(state: ReplicaState) -> bool:
    return any(version.model == "damaged" and version.error_code for version in state.versions)


@pytest.mark.covers("srv-lifecycle")
def test_what_aliases_name_is_loaded_served_and_exchanged_and_what_they_leave_ends(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    manager = start_manager(saved_models / "affine/1")
    first = manager.version("m", 1)
    assert first.signatures["serving_default"].inputs["x"].shape == (-1, 3)
    assert asker.ask(request(b"a", x(5))).version == 1
    assert asker.ask(request(b"b", x(5)), target="version/1").version == 1

    registry.add_version("m", saved_models / "affine/2")
    second = manager.wait_available("m", 2, "production")
    manager.wait_state("m", 1, ServingState.END)
    assert not is_running(first.runner_pid)
    reply = asker.ask(request(b"c", x(5)))
    assert (reply.version, read_tensor(reply.outputs[0]).tolist()) == (2, [2005.0])
    assert is_running(second.runner_pid)

    registry.client.set_alias("m", "stable", 2, by="test", reason="keep")
    registry.client.rollback("m", by="test", reason="try it")
    first = manager.wait_available("m", 1, "production")
    assert asker.ask(request(b"d", x(5))).version == 1
    assert asker.ask(request(b"e", x(5)), target="alias/stable").version == 2
    assert manager.wait_available("m", 2, "stable").runner_pid == second.runner_pid != first.runner_pid
    registry.client.set_alias("m", "stable", 1, by="test", reason="move")
    manager.wait_available("m", 1, "production", "stable")
    manager.wait_state("m", 2, ServingState.END)
    assert asker.ask(request(b"f", x(5)), target="alias/stable").version == 1
    registry.client.set_alias("m", "stable", 0, by="test", reason="remove")
    manager.wait_until(lambda state: manager.version("m", 1).aliases == ("production",), "the label being let go")
    assert asker.servers("alias/stable") == []


@pytest.mark.covers("srv-lifecycle")
def test_a_broken_version_is_given_up_with_its_reason_and_the_old_one_goes_on(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path, tmp_path: Path
) -> None:
    manager = start_manager(saved_models / "affine/1", load_attempts="2")
    registry.add_version("m", break_model(saved_models / "affine/2", tmp_path / "broken"))
    broken = manager.wait_state("m", 2, ServingState.END)
    assert broken.error_code
    assert "cannot load" in broken.error_message
    assert manager.wait_available("m", 1, "production")
    assert asker.ask(request(b"a", x(1))).version == 1

    registry.add_model("other")
    registry.add_version("other", saved_models / "affine/1")
    manager.wait_available("other", 1, "production")
    registry.add_version("m", saved_models / "affine/3")
    manager.wait_available("m", 3, "production")
    assert asker.ask(request(b"b", x(1))).version == 3


def test_a_killed_runner_and_a_killed_zygote_are_replaced_and_what_waited_is_answered(
    start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    manager = start_manager(saved_models / "affine/1")
    for turn, strikes_zygote in enumerate((False, False, True)):
        pid = manager.wait_available("m", 1, "production").runner_pid
        zygote = psutil.Process(pid).parent()
        assert zygote is not None
        names = [f"{turn}/{i}".encode() for i in range(100)]
        asker.enqueue(*(request(name, x(i)) for i, name in enumerate(names)))
        os.kill(zygote.pid if strikes_zygote else pid, signal.SIGKILL)
        manager.wait_until(functools.partial(has_new_runner, pid), "a new runner")
        replies = asker.wait_for(*names)
        assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[1000.0 + i] for i in range(100)]
    assert asker.queue_length() == 0


def test_a_registry_that_is_away_takes_nothing_away_whenever_it_comes_and_goes(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path, tmp_path: Path
) -> None:
    """A manager that starts before its registry, goes on without it, and starts again while it is away."""
    registry.add_model("damaged")
    for model in ("m", "damaged"):
        registry.add_version(model, saved_models / "affine/1")
    registry.kill()
    first = start_manager()
    state = first.wait_until(lambda state: bool(state.conditions["registry"]), "the reason being shown")
    assert state.versions == ()
    registry.start()
    for model in ("m", "damaged"):
        first.wait_available(model, 1, "production")
    first.wait_until(lambda state: not any(state.conditions.values()), "the replica being ready")

    registry.kill()
    assert asker.ask(request(b"a", x(1))).version == 1
    first.wait_until(lambda state: state.notice.startswith("registry away, as of 20"), "the notice")
    registry.start()
    first.wait_until(lambda state: state.notice == "", "the notice going")
    registry.add_version("m", saved_models / "affine/2")
    first.wait_available("m", 2, "production")
    assert first.stop() == 0

    registry.kill()
    (variables,) = tmp_path.glob("serving/r1/versions/damaged/1/variables/variables.data-*")
    whole = variables.read_bytes()
    for path in (tmp_path / "serving/r1").rglob("*"):  # both models have this file, and one may mend the other
        if path.is_file() and path.read_bytes() == whole:
            path.write_bytes(whole[::-1])
    second = start_manager()
    second.wait_available("m", 2, "production")
    assert asker.ask(request(b"b", x(1))).version == 2
    state = second.wait_until(has_failed, "an attempt to load what is damaged")
    assert state.notice.startswith("registry away, as of 20")
    registry.start()
    second.wait_available("damaged", 1, "production")
    reply = Asker(asker.redis_url, "damaged").ask(request(b"c", x(5)))
    assert read_tensor(reply.outputs[0]).tolist() == [1005.0]


@pytest.mark.covers("srv-multi-model")
def test_a_version_that_never_finishes_loading_holds_up_nobody(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    manager = start_manager(saved_models / "affine/1", parallel_loads="1")
    registry.add_version("m", saved_models / "endless")
    manager.wait_state("m", 2, ServingState.LOADING)
    registry.add_model("other")
    registry.add_version("other", saved_models / "affine/1")
    manager.wait_available("other", 1, "production")
    assert manager.has("m", 2, ServingState.LOADING)
    assert asker.ask(request(b"a", x(1))).version == 1
    registry.client.rollback("m", by="test", reason="it never comes")
    manager.wait_state("m", 2, ServingState.END)
    assert manager.wait_available("m", 1, "production").runner_pid


def test_a_crash_while_loading_is_answered_by_the_default_executor_and_a_load_that_takes_too_long_is_given_up(
    registry: RegistryProcess, start_manager: StartManager, saved_models: Path
) -> None:
    registry.add_version("m", saved_models / "endless")
    manager = start_manager(load_timeout_seconds="3", load_attempts="2")
    ended = manager.wait_state("m", 1, ServingState.END)
    # The first attempt crashed; the second one went as far as the model lets it.
    assert ended.error_message == "it was not ready after 3 s"
    assert not ended.runner_pid


def test_a_runner_that_is_stuck_in_its_model_is_ended_and_the_request_answered_with_an_error(
    start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    start_manager(saved_models / "checked", run_timeout_seconds="1")
    stuck = request(b"stuck", {"x": np.ones(1, "<f4"), "steps": np.array([10**12], "<i8")})
    good = request(b"good", {"x": np.ones(1, "<f4"), "steps": np.zeros(1, "<i8")})
    asker.enqueue(stuck, good)
    answer, other = asker.wait_for(b"stuck", b"good")
    assert (answer.error_code, other.error_code) == (Code.INTERNAL, 0)
    assert asker.queue_length() == 0


def test_two_replicas_share_a_queue_and_one_answers_what_the_other_held_when_it_was_killed(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    registry.add_version("m", saved_models / "affine/1")
    first, second = start_manager(replica="r1"), start_manager(replica="r2")
    doomed = first.wait_available("m", 1, "production")
    second.wait_available("m", 1, "production")
    os.kill(doomed.runner_pid, signal.SIGSTOP)
    requests = [request(b"%d" % i, x(i)) for i in range(200)]
    asker.enqueue(*requests[:100])
    first.kill()
    wait_until(lambda: not is_running(doomed.runner_pid), "the runner's end with its manager's")
    asker.enqueue(*requests[100:])
    replies = asker.wait_for(*(item.request_id for item in requests))
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[1000.0 + i] for i in range(200)]
    wait_until(lambda: asker.servers() == [second.version("m", 1).runner_id], "only the living being listed")
    assert second.stop() == 0


def test_a_manager_goes_on_while_its_front_is_too_busy_to_read_and_tells_it_the_newest_afterwards(
    registry: RegistryProcess, start_manager: StartManager, asker: Asker, saved_models: Path
) -> None:
    manager = start_manager(saved_models / "affine/1", front_room_bytes=1)
    for version in (2, 3):  # Each of them changes what the front is told, which it does not read.
        registry.add_version("m", saved_models / f"affine/{version}")
        assert asker.ask(request(b"%d" % version, x(5)), target=f"version/{version}").version == version
    manager.wait_available("m", 3, "production")
    manager.wait_state("m", 2, ServingState.END)
