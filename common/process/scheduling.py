"""How a runner keeps out of the way while it loads, and comes back to normal when it is ready.

SCHED_IDLE threads run only when no other thread wants the core; leaving it again needs CAP_SYS_NICE or RLIMIT_NICE
(sched(7)), and so does lowering a nice value. What is permitted is found out by a child that tries it, before a runner
depends on it.

All of this counts within a scheduling group only. Linux makes one of every session (sched(7), autogroup) unless
containers make their own, and shares the cores between groups before it looks at their members: a loading runner that
is alone in its session has the weight of a whole session, SCHED_IDLE or not. So serving stays in one session.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

_NICEST = 19
_BACKGROUND_STEP = 10
_NORMAL_VARIABLE = "HEADRACE_NORMAL_NICENESS"
"""Set by the first process of a tree that goes to the background, for those that it starts there."""


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


def normal_niceness() -> int:
    """The operator's choice at the start: a process that was made nice comes back to that value and not to 0."""
    return int(os.environ.get(_NORMAL_VARIABLE) or os.getpriority(os.PRIO_PROCESS, 0))


def lower_normal_niceness(priority: LoadPriority) -> None:
    """Has this process come back from `priority` to a tenth of a share of a busy core. Call while single-threaded."""
    lower = min(normal_niceness() + _BACKGROUND_STEP, _NICEST)
    os.environ[_NORMAL_VARIABLE] = str(lower)
    if priority is LoadPriority.NORMAL:
        os.setpriority(os.PRIO_PROCESS, 0, lower)


def leave_process_group() -> None:
    """Ctrl-C in a terminal then reaches the front alone, which stops everything in order. The session is kept."""
    with contextlib.suppress(PermissionError):  # it leads its session, and its group then already
        os.setpgid(0, 0)


def step_back(priority: LoadPriority) -> None:
    """Every thread of this process gives way to everybody else; threads that are started later do so too.

    For a whole process alone: a thread that gives way keeps Python's lock while it waits for a core.
    """
    for thread_id in _threads(os.getpid()):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            _step_back(thread_id, priority)


def stay_in_background(priority: LoadPriority) -> None:
    """For a process that answers no request itself: a tenth of a share, and behind every thread that wakes up to answer
    a request.

    Its children begin like that; `return_to_normal` ends it. Nothing happens where that would not be permitted.
    """
    if priority is not LoadPriority.NORMAL:
        os.environ[_NORMAL_VARIABLE] = str(normal_niceness())
        for thread_id in _threads(os.getpid()):
            os.setpriority(os.PRIO_PROCESS, thread_id, min(normal_niceness() + _BACKGROUND_STEP, _NICEST))


def return_to_normal(priority: LoadPriority, *, pid: int | None = None) -> None:
    """Undoes step_back and stay_in_background for every thread of this process, or of another: TensorFlow's pools have
    inherited them. Raises OSError: not permitted, or there is no such process."""
    if priority is LoadPriority.NORMAL:
        return
    # Twice: a thread may start another one while the list is gone through; once the starters are normal, so are those.
    for _ in range(2):
        for thread_id in _threads(pid or os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                _normalise(thread_id, priority)


def _threads(pid: int) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def _step_back(thread_id: int, priority: LoadPriority) -> None:
    if priority is LoadPriority.IDLE:
        os.sched_setscheduler(thread_id, os.SCHED_IDLE, os.sched_param(0))
    if priority is LoadPriority.NICE:
        os.setpriority(os.PRIO_PROCESS, thread_id, _NICEST)


def _normalise(thread_id: int, priority: LoadPriority) -> None:
    if priority is LoadPriority.NORMAL:
        return
    if priority is LoadPriority.IDLE:
        os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, thread_id, normal_niceness())


def _try(priority: LoadPriority) -> None:
    stay_in_background(priority)
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
