"""The price of traces: serving and ingest with TRACE_SAMPLE=0.01 beside the same without, in turn.

`python -m benchmarks.tracing [--starts 6] [--rounds 6] [--seconds 1]`

CPU time per request is compared within a round, in which all are loaded one after the other: it depends less than
throughput on what else the machine does. It depends on the process, too: two that do the same differ by some percent
for as long as they live. So there are two of each kind, started anew several times; the first two beside the last two,
one of each kind on either side, are the control.
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
from statistics import median

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
Runs = list[list[tuple[float, float]]]
"""Of each process, what was measured in each round."""


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


def in_turn(measures: Sequence[Measure], rounds: int) -> Runs:
    """Of each process, once in a round."""
    found: Runs = [[] for _ in measures]
    for number in range(rounds):
        for place in range(len(measures)):
            which = (number + place) % len(measures)
            found[which].append(measures[which]())
    return found


def compared(name: str, starts: Sequence[Runs], titles: tuple[str, str], limit: float) -> dict[str, Cell]:
    """Processes of two kinds in turn, two of each: the second kind beside the first; and the control."""

    def kind(*places: int) -> list[tuple[float, float]]:
        return [run for start in starts for place in places for run in start[place]]

    return {
        "what": name,
        f"requests/s, {titles[0]}": round(median(rate for rate, _ in kind(0, 2))),
        f"requests/s, {titles[1]}": round(median(rate for rate, _ in kind(1, 3))),
        f"CPU us, {titles[0]}": median(cpu for _, cpu in kind(0, 2)) * 1e6,
        f"CPU us, {titles[1]}": median(cpu for _, cpu in kind(1, 3)) * 1e6,
        **_ratios("ratio", [_ratio(start, (1, 3), (0, 2)) for start in starts]),
        **_ratios("control", [_ratio(start, (2, 3), (0, 1)) for start in starts]),
        "limit": limit,
    }


def _ratio(start: Runs, above: Sequence[int], below: Sequence[int]) -> float:
    """The median over the rounds."""
    rounds = zip(*start, strict=True)
    ratios = [sum(one[i][1] for i in above) / sum(one[i][1] for i in below) for one in rounds]
    return float(median(ratios))


def _ratios(name: str, ratios: Sequence[float]) -> dict[str, Cell]:
    return {name: median(ratios), f"{name}: least and most": f"{min(ratios):.3f} to {max(ratios):.3f}"}


def _serving_runs(directory: Path, options: argparse.Namespace) -> Runs:
    saved = directory / "saved_model"
    save = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(saved)]
    subprocess.run(save, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    body = write_body(directory / "body.json")
    with ExitStack() as stack:
        measures = []
        for number, share in enumerate(_SHARES):
            shutil.copytree(saved, directory / str(number) / "saved_model")
            with _setting("SERVING_TRACE_SAMPLE", share):
                running = stack.enter_context(
                    processes.serving(directory / f"run-{number}", directory / str(number) / "saved_model")
                )
            measures.append(_of_serving(running, body, options.seconds))
        return in_turn(measures, options.rounds)


def _ingest_runs(directory: Path, options: argparse.Namespace) -> Runs:
    cores = set(os.sched_getaffinity(0))
    with ExitStack() as stack:
        measures = []
        for number, share in enumerate(_SHARES):
            (directory / str(number)).mkdir()
            platform = Platform(directory / str(number), cores, cores, trace_sample=share)
            stack.callback(platform.stop)
            measures.append(_of_ingest(platform, options.seconds))
        return in_turn(measures, options.rounds)


def _over(starts: int, runs: Callable[[Path, argparse.Namespace], Runs], options: argparse.Namespace) -> list[Runs]:
    found = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as name:
            found.append(runs(Path(name), options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args()
    rows = [
        compared(what, _over(options.starts, runs, options), _TITLES, _LIMIT)
        for what, runs in (
            (f"serving, {_CONNECTIONS} connections", _serving_runs),
            (f"ingest, JSON of {_EVENTS} events", _ingest_runs),
        )
    ]
    publish(
        "tracing",
        "TRACE_SAMPLE=0.01 beside 0",
        rows,
        notes=[f"{options.starts} starts of {len(_SHARES)} processes, each loaded in turn {options.rounds} times."],
    )


if __name__ == "__main__":
    main()
