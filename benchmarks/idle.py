"""CPU time and wake-ups of a platform to which nothing comes, by process and by thread, as the kernel counts them.

`python -m benchmarks.idle [--seconds N] [--models]`: `--models` has the flights learned and served before.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.report import Cell, publish
from benchmarks.startup import learn_flights
from headrace.local.launcher import Launcher

_LIMIT_PERCENT = 1.0
_SETTLE_SECONDS = 40.0
"""After a message the threads of gRPC look out for the next ever less often; the supervisor's probes too."""
Threads = dict[tuple[str, str, int], tuple[int, float]]
"""By process, the kernel's name of the thread, and its number: waits that it has begun, milliseconds of a core."""


def _threads(names: dict[int, str]) -> Threads:
    found: Threads = {}
    for pid, name in names.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            status, spent = (task / "status").read_text(), (task / "schedstat").read_text().split()[0]
            waits = int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
            found[name, (task / "comm").read_text().strip(), int(task.name)] = waits, int(spent) / 1e6
    return found


def _processes(launcher: Launcher) -> dict[int, str]:
    """All of the platform by pid; children have the name of the process that the supervisor has started."""
    state = launcher.state()
    found = {state.supervisor_pid: "supervisor"}
    for process in state.processes:
        found[process.pid] = process.name
        found |= {child.pid: process.name for child in psutil.Process(process.pid).children(recursive=True)}
    return found


def _idle(seconds: float, *, with_models: bool) -> tuple[Threads, Threads]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-idle-"))
    launcher = Launcher(folder)
    try:
        launcher.up(port_offset=None, detached=True)
        launcher.wait_until_ready()
        if with_models:
            learn_flights(launcher, until=time.monotonic() + 120)
        time.sleep(_SETTLE_SECONDS)
        names = _processes(launcher)
        before = _threads(names)
        time.sleep(seconds)
        return before, _threads(names)
    finally:
        launcher.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--models", action="store_true")
    options = parser.parse_args()
    before, after = _idle(options.seconds, with_models=options.models)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, (waits, spent) in after.items():
        waits_before, spent_before = before.get(key, (0, 0.0))
        for name in (key[:2], (key[0], "all"), ("all", "all")):
            sums[name][0] += (waits - waits_before) / options.seconds
            sums[name][1] += (spent - spent_before) / options.seconds / 10
    rows: list[dict[str, Cell]] = [
        {
            "process": process,
            "threads": threads,
            "wake-ups/s": woken,
            "% of a core": percent,
            "limit": _LIMIT_PERCENT if process == "all" else None,
        }
        for (process, threads), (woken, percent) in sorted(sums.items())
        if threads == "all" or woken >= 1
    ]
    publish("idle", f"An idle platform{' with a model' if options.models else ''}, over {options.seconds:g} s", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
