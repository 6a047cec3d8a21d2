"""Watches the machine itself: processes that do nothing but wake up each millisecond and note when they woke late.

    python -m benchmarks.serving_load.canary SECONDS OUT

Runs for that many seconds or until SIGTERM. OUT gets an array of rows (from, to, kind), on the monotonic clock, one per
late wake: `from` is when it should have woken.
Kind 0, the machine: SCHED_FIFO, one per core; nothing of ours can delay it but the kernel or the hypervisor.
Kind 1, the scheduler: a normal process; it is late, too, when others run that it has to wait for.
Without the permission for SCHED_FIFO there is only kind 1.
"""

import contextlib
import gc
import os
import signal
import sys
import time
from types import FrameType

import numpy as np

from benchmarks.serving_load.open_loop import run_in_real_time

MACHINE, SCHEDULER = 0, 1
LATE_SECONDS = {MACHINE: 0.002, SCHEDULER: 0.005}
_PERIOD_SECONDS = 0.001
_PRIORITY = 60


def watch(seconds: float, kind: int) -> list[tuple[float, float, int]]:
    """The late wakes of this process."""
    late_seconds = LATE_SECONDS[kind]
    late = []
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    due_at = time.monotonic()
    until = due_at + seconds
    while due_at < until and not stopped:
        due_at += _PERIOD_SECONDS
        left_seconds = due_at - time.monotonic()
        if left_seconds > 0:
            time.sleep(left_seconds)
        now = time.monotonic()
        if now - due_at > late_seconds:
            late.append((due_at, now, kind))
            due_at = now
    return late


def _watch_in_child(seconds: float, kind: int, core: int | None) -> tuple[int, int]:
    """Forks; (process id, file from which its rows can be read)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    status = 1
    try:
        gc.disable()
        if core is not None:
            os.sched_setaffinity(0, {core})
        if kind == SCHEDULER or run_in_real_time(_PRIORITY):
            rows = np.array(watch(seconds, kind), np.float64).reshape(-1, 3)
            with os.fdopen(writer, "wb") as out:
                out.write(rows.tobytes())
            status = 0
    finally:
        os._exit(status)


def main(seconds: float, out: str) -> None:
    watchers = [_watch_in_child(seconds, MACHINE, core) for core in sorted(os.sched_getaffinity(0))]
    watchers.append(_watch_in_child(seconds, SCHEDULER, None))

    def stop(number: int, frame: FrameType | None) -> None:
        for pid, _ in watchers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    signal.signal(signal.SIGTERM, stop)
    rows = []
    for pid, reader in watchers:
        with os.fdopen(reader, "rb") as found:
            rows.append(np.frombuffer(found.read(), np.float64).reshape(-1, 3))
        os.waitpid(pid, 0)
    np.save(out, np.concatenate(rows))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
