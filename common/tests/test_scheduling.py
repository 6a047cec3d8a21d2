"""Scheduling: what gives way comes back whole, and stays in the scheduling group of the front."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from common.process import scheduling
from common.process.scheduling import LoadPriority


def in_a_child(act: Callable[[], None]) -> None:
    """Runs in a forked process, so that this one keeps its priority."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def nice_values() -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, int(name)) for name in os.listdir("/proc/self/task")}  # noqa: PTH208


def policies() -> set[int]:
    return {os.sched_getscheduler(int(name)) for name in os.listdir("/proc/self/task")}  # noqa: PTH208


@pytest.mark.parametrize("made_nice", [0, 3])
@pytest.mark.parametrize("priority", [LoadPriority.IDLE, LoadPriority.NICE])
def test_every_thread_gives_way_and_comes_back_to_what_the_operator_gave(
    priority: LoadPriority, made_nice: int
) -> None:
    if scheduling.best_permitted() is LoadPriority.NORMAL:
        pytest.skip("coming back is not permitted here")

    def act() -> None:
        normal = os.nice(made_nice)
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        scheduling.stay_in_background(priority)
        assert nice_values() == {min(normal + 10, 19)}
        scheduling.step_back(priority)
        if priority is LoadPriority.IDLE:
            assert policies() == {os.SCHED_IDLE}
        else:
            assert nice_values() == {19}
        scheduling.return_to_normal(priority)
        assert nice_values() == {normal}
        assert policies() == {os.SCHED_OTHER}
        done.set()
        thread.join(60)

    in_a_child(act)


def test_without_the_permission_to_come_back_nothing_gives_way() -> None:
    def act() -> None:
        before = nice_values()
        scheduling.stay_in_background(LoadPriority.NORMAL)
        scheduling.step_back(LoadPriority.NORMAL)
        assert nice_values() == before
        assert policies() == {os.SCHED_OTHER}

    in_a_child(act)


def test_the_manager_leaves_the_process_group_of_the_front_but_not_its_session() -> None:
    code = (
        "import os; from common.process import scheduling; scheduling.leave_process_group();"
        " print(os.getpgid(0) == os.getpid(), os.getsid(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", str(os.getsid(0))]
