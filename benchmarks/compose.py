"""The platform in containers: from `docker compose up` to the first gated prediction, memory per container,
freshness, and what an absence of Redis costs.

`make bench MODE=compose`, or `python -m benchmarks.compose [--seconds 60]`; needs an engine and `make images`.
"""

import argparse
import os
import subprocess
import sys
import time

from benchmarks.report import Cell, publish
from benchmarks.startup import learn_flights
from headrace.compose.platform import ComposeLauncher

_LONGEST_SECONDS = 180.0
_TARGET_SECONDS = 60.0
_LIMIT_MB = {
    "proxy": 256, "registry": 512, "ingest": 1024, "trainer": 3072, "serving-0": 3072, "tensorboard": 1024,
    "kafka": 1024, "redis": 512,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long events come for freshness")
    seconds = parser.parse_args().seconds
    first = _measure_first_prediction()
    failed = first > _TARGET_SECONDS
    for name, options in (("freshness", ["--seconds", str(seconds)]), ("redis_away", [])):
        command = [sys.executable, "-m", f"benchmarks.{name}", "--mode", "compose", *options]
        failed |= subprocess.run(command, check=False, timeout=seconds + 600).returncode != 0
    return int(failed)


def _measure_first_prediction() -> float:
    """Seconds until the first prediction by a gated version; every container runs, TensorBoard too."""
    launcher = ComposeLauncher(project="headrace-startup", is_temporary=True)
    load = os.getloadavg()[0]
    began = time.monotonic()
    try:
        launcher.up(port_offset=None)
        started = time.monotonic() - began
        launcher.wait_until_ready(timeout_seconds=_LONGEST_SECONDS, names=("registry", "ingest"))
        ready = time.monotonic() - began
        flights = learn_flights(launcher, until=began + _LONGEST_SECONDS)
        first = time.monotonic() - began
        launcher.wait_until_ready(timeout_seconds=_LONGEST_SECONDS)
        memory = launcher.state().memory_mb()
    finally:
        launcher.close()
    rows: list[dict[str, Cell]] = [
        {"what": "every container started, s", "measured": started, "target": None},
        {"what": "registry and ingest take calls, s", "measured": ready, "target": None},
        {"what": f"first prediction by a gated version ({flights:,} flights), s", "measured": first,
         "target": _TARGET_SECONDS},
    ]  # fmt: skip
    publish("compose_start", "docker compose up, images built, to the first gated prediction", rows,
            facts={"load_average_before": load})  # fmt: skip
    publish(
        "compose_memory",
        f"Memory per container after {flights:,} flights, without the page cache",
        [{"container": name, "MB": used, "limit MiB": _LIMIT_MB.get(name)} for name, used in sorted(memory.items())],
    )
    return first


if __name__ == "__main__":
    sys.exit(main())
