"""How a runner keeps out of the way while it loads, and comes back to normal when it is ready.

SCHED_IDLE threads run only when nobody else wants the core; leaving it again needs CAP_SYS_NICE or RLIMIT_NICE
(sched(7)), and so does lowering a nice value. What is permitted is found out by a child that tries it, before a runner
depends on it.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

_NICE_VALUE = 19


class LoadPriority(StrEnum):
    """How a runner is scheduled until it is ready."""

    IDLE = "idle"
    NICE = "nice"
    NORMAL = "normal"


def best_permitted() -> LoadPriority:
    """The gentlest priority that a child of this process can come back from. Forks; call while single-threaded."""
    for priority in (LoadPriority.IDLE, LoadPriority.NICE):
        if _child_succeeds(functools.partial(_try, priority)):
            return priority
    return LoadPriority.NORMAL


def step_back(priority: LoadPriority) -> None:
    """Gives way to everybody else; threads that this one starts do so too."""
    if priority is LoadPriority.IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if priority is LoadPriority.NICE:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE_VALUE)


def return_to_normal(priority: LoadPriority, *, pid: int | None = None) -> None:
    """Undoes step_back for every thread of this process, or of another one: TensorFlow's pools have inherited it.

    Raises:
        OSError: not permitted, or there is no such process.
    """
    if priority is LoadPriority.NORMAL:
        return
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    # Twice: a thread may start another one while the list is gone through; once the starters are normal, so are those.
    for _ in range(2):
        for task in tasks.iterdir():
            with contextlib.suppress(ProcessLookupError):
                _normalise(int(task.name), priority)


def _normalise(thread_id: int, priority: LoadPriority) -> None:
    if priority is LoadPriority.IDLE:
        os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))
        return
    os.setpriority(os.PRIO_PROCESS, thread_id, 0)


def _try(priority: LoadPriority) -> None:
    step_back(priority)
    return_to_normal(priority)


def _child_succeeds(attempt: Callable[[], None]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0
