"""A short reading of what the loop is for, beside those that were kept: a landing that makes it slower is seen.

    python -m benchmarks.readings [--keep]

Runs `freshness` and `reload` for some seconds each and prints their figures beside the last lines of
benchmarks/results/readings.tsv. Machines differ by 2.5 times, so each line carries the seconds of a fixed loop on every
core, and the ratio is shown with that divided out. --keep adds the line for this commit. Nothing is asserted.
"""

import argparse
import csv
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import OUTPUT_DIR

_FILE = Path(__file__).parent / "results" / "readings.tsv"
_SHOWN = 3
_LIMIT_SECONDS = 240
_TURNS = 1_000_000
_FRESHNESS = ("--seconds", "30", "--replicas", "1")
_RELOAD = ("--model", "small", "--reloads", "4", "--every", "4")
_BY_SPEED = ("machine_seconds", "freshness_p50_seconds", "freshness_p95_seconds", "change_seconds")
"""Half as much on a machine twice as fast."""


@dataclass(frozen=True)
class Reading:
    """One line of the file. NaN where the benchmark gave no figure.

    Attributes:
        machine_seconds: of the fixed loop on every core at once, the slowest core's.
        freshness_p50_seconds, freshness_p95_seconds: from acknowledged to served, 1,000 events/s.
        versions: promoted in that time.
        reload_ratio: p99 in reload windows / p99 steady, at 70 % of the capacity.
        reload_failed: requests.
        change_seconds: from the change of the alias to available, median.
    """

    date: str
    commit: str
    machine_seconds: float
    freshness_p50_seconds: float
    freshness_p95_seconds: float
    versions: float
    reload_ratio: float
    reload_failed: float
    change_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readings")
    parser.add_argument("--keep", action="store_true", help=f"add the line to {_FILE.name}")
    options = parser.parse_args()
    reading = _read()
    kept = _kept()
    _print([*kept[-_SHOWN:], reading])
    if options.keep:
        _write([*kept, reading])


def _read() -> Reading:
    machine_seconds = _fixed_loop_seconds()
    freshness = _facts("freshness", _FRESHNESS)
    reload = {str(row["what"]): float(row["measured"]) for row in _document("reload_small", "reload", _RELOAD)["rows"]}
    nan = float("nan")
    return Reading(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=_commit(),
        machine_seconds=machine_seconds,
        freshness_p50_seconds=float(freshness.get("p50_seconds", nan)),
        freshness_p95_seconds=float(freshness.get("p95_seconds", nan)),
        versions=float(freshness.get("versions", nan)),
        reload_ratio=reload.get("p99 in windows / p99 steady", nan),
        reload_failed=reload.get("failed requests", nan),
        change_seconds=reload.get("change to available s, median", nan),
    )


def _facts(name: str, options: tuple[str, ...]) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = _document(name, name, options).get("facts", {})
    return facts


def _document(file_name: str, benchmark: str, options: tuple[str, ...]) -> dict[str, Any]:
    """What the benchmark wrote in this run; without figures where it ended without any."""
    path = OUTPUT_DIR / f"{file_name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *options]
    try:
        subprocess.run(command, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"{benchmark}: not done after {_LIMIT_SECONDS} s", file=sys.stderr)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": [], "facts": {}}
    return found


def _fixed_loop_seconds() -> float:
    with multiprocessing.Pool(os.cpu_count()) as pool:
        return max(pool.map(_loop, range(os.cpu_count() or 1)))


def _loop(_: int) -> float:
    began, digest = time.monotonic(), b""
    for number in range(_TURNS):
        digest = hashlib.sha256(digest + b"%d" % number).digest()
    return time.monotonic() - began


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip() or "unknown"


def _kept() -> list[Reading]:
    if not _FILE.exists():
        return []
    with _FILE.open(newline="") as file:
        return [_reading(row) for row in csv.DictReader(file, delimiter="\t")]


def _reading(row: Mapping[str, str]) -> Reading:
    return Reading(row["date"], row["commit"], **{name: float(row[name]) for name in _numbers()})


def _write(readings: list[Reading]) -> None:
    with _FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Reading)], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in asdict(reading).items()} for reading in readings)


def _numbers() -> list[str]:
    return [field.name for field in fields(Reading) if field.type is float]


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _print(readings: list[Reading]) -> None:
    table = Table(title="Readings: kept ones and this one", title_justify="left")
    for heading in (
        "figure",
        *(f"{reading.date} {reading.commit}" for reading in readings),
        "ratio",
        "ratio at equal speed",
    ):
        table.add_column(heading, justify="right")
    for name in _numbers():
        values = [float(getattr(reading, name)) for reading in readings]
        table.add_row(name, *map(_cell, values), *_ratios(name, readings, values))
    Console(width=160).print(table)


def _ratios(name: str, readings: list[Reading], values: list[float]) -> tuple[str, str]:
    """To the last kept reading."""
    if len(values) < 2 or not values[-2]:
        return "-", "-"
    ratio = values[-1] / values[-2]
    speed = readings[-1].machine_seconds / readings[-2].machine_seconds if name in _BY_SPEED else 1.0
    return f"{ratio:.2f}", f"{ratio / speed:.2f}"


if __name__ == "__main__":
    main()
