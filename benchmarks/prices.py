"""The price of traces and of TLS: serving and ingest with one of them beside the same without, in turn.

`python -m benchmarks.prices [traces] [tls] [--starts 6] [--rounds 6] [--seconds 1]`

CPU time per request is compared within a round, in which all are loaded one after the other: it depends less than
throughput on what else the machine does. It depends on the process, too: two that do the same differ by some percent
for as long as they live. So there are two of each kind, started anew several times; the first two beside the last two,
one of each kind on either side, are the control.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from benchmarks.ingest import Load, Platform, made_up_events, over_http_from, requests_per_second
from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.caller import PLAIN, Caller
from benchmarks.serving_load.model import saved, write_body
from common.access.authority import AUTHORITY, CERTIFICATE, KEY, LOCAL_HOSTS, issue_missing

_CONNECTIONS = 16
_EVENTS = 100
_SSL_CONFIG = "ssl.config"
Measure = Callable[[], tuple[float, float]]
"""(requests per second, CPU seconds per request)."""
Runs = list[list[tuple[float, float]]]
"""Of each process, what was measured in each round."""


@dataclass(frozen=True)
class Kind:
    """Settings of a service, without their prefix, and how it is called."""

    settings: Mapping[str, str] = field(default_factory=dict)
    caller: Caller = PLAIN


@dataclass(frozen=True)
class Price:
    title: str
    kind: Callable[[Path], Kind]
    """Its files are made in the folder."""
    limit: float


def _traced(directory: Path) -> Kind:
    return Kind({"TRACE_SAMPLE": "0.01"})


def _over_tls(directory: Path) -> Kind:
    issue_missing(directory / "tls", ["service"], hosts=LOCAL_HOSTS, days=1)
    folder, authority = directory / "tls" / "service", str(directory / "tls" / AUTHORITY)
    files = {
        "TLS_CERTIFICATE_FILE": str(folder / CERTIFICATE),
        "TLS_KEY_FILE": str(folder / KEY),
        "TLS_CA_FILE": authority,
    }
    pems = {"server_key": folder / KEY, "server_cert": folder / CERTIFICATE}
    lines = [f"{name}: {json.dumps(path.read_text())}" for name, path in pems.items()]
    (directory / _SSL_CONFIG).write_text("\n".join(lines))
    return Kind(files, Caller(ca_file=authority))


PRICES: Mapping[str, Price] = {
    "traces": Price("TRACE_SAMPLE=0.01", _traced, 1.02),
    "tls": Price("TLS_CERTIFICATE_FILE", _over_tls, 1.03),
}  # fmt: skip


def of_serving(url: str, front_pid: int, body: Path, seconds: int, caller: Caller = PLAIN) -> Measure:
    url, front = f"{url}/v1/models/{processes.MODEL}:predict", psutil.Process(front_pid)
    load.run(url, body, connections=_CONNECTIONS, seconds=1, caller=caller)

    def measure() -> tuple[float, float]:
        before = sum(front.cpu_times()[:2])
        seen = load.run(url, body, connections=_CONNECTIONS, seconds=seconds, caller=caller)
        if seen.errors:
            raise SystemExit(f"{seen.errors} of {seen.requests} predictions failed")
        return seen.per_second, (sum(front.cpu_times()[:2]) - before) / seen.requests

    return measure


def of_ingest(port: int, pid: int, seconds: int, caller: Caller = PLAIN) -> Measure:
    body, ingest = json.dumps({"events": made_up_events(_EVENTS)}).encode(), psutil.Process(pid)
    sent = Load("JSON", _EVENTS, over_http_from(port, body, "application/json", caller), 0)

    def measure() -> tuple[float, float]:
        before = sum(ingest.cpu_times()[:2])
        per_second, elapsed = requests_per_second(sent, seconds)
        return per_second, (sum(ingest.cpu_times()[:2]) - before) / (per_second * elapsed)

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
    ratios = [sum(turn[i][1] for i in above) / sum(turn[i][1] for i in below) for turn in rounds]
    return float(median(ratios))


def _ratios(name: str, ratios: Sequence[float]) -> dict[str, Cell]:
    return {name: median(ratios), f"{name}: least and most": f"{min(ratios):.3f} to {max(ratios):.3f}"}


def _kinds(price: Price, directory: Path) -> Sequence[Kind]:
    """Without and with, twice."""
    return (Kind(), price.kind(directory)) * 2


def _serving_runs(directory: Path, price: Price, options: argparse.Namespace) -> Runs:
    saved_model = saved(directory / "saved_model")
    body = write_body(directory / "body.json")
    with ExitStack() as stack:
        measures = []
        for number, kind in enumerate(_kinds(price, directory)):
            shutil.copytree(saved_model, directory / str(number) / "saved_model")
            # The front's alone: its calls of the registry are as ever.
            ours = {f"SERVING_{name}": value for name, value in kind.settings.items()}
            if kind.caller.ca_file:
                ours = {"SERVING_SSL_CONFIG_FILE": str(directory / _SSL_CONFIG)}
            running = stack.enter_context(
                processes.serving(
                    directory / f"run-{number}", directory / str(number) / "saved_model", ours, kind.caller
                )
            )
            measures.append(of_serving(running.url, running.front_pid, body, options.seconds, kind.caller))
        return in_turn(measures, options.rounds)


def _ingest_runs(directory: Path, price: Price, options: argparse.Namespace) -> Runs:
    cores = set(os.sched_getaffinity(0))
    with ExitStack() as stack:
        measures = []
        for number, kind in enumerate(_kinds(price, directory)):
            (directory / str(number)).mkdir()
            platform = Platform(directory / str(number), cores, cores, caller=kind.caller, **kind.settings)
            stack.callback(platform.stop)
            measures.append(of_ingest(platform.http_port, platform.ingest.pid, options.seconds, kind.caller))
        return in_turn(measures, options.rounds)


def _over(
    runs: Callable[[Path, Price, argparse.Namespace], Runs], price: Price, options: argparse.Namespace
) -> list[Runs]:
    found = []
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as name:
            found.append(runs(Path(name), price, options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prices", nargs="*", choices=[*PRICES, []], default=list(PRICES))
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args()
    for name in options.prices:
        price = PRICES[name]
        rows = [
            compared(subject, _over(runs, price, options), ("without", "with"), price.limit)
            for subject, runs in (
                (f"serving, {_CONNECTIONS} connections", _serving_runs),
                (f"ingest, JSON of {_EVENTS} events", _ingest_runs),
            )
        ]
        notes = [f"{options.starts} starts of 4 processes, each loaded in turn {options.rounds} times."]
        publish(f"price-{name}", f"{price.title} beside none", rows, notes=notes)


if __name__ == "__main__":
    main()
