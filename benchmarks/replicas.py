"""1, 2 and 4 replicas on one queue: what each further replica adds, with requests to the first and spread over all of
them.

    python -m benchmarks.replicas [--replicas 1 2 4] [--seconds N]

Each replica is a front, a manager and a runner; a front puts requests into the one queue of Redis, and a free runner
takes them. On a machine with as many cores as one replica keeps busy, more of them cannot be faster; the table
says how much is lost, and on a larger machine how much is won.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.model import write_body

_CONNECTIONS = 64
_WARM_UP_SECONDS = 2


def _together(urls: Sequence[str], body: Path, seconds: int) -> load.Load:
    """All urls at once, the connections spread evenly; percentiles are those of the slowest."""
    connections = max(_CONNECTIONS // len(urls), 1)
    with ThreadPoolExecutor(len(urls)) as pool:
        seen = list(pool.map(lambda url: load.run(url, body, connections=connections, seconds=seconds), urls))
    return load.Load(
        sum(item.requests for item in seen), max(item.seconds for item in seen), max(item.p50_ms for item in seen),
        max(item.p99_ms for item in seen), sum(item.errors for item in seen),
    )  # fmt: skip


def _measure(count: int, saved_model: Path, folder: Path, seconds: int) -> list[Mapping[str, Cell]]:
    body = write_body(folder / "body.json")
    rows: list[Mapping[str, Cell]] = []
    with processes.replicas(folder / "run", saved_model, count) as urls:
        predict = [f"{url}/v1/models/{processes.MODEL}:predict" for url in urls]
        for signatures, chosen in {"the first": predict[:1], "all": predict}.items():
            _together(chosen, body, _WARM_UP_SECONDS)
            seen = _together(chosen, body, seconds)
            rows.append({
                "replicas": count,
                "asked": signatures,
                "connections": _CONNECTIONS,
                "predictions/s": round(seen.per_second),
                "p50 ms": seen.p50_ms,
                "p99 ms": seen.p99_ms,
                "errors": seen.errors,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=int, default=5, help="per line")
    options = parser.parse_args()
    rows: list[Mapping[str, Cell]] = []
    for count in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            saved_model = Path(folder) / "saved_model"
            environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
            save = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(saved_model)]
            subprocess.run(save, env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)
            rows += _measure(count, saved_model, Path(folder), options.seconds)
    cores = os.cpu_count()
    notes = [f"{load.generator()}, {options.seconds} s a line, {cores} cores; load average {os.getloadavg()[0]:.1f}."]
    publish("replicas", "Replicas on one queue", rows, notes=notes)


if __name__ == "__main__":
    main()
