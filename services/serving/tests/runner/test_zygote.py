"""The zygote and what it forks: small, reported, never left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.process.memory import private_bytes
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import Zygote
from services.serving.wire.prediction import read_tensor
from testing.processes import is_running
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_MOST_PRIVATE_BYTES = 40 * 1024 * 1024
_MOST_GROWN_BYTES = 6 * 1024 * 1024
"""For batches of every size; with a oneDNN primitive for each of them it would be 14 MB."""


def test_a_small_version_costs_at_most_forty_megabytes_of_its_own(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "network").serve()
    assert 0 < private_bytes(runner.pid) <= _MOST_PRIVATE_BYTES
    assert runner.leave() == 0
    assert private_bytes(runner.pid) == 0


def test_a_small_version_grows_little_with_the_batch_sizes_that_it_sees(
    zygote: Zygote, redis_server: RedisServer, asker: Asker, saved_models: Path
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "network").serve()
    at_first = private_bytes(runner.pid)
    for rows in range(1, 65):
        x = np.ones((rows, 64), np.float32)
        assert asker.ask(request(b"%d rows" % rows, {"x": x}, signature="serving_default")).error_code == 0
    assert private_bytes(runner.pid) - at_first <= _MOST_GROWN_BYTES
    assert runner.leave() == 0


def test_a_version_that_onednn_computes_faster_comes_from_a_zygote_with_it(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "convolution", model="pictures").serve()
    assert runner.ready["engine"] == "session, single-threaded executor, oneDNN"
    message = request(b"1", {"x": np.ones((3, 4, 4, 1), np.float32)}, signature="serving_default")
    reply = Asker(redis_server.url, "pictures").ask(message)
    assert read_tensor(reply.outputs[0]).tolist() == [[[[4.0], [4.0]], [[4.0], [4.0]]]] * 3
    zygote.process.kill_runner(runner.pid)
    assert runner.wait() == -signal.SIGKILL
    plain = zygote.start_runner(redis_server.url, saved_models / "network").serve()
    assert plain.ready["engine"] == "session, single-threaded executor"
    assert plain.leave() == 0


@pytest.fixture
def _warm(warm_python_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zygotes of a test's own start at once."""
    monkeypatch.setattr(sys, "executable", str(warm_python_path))


@pytest.mark.usefixtures("_warm")
def test_the_operator_decides_about_onednn_where_the_variable_is_set(
    redis_server: RedisServer, saved_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    zygote = Zygote()
    try:
        runner = zygote.start_runner(redis_server.url, saved_models / "network").serve()
        assert runner.ready["engine"] == "session, single-threaded executor, oneDNN"
        assert runner.leave() == 0
    finally:
        zygote.stop()


@pytest.mark.usefixtures("_warm")
def test_the_zygote_ends_with_the_one_that_has_onednn(redis_server: RedisServer, saved_models: Path) -> None:
    zygote = Zygote()
    try:
        runner = zygote.start_runner(redis_server.url, saved_models / "convolution").serve()
        parent_pid = int(Path(f"/proc/{runner.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent_pid != zygote.process.pid
        os.kill(parent_pid, signal.SIGKILL)
        pids = (zygote.process.pid, runner.pid)
        wait_until(lambda: not any(is_running(pid) for pid in pids), "the end of both zygotes and the runner")
    finally:
        zygote.stop()


def test_a_ready_runner_and_every_thread_of_it_are_scheduled_normally(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "network").serve()
    assert runner.ready["load_priority"] == zygote.ready["load_priority"]
    threads = [int(task.name) for task in Path(f"/proc/{runner.pid}/task").iterdir()]
    assert len(threads) > 1
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {os.getpriority(os.PRIO_PROCESS, 0)}
    assert runner.leave() == 0


def test_without_the_right_to_come_back_a_runner_loads_at_normal_priority() -> None:
    code = (
        "import os, resource\n"
        "from common.process import scheduling\n"
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "os.geteuid() or os.setuid(65534)\n"
        "print(scheduling.best_permitted(), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    gentlest = "normal" if niceness < 19 else "nice"  # from the nicest, nobody has to come back
    assert done.stdout.split() == [gentlest, str(os.SCHED_OTHER), str(niceness)], done.stderr


def test_what_cannot_be_loaded_is_reported_with_tensorflows_reason(
    zygote: Zygote, redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"this is no SavedModel")
    runner = zygote.start_runner(redis_server.url, tmp_path)
    failed = runner.message("failed")
    assert failed["code"]
    assert "cannot load" in failed["message"]
    assert runner.wait() == 3


def test_nothing_is_taken_from_the_queue_before_a_runner_is_told_what_to_serve(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "affine/1")
    runner.message("ready")
    assert Asker(redis_server.url, "m").servers() == []
    runner.kill(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_way_a_runner_ended_is_reported(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path, number: signal.Signals
) -> None:
    runner = zygote.start_runner(redis_server.url, saved_models / "affine/1").serve()
    os.kill(runner.pid, number)
    assert runner.wait() == -number
