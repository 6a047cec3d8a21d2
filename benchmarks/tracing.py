"""The price of traces: serving and ingest with TRACE_SAMPLE=0.01 beside the same without, in turn.

`python -m benchmarks.tracing [--rounds 9] [--seconds 3]`

Both run all the while and are loaded one after the other, the order changing from round to round. CPU time per request
of the process that traces is compared pair by pair: it depends less than throughput on what else the machine does.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.ingest import Load, Platform, made_up_events, over_http_from, requests_per_second
from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.model import write_body

_SHARES = ("0", "0.01")
_LIMIT = 1.02
_CONNECTIONS = 16
_EVENTS = 100
Measure = Callable[[], tuple[float, float]]
"""(requests per second, CPU seconds per request)."""


@contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    """Of the processes that are started within."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _of_serving(running: processes.Running, body: Path, seconds: int) -> Measure:
    url, front = f"{running.url}/v1/models/{processes.MODEL}:predict", psutil.Process(running.front_pid)
    load.run(url, body, connections=_CONNECTIONS, seconds=1)

    def measure() -> tuple[float, float]:
        before = sum(front.cpu_times()[:2])
        seen = load.run(url, body, connections=_CONNECTIONS, seconds=seconds)
        return seen.per_second, (sum(front.cpu_times()[:2]) - before) / seen.requests

    return measure


def _of_ingest(platform: Platform, seconds: int) -> Measure:
    body = json.dumps({"events": made_up_events(_EVENTS)}).encode()
    sent = Load("JSON", _EVENTS, over_http_from(platform.http_port, body, "application/json"), 0)

    def measure() -> tuple[float, float]:
        before = platform.cpu_seconds()
        per_second, elapsed = requests_per_second(sent, seconds)
        return per_second, (platform.cpu_seconds() - before) / (per_second * elapsed)

    return measure


def _compared(name: str, pair: tuple[Measure, Measure], rounds: int) -> dict[str, Cell]:
    without, traced = pair
    pairs = []
    for number in range(rounds):
        order = (without, traced) if number % 2 else (traced, without)
        first, second = (measure() for measure in order)
        pairs.append((first, second) if number % 2 else (second, first))
    ratios = sorted(with_cpu / cpu for (_, cpu), (_, with_cpu) in pairs)
    return {
        "what": name,
        "requests/s without": round(median(rate for (rate, _), _ in pairs)),
        "requests/s at 1 %": round(median(rate for _, (rate, _) in pairs)),
        "CPU us without": median(cpu for (_, cpu), _ in pairs) * 1e6,
        "CPU us at 1 %": median(cpu for _, (_, cpu) in pairs) * 1e6,
        "CPU ratio, median of pairs": median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "limit": _LIMIT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        saved = directory / "a" / "saved_model"
        save = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(saved)]
        subprocess.run(save, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
        shutil.copytree(directory / "a", directory / "b")
        body = write_body(directory / "body.json")
        serving = []
        for place, share in zip("ab", _SHARES, strict=True):
            with _setting("SERVING_TRACE_SAMPLE", share):
                running = stack.enter_context(
                    processes.serving(directory / f"run-{place}", directory / place / "saved_model")
                )
            serving.append(_of_serving(running, body, options.seconds))
        rows = [_compared(f"serving, {_CONNECTIONS} connections", (serving[0], serving[1]), options.rounds)]
        cores = set(os.sched_getaffinity(0))
        ingest = []
        for share in _SHARES:
            (directory / f"ingest-{share}").mkdir()
            platform = Platform(directory / f"ingest-{share}", cores, cores, trace_sample=share)
            stack.callback(platform.stop)
            ingest.append(_of_ingest(platform, options.seconds))
        rows.append(_compared(f"ingest, JSON of {_EVENTS} events", (ingest[0], ingest[1]), options.rounds))
    publish(
        "tracing",
        "TRACE_SAMPLE=0.01 beside 0",
        rows,
        notes=["Both were there all the while and were loaded in turn; a ratio is of two runs next to each other."],
    )


if __name__ == "__main__":
    main()
