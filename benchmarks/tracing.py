"""The price of traces: serving and ingest with TRACE_SAMPLE=0.01 beside the same without, in turn.

`python -m benchmarks.tracing [--rounds 24] [--seconds 1]`

All run all the while and are loaded one after the other, the order changing from round to round. CPU time per request
is compared within a round: it depends less than throughput on what else the machine does. There are two of each kind:
the first two beside the last two, one of each kind on either side, say how far apart processes are that do the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import psutil

from benchmarks.ingest import Load, Platform, made_up_events, over_http_from, requests_per_second
from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.model import write_body

_SHARES = ("0", "0.01", "0", "0.01")
_TITLES = ("without", "at 1 %")
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


def compared(
    name: str, measures: Sequence[Measure], titles: tuple[str, str], rounds: int, limit: float
) -> dict[str, Cell]:
    """Of processes of two kinds in turn, two of each: the second kind beside the first; and the control."""
    found: list[list[tuple[float, float]]] = [[] for _ in measures]
    for number in range(rounds):
        for place in range(len(measures)):
            which = (number + place) % len(measures)
            found[which].append(measures[which]())
    one, two, one_again, two_again = ([cpu for _, cpu in runs] for runs in found)
    return {
        "what": name,
        f"requests/s, {titles[0]}": round(median(rate for rate, _ in found[0] + found[2])),
        f"requests/s, {titles[1]}": round(median(rate for rate, _ in found[1] + found[3])),
        f"CPU us, {titles[0]}": median(one + one_again) * 1e6,
        f"CPU us, {titles[1]}": median(two + two_again) * 1e6,
        **_ratios("ratio", (two, two_again), (one, one_again)),
        **_ratios("control", (one_again, two_again), (one, two)),
        "limit": limit,
    }


def _ratios(name: str, these: Sequence[Sequence[float]], those: Sequence[Sequence[float]]) -> dict[str, Cell]:
    """Of the sums of each round: the median, and the quarter on either side."""
    above, below = (map(sum, zip(*runs, strict=True)) for runs in (these, those))
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return {name: middle, f"{name}: quartiles": f"{low:.3f} to {high:.3f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        saved = directory / "a" / "saved_model"
        save = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(saved)]
        subprocess.run(save, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
        for place in "bcd":
            shutil.copytree(directory / "a", directory / place)
        body = write_body(directory / "body.json")
        serving = []
        for place, share in zip("abcd", _SHARES, strict=True):
            with _setting("SERVING_TRACE_SAMPLE", share):
                running = stack.enter_context(
                    processes.serving(directory / f"run-{place}", directory / place / "saved_model")
                )
            serving.append(_of_serving(running, body, options.seconds))
        rows = [compared(f"serving, {_CONNECTIONS} connections", serving, _TITLES, options.rounds, _LIMIT)]
        cores = set(os.sched_getaffinity(0))
        ingest = []
        for number, share in enumerate(_SHARES):
            (directory / f"ingest-{number}").mkdir()
            platform = Platform(directory / f"ingest-{number}", cores, cores, trace_sample=share)
            stack.callback(platform.stop)
            ingest.append(_of_ingest(platform, options.seconds))
        rows.append(compared(f"ingest, JSON of {_EVENTS} events", ingest, _TITLES, options.rounds, _LIMIT))
    publish(
        "tracing",
        "TRACE_SAMPLE=0.01 beside 0",
        rows,
        notes=["All were there all the while and were loaded in turn; a ratio is of runs of the same round."],
    )


if __name__ == "__main__":
    main()
