"""Rows 2 and 10: what changing the model costs those who are asking, and what a version costs in memory and time.

    python -m benchmarks.reload [--model small|large ...] [--reloads N] [--every SECONDS] [--programs]

An open loop asks at a fixed rate over HTTP, 70 % of what the machine can do by default, while another version comes
into production, ten steady seconds after the one before: a new version is registered (small), or production is set to
another of the registered versions, whose 300 MB serving then has to fetch (large). They are states of one program, or
programs. A request belongs to a reload window if it was due between the call to the registry and the moment when the
old version is let go. Generator, Redis and registry share the machine with serving.

A canary (serving_load/canary.py) notes when the machine itself stood still. Requests that were open in such a moment
count in the first ratio and not in the second.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.report import Cell, publish
from benchmarks.serving_load import load as closed_loop
from benchmarks.serving_load.canary import MACHINE, SCHEDULER
from benchmarks.serving_load.processes import free_ports, process, redis_server, wait_until
from benchmarks.serving_load.reload_models import INPUTS, SIZES
from common.process.memory import anonymous_mb
from testing.registry_process import RegistryProcess

_MODEL = "bench"
_DISTINCT = {"small": 12, "large": 5}
"""Different versions; more than a replica keeps on its disk, so that each comes over the network again."""
_CAPACITY_SECONDS, _CAPACITY_STEPS = 3, 5
_PILED_UP_SECONDS = 0.1
_DEADLINE_SECONDS = 120.0
_POLL_SECONDS = 0.05
_SETTLED_RELOADS = 10
"""After this many reloads all that is allocated once has been."""
_RATIO_LIMIT, _PRIVATE_LIMIT_MB, _GROWTH_LIMIT = 1.2, 40, 0.02


@dataclass(frozen=True)
class Reload:
    """One change of version; times of the monotonic clock."""

    began_at: float
    available_at: float
    ended_at: float
    load_seconds: float
    private_mb: float


@dataclass(frozen=True)
class Measured:
    """One run: rows as open_loop.py and canary.py write them."""

    capacity: float
    per_second: float
    rows: np.ndarray
    stalls: np.ndarray
    reloads: Sequence[Reload]
    memory_mb: Sequence[float]
    """Front, manager and zygote together: before the first reload, and after each."""


class Replica:
    """A running serving instance, looked at from outside."""

    def __init__(self, url: str, front_pid: int) -> None:
        self.url = url
        front = psutil.Process(front_pid)
        self._manager = front.children()[0]
        self._zygote = self._manager.children()[0]
        self._front = front

    def memory_mb(self) -> float:
        return sum(anonymous_mb(process.pid) for process in (self._front, self._manager, self._zygote))

    def wait_for(self, before: float) -> dict[str, Any]:
        """The version that became available since then (epoch seconds), once it is alone."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            loaded = [item for item in _versions(self.url) if item["state"] not in ("START", "END")]
            if len(loaded) == 1 and loaded[0]["state"] == "AVAILABLE" and loaded[0]["available_at"] > before:
                return loaded[0]
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"the new version was not served alone within {_DEADLINE_SECONDS:.0f} s")


def _versions(url: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/headrace/status", timeout=5) as answer:
            return list(json.load(answer)["versions"])
    except OSError:
        return []


@contextmanager
def _serving(directory: Path, redis_url: str, registry: RegistryProcess, version: int) -> Iterator[Replica]:
    http_port, grpc_port = free_ports(2)
    environment = {
        "SERVING_DATA_DIR": str(directory / "serving"),
        "SERVING_REDIS_URL": redis_url,
        "SERVING_REGISTRY_ADDRESS": registry.address,
        "SERVING_HTTP_PORT": str(http_port),
        "SERVING_GRPC_PORT": str(grpc_port),
    }
    url = f"http://127.0.0.1:{http_port}"
    with process([sys.executable, "-m", "services.serving"], environment, directory / "serving.log") as front:
        wait_until(lambda: _is_served(url, version), f"version {version} being served")
        yield Replica(url, front.pid)


def _is_served(url: str, version: int) -> bool:
    return any(item["version"] == version and item["state"] == "AVAILABLE" for item in _versions(url))


def _run_reloads(
    replica: Replica, change: Callable[[int], None], *, count: int, every_seconds: float
) -> tuple[list[Reload], list[float]]:
    reloads, memory_mb = [], [replica.memory_mb()]
    for number in range(count):
        time.sleep(every_seconds)
        before, began_at = time.time(), time.monotonic()
        change(number)
        status = replica.wait_for(before)
        ended_at = time.monotonic()
        available_at = status["available_at"] - time.time() + time.monotonic()
        private_mb = status["private_bytes"] / 2**20
        reloads.append(Reload(began_at, available_at, ended_at, status["load_seconds"], private_mb))
        memory_mb.append(replica.memory_mb())
    time.sleep(every_seconds)
    return reloads, memory_mb


def _start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"benchmarks.serving_load.{module}", *map(str, arguments)]
    return subprocess.Popen(command)


