"""Processes that a round leaves behind: they would go on in the folders of its model's next rounds, and take cores.

A process whose parent has ended has the zygote for its parent (prctl(2), PR_SET_CHILD_SUBREAPER), whatever its session
and group are. A round that makes one on purpose, while it runs, loses it with its own end at the latest.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_MOST_SECONDS, _PAUSE_SECONDS = 4.0, 0.01


def come_to_this_process() -> None:
    """From now on; not those of processes that it forks and that ask for the same."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_be_found() -> bool:
    """The kernel lists the children of a thread (CONFIG_PROC_CHILDREN)."""
    return _children().exists()


def end(known: Collection[int]) -> None:
    """Kills children of this process, which has one thread, that are none of the `known`, and takes their statuses.
    Their end is a SIGCHLD of its own, after which it is called again."""
    for pid in map(int, _children().read_text().split()) if can_be_found() else ():
        if pid not in known:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)


def end_all() -> None:
    """Kills all that descend from this process, generation by generation: those of a child that is killed come here.
    Gives up after some seconds."""
    deadline = time.monotonic() + _MOST_SECONDS
    while can_be_found() and _children().read_text() and time.monotonic() < deadline:
        end(())
        time.sleep(_PAUSE_SECONDS)


def _children() -> Path:
    return Path(f"/proc/self/task/{os.getpid()}/children")
