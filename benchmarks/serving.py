"""Rows 4 and 8: predictions per second and latency over one serving instance, beside the bare model.

    python -m benchmarks.serving                          Headrace alone: throughput, CPU time by process, limits
    python -m benchmarks.serving --rivals [NAME ...]      beside the rivals that are installed, or those named
                                                          (python -m benchmarks.rivals.install)

The whole path runs: HTTP, front, Redis queue, runner. The load generator shares the machine with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.report import Cell, publish
from benchmarks.rivals import comparison
from benchmarks.rivals.catalog import RIVALS
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.model import saved, write_body
from common.process.memory import private_bytes
from services.serving.engines.onednn import VARIABLE

_SECONDS = int(os.environ.get("BENCH_SECONDS", "6"))
_RIVALS_SECONDS = 2
_WARM_UP_SECONDS = 3
_MAX_BATCH_SIZE = 64
_ADDED_LIMITS_MS = {"p50": 1.0, "p99": 3.0}
_MOST_RESIDENT_MB = 120
_MOST_PRIVATE_MB = 40
_START_LIMIT_SECONDS = 1.0


def _model_seconds(saved_model: Path) -> dict[int, float]:
    """Seconds per call of the runner's engine, by batch size, in a separate process."""
    sizes = [str(min(connections, _MAX_BATCH_SIZE)) for connections in comparison.CONNECTIONS]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving_load.model", "time", str(saved_model), *sorted(set(sizes), key=int)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", VARIABLE: "0"}, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return {int(size): seconds for size, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def _check(url: str, body: Path) -> None:
    """One prediction that is a distribution over the ten classes: what is measured has to be right."""
    with urllib.request.urlopen(urllib.request.Request(url, body.read_bytes()), timeout=10) as answer:
        predictions = np.array(json.load(answer)["predictions"])
    assert predictions.shape == (1, 10)
    assert np.isclose(predictions.sum(), 1, atol=1e-5)


@dataclass(frozen=True)
class Level:
    """What one number of connections saw; CPU seconds by process."""

    connections: int
    load: load.Load
    cpu_seconds: Mapping[str, float]


def _measure(running: processes.Running, body: Path, seconds: int) -> list[Level]:
    url = f"{running.url}/v1/models/{processes.MODEL}:predict"
    _check(url, body)
    load.run(url, body, connections=32, seconds=_WARM_UP_SECONDS)
    levels = []
    for connections in comparison.CONNECTIONS:
        before = running.cpu_seconds()
        seen = load.run(url, body, connections=connections, seconds=seconds)
        after = running.cpu_seconds()
        levels.append(Level(connections, seen, {name: after[name] - before[name] for name in before}))
    return levels


def _publish_levels(levels: Sequence[Level], model_seconds: Mapping[int, float], seconds: int) -> None:
    rows: list[Mapping[str, Cell]] = []
    cpu: list[Mapping[str, Cell]] = []
    for level in levels:
        batch_size = min(level.connections, _MAX_BATCH_SIZE)
        rows.append(
            {
                "connections": level.connections,
                "predictions/s": round(level.load.per_second),
                "p50 ms": level.load.p50_ms,
                "p99 ms": level.load.p99_ms,
                "errors": level.load.errors,
                "bare model call us": round(model_seconds[batch_size] * 1e6),
                "bare model/s": round(batch_size / model_seconds[batch_size]),
            }
        )
        per_request = {f"{name}, us": used / level.load.requests * 1e6 for name, used in level.cpu_seconds.items()}
        cpu.append({"connections": level.connections, **per_request})
    publish(
        "serving",
        "Predictions over one instance (row 4)",
        rows,
        notes=[
            f"Load: {load.generator()}, {seconds} s a line, same {os.cpu_count()} cores; 64 floats as JSON.",
            "Bare model: the runner's own call of the same model, called in a loop with min(connections, 64) rows.",
            f"Machine load while this ran: {os.getloadavg()[0]:.1f}.",
        ],
    )
    publish("serving_cpu", "CPU time per prediction, by process", cpu)


def _publish_costs(alone: load.Load, model_seconds: float, costs: Mapping[str, tuple[float, float]]) -> None:
    call_ms = model_seconds * 1e3
    added = {
        f"the path around the model, 1 connection, {name}, ms": (value - call_ms, _ADDED_LIMITS_MS[name])
        for name, value in (("p50", alone.p50_ms), ("p99", alone.p99_ms))
    }
    rows: list[Mapping[str, Cell]] = [
        {"what": row, "measured": measured, "limit": limit} for row, (measured, limit) in {**added, **costs}.items()
    ]
    publish("serving_path", "What the path adds (row 8), and what the processes cost", rows)


def _compare(saved_model: Path, directory: Path, options: argparse.Namespace) -> None:
    out = directory / "reference.npz"
    command = [sys.executable, "-m", "benchmarks.serving_load.model", "reference", str(saved_model), str(out)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command, env=environment, check=True, timeout=120)
    found = np.load(out)
    reference = comparison.Reference(found["inputs"], found["outputs"])
    seconds = options.seconds or _RIVALS_SECONDS
    comparison.compare(saved_model, reference, directory, options.rivals, seconds=seconds, rounds=options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--rivals", nargs="*", choices=sorted(RIVALS), help="measure these beside Headrace")
    parser.add_argument("--seconds", type=int, help=f"per line: {_SECONDS}, beside the rivals {_RIVALS_SECONDS}")
    parser.add_argument("--rounds", type=int, default=3, help="over all servers, beside the rivals")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        saved_model = saved(directory / "saved_model")
        if options.rivals is not None:
            _compare(saved_model, directory, options)
            return
        model_seconds, seconds = _model_seconds(saved_model), options.seconds or _SECONDS
        with processes.serving(directory / "run", saved_model) as running:
            levels = _measure(running, write_body(directory / "body.json"), seconds)
            resident_mb = psutil.Process(running.front_pid).memory_info().rss / 2**20
            private_mb = private_bytes(running.pids["runner"]) / 2**20
        _publish_levels(levels, model_seconds, seconds)
        costs = {
            "front: start to /healthz, s": (running.start_seconds, _START_LIMIT_SECONDS),
            "front: resident, MB": (resident_mb, _MOST_RESIDENT_MB),
            "runner: private after the load, MB": (private_mb, _MOST_PRIVATE_MB),
        }
        _publish_costs(levels[0].load, model_seconds[1], costs)


if __name__ == "__main__":
    main()