def _measure(directory: Path, replica: Replica, change: Callable[[int], None], options: argparse.Namespace) -> Measured:
    url = f"{replica.url}/v1/models/{_MODEL}:predict"
    body = directory / "body.json"
    body.write_text(json.dumps({"instances": [[0.5] * INPUTS]}))
    closed_loop.run(url, body, connections=64, seconds=2)
    capacity = _capacity(url, body, directory / "capacity.npy")
    per_second = options.per_second or capacity * options.load_share
    longest = (options.reloads + 1) * (options.every + _DEADLINE_SECONDS)
    load = _start("open_loop", url, body, per_second, longest, directory / "load.npy")
    canary = _start("canary", longest, directory / "canary.npy")
    try:
        reloads, memory_mb = _run_reloads(replica, change, count=options.reloads, every_seconds=options.every)
    finally:
        for child in (load, canary):
            child.terminate()
        for child in (load, canary):
            child.wait(_DEADLINE_SECONDS)
    rows, stalls = np.load(directory / "load.npy"), np.load(directory / "canary.npy")
    return Measured(capacity, per_second, rows, stalls, reloads, memory_mb)


def _capacity(url: str, body: Path, out: Path) -> float:
    """The highest rate of evenly spaced requests that do not pile up, to a thirtieth of what wrk gets.

    Less than wrk gets: wrk sends the next request when one is answered, so that they come in large batches, which
    cost less each; and the generator of evenly spaced requests takes more of the two cores.
    """
    low, high = 0.0, closed_loop.run(url, body, connections=64, seconds=2).per_second
    for _ in range(_CAPACITY_STEPS):
        rate = (low + high) / 2
        _start("open_loop", url, body, rate, _CAPACITY_SECONDS, out).wait(_DEADLINE_SECONDS)
        rows = np.load(out)
        if np.percentile(rows[:, 1], 99) < _PILED_UP_SECONDS and (rows[:, 2] == 200).all():
            low = rate
        else:
            high = rate
    if not low:
        raise RuntimeError(f"requests piled up even at {high:.0f}/s: the machine is too busy to measure anything")
    return low


def _p_ms(seconds: np.ndarray, percentile: float) -> float:
    return float(np.percentile(seconds, percentile) * 1e3) if len(seconds) else float("nan")


def _within(rows: np.ndarray, spans: Sequence[tuple[float, float]]) -> np.ndarray:
    """Which requests were due in one of the spans (from, to)."""
    found = np.zeros(len(rows), bool)
    for begin, end in spans:
        found |= (rows[:, 0] >= begin) & (rows[:, 0] <= end)
    return found


def _untouched(rows: np.ndarray, stalls: np.ndarray) -> np.ndarray:
    """Which requests were not open while the machine stood still."""
    found = np.ones(len(rows), bool)
    ends = rows[:, 0] + rows[:, 1]
    for begin, end, kind in stalls:
        if kind == MACHINE:
            found &= (ends < begin) | (rows[:, 0] > end)
    return found


def _table(size: str, measured: Measured) -> list[dict[str, Cell]]:
    rows = measured.rows[measured.rows[:, 0] > measured.rows[:, 0].min() + 1.0]
    within = _within(rows, [(item.began_at, item.ended_at) for item in measured.reloads])
    clean = _untouched(rows, measured.stalls)
    steady, during = rows[~within, 1], rows[within, 1]
    ratio = _p_ms(during, 99) / _p_ms(steady, 99)
    clean_ratio = _p_ms(rows[within & clean, 1], 99) / _p_ms(rows[~within & clean, 1], 99)
    settled = measured.memory_mb[min(_SETTLED_RELOADS, len(measured.memory_mb) - 1)]
    limit_mb = _PRIVATE_LIMIT_MB if size == "small" else None
    growth = measured.memory_mb[-1] / settled - 1
    table: list[dict[str, Cell]] = [
        {"what": f"p{percentile:g} ms, {name}", "measured": _p_ms(seconds, percentile), "limit": None}
        for name, seconds in (("steady", steady), ("in reload windows", during))
        for percentile in (50, 99, 99.9, 100)
    ]
    return [
        *table,
        {"what": "p99 in windows / p99 steady", "measured": ratio, "limit": _RATIO_LIMIT},
        {"what": "the same without stalls of the machine", "measured": clean_ratio, "limit": _RATIO_LIMIT},
        {"what": "failed requests", "measured": int((rows[:, 2] != 200).sum()), "limit": 0},
        _fact("private MB of a loaded version, most", max(r.private_mb for r in measured.reloads), limit_mb),
        _fact("load s, median", _median([r.load_seconds for r in measured.reloads])),
        _fact("change to available s, median", _median([r.available_at - r.began_at for r in measured.reloads])),
        _fact("window s, median", _median([r.ended_at - r.began_at for r in measured.reloads])),
        _fact("front, manager, zygote: MB before", measured.memory_mb[0]),
        _fact(f"growth from reload {_SETTLED_RELOADS} to the last, %", growth * 100, _GROWTH_LIMIT * 100),
    ]


def _fact(subject: str, measured: float, limit: Cell = None) -> dict[str, Cell]:
    return {"what": subject, "measured": float(measured), "limit": limit}


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _notes(measured: Measured, options: argparse.Namespace) -> list[str]:
    rows = measured.rows
    seconds = rows[:, 0].max() - rows[:, 0].min()
    within = _within(rows, [(item.began_at, item.ended_at) for item in measured.reloads])
    kinds = measured.stalls[:, 2] if len(measured.stalls) else np.zeros(0)
    late_ms = (measured.stalls[:, 1] - measured.stalls[:, 0]) * 1e3 if len(measured.stalls) else np.zeros(0)
    machine, scheduler = late_ms[kinds == MACHINE], late_ms[kinds == SCHEDULER]
    requests = (
        f"{len(rows):,} requests in {seconds:.0f} s, {int(within.sum()):,} of them in windows; asked"
        f" {measured.per_second:.0f}/s, capacity {measured.capacity:.0f}/s (evenly spaced requests that do not pile up)"
    )
    stalls = (
        f"canary: the machine stood still {len(machine)} times ({machine.sum():.0f} ms in all, at most"
        f" {machine.max(initial=0):.0f} ms); a normal process waited over 5 ms {len(scheduler)} times"
        f" (at most {scheduler.max(initial=0):.0f} ms)"
    )
    shared = f"generator, Redis and registry run on the same {os.cpu_count()} cores"
    return [requests, stalls, f"load average {os.getloadavg()[0]:.1f}; {shared}"]


def _of_size(size: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        models = directory / "models"
        distinct = min(_DISTINCT[size], options.reloads + 1)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        programs = distinct if options.programs else 1
        module = "benchmarks.serving_load.reload_models"
        save = [sys.executable, "-m", module, size, str(distinct), str(models), str(programs)]
        subprocess.run(save, env=environment, check=True, timeout=600, stderr=subprocess.DEVNULL)
        registry = RegistryProcess(directory / "registry")
        registry.start()
        try:
            registry.add_model(_MODEL)
            first = distinct if size == "large" else 1
            versions = [registry.add_version(_MODEL, models / str(number)) for number in range(first)]
            if size == "large":
                shutil.rmtree(models)

            def change(number: int) -> None:
                if size == "small":
                    registry.add_version(_MODEL, models / str((number + 1) % distinct))
                    return
                version = versions[number % distinct]
                registry.client.set_alias(_MODEL, "production", version, by="benchmark", reason="reload")

            with (
                redis_server(directory / "redis") as redis_url,
                _serving(directory, redis_url, registry, versions[-1]) as replica,
            ):
                measured = _measure(directory, replica, change, options)
        finally:
            registry.kill()
    kind = "programs" if options.programs else "states of one program"
    publish(
        f"reload_{size}",
        f"{options.reloads} reloads of a {size} model, {kind}: {options.every:g} steady seconds between them, at"
        f" {measured.per_second / measured.capacity:.0%} of capacity",
        _table(size, measured),
        notes=_notes(measured, options),
        facts={"reloads": options.reloads, "per_second": measured.per_second, "requests": len(measured.rows)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reload")
    parser.add_argument("--model", choices=SIZES, action="append", help="default: both, one after the other")
    parser.add_argument("--reloads", type=int, default=6)
    parser.add_argument("--every", type=float, default=10.0, help="steady seconds between two reloads")
    parser.add_argument("--load-share", type=float, default=0.7, help="of the capacity that is measured first")
    parser.add_argument("--per-second", type=float, default=0.0, help="requests per second, in place of a share")
    parser.add_argument("--programs", action="store_true", help="versions that do not share a program")
    options = parser.parse_args()
    for size in options.model or SIZES:
        _of_size(size, options)


if __name__ == "__main__":
    main()
