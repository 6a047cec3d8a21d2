"""Overload: goodput and refusals of one serving instance that is asked for three times what it can do.

Two models share one front. `heavy` costs the runner so much that the runner is what limits; `light` is asked little,
all the time. First the capacity of `heavy` is measured (a closed loop), then three times that is asked of it at a fixed
rate (an open loop: no client waits for an answer before its next request), every request with a deadline of a second.
Goodput counts the answers that came within it.

    python -m benchmarks.overload
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.model import saved, write_body

_SECONDS = int(os.environ.get("BENCH_SECONDS", "8"))
_SETTLE_SECONDS = 4.0
"""At the start of the overload, left out: connections are made and the queue fills up."""
_TIMES_CAPACITY = 3.0
_DEADLINE_MS = 1000
_LIGHT_PER_SECOND = 50
_SPARE_CONNECTIONS = 64
_PEAK_CONNECTIONS = 128
_HEAVY, _LIGHT = "heavy", "light"
_UNITS = {_HEAVY: (64, *[4096] * 5), _LIGHT: (64, 16, 16)}
"""Of the input and the hidden layers: a batch of 64 keeps `heavy` busy for 60 to 100 ms, so that three times its
capacity is some 2,000 requests per second, which cost front and generator a small part of a core."""
_GOODPUT_TARGET, _REFUSAL_TARGET_MS = 0.95, 5.0
_REFUSED = (429, 503)
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True)
class _Instance:
    """What is asked: one front and two runners."""

    url: str
    front: psutil.Process

    def processes(self) -> dict[str, list[psutil.Process]]:
        """By part; those that die or are born meanwhile are not expected."""
        with urllib.request.urlopen(f"{self.url}/headrace/status", timeout=30) as answer:
            versions = json.load(answer)["versions"]
        runners = {v["model"]: psutil.Process(int(v["runner"].rpartition("/")[2])) for v in versions}
        return {
            "front": [self.front],
            f"runner of {_HEAVY}": [runners[_HEAVY]],
            f"runner of {_LIGHT}": [runners[_LIGHT]],
        }


@contextmanager
def _serving(directory: Path) -> Iterator[_Instance]:
    """Both models over one front, from folders."""
    models = "\n".join(
        f'config {{ name: "{name}" base_path: "{directory / name}" model_platform: "tensorflow" }}' for name in _UNITS
    )
    config = directory / "models.config"
    config.write_text(f"model_config_list {{ {models} }}\n")
    (port,) = processes.free_ports(1)
    with ExitStack() as stack:
        redis_url = stack.enter_context(processes.redis_server(directory / "redis"))
        front = stack.enter_context(
            processes.process(
                [sys.executable, "-m", "services.serving", f"--model_config_file={config}", f"--redis_url={redis_url}",
                 "--port=0", f"--rest_api_port={port}"],
                {"SERVING_LOG_LEVEL": "WARNING", "SERVING_DATA_DIR": str(directory / "data")} | _NO_GPU,
                directory / "serving.log",
            )
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(lambda: processes.answers(f"{url}/readyz"), "serving being ready")
        yield _Instance(url, psutil.Process(front.pid))


def _open_loop(url: str, body: Path, rate: float, seconds: float, out: Path) -> "subprocess.Popen[bytes]":
    # As many as can be waiting for an answer at once, and some.
    connections = _SPARE_CONNECTIONS + int(rate * _DEADLINE_MS / 1000)
    given = (url, body, rate, seconds, out, connections, _DEADLINE_MS)
    return subprocess.Popen([sys.executable, "-m", "benchmarks.serving_load.open_loop", *map(str, given)])


def _answered(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Seconds of the good answers."""
    seconds, status = rows[kept, 1], rows[kept, 2]
    return np.asarray(seconds[(status == 200) & (seconds <= _DEADLINE_MS / 1000)])


def _line(name: str, rows: np.ndarray, per_second: float) -> Mapping[str, Cell]:
    """What one model's clients saw after the first seconds."""
    kept = rows[:, 0] >= rows[:, 0].min() + _SETTLE_SECONDS
    duration = rows[kept, 0].max() - rows[kept, 0].min()
    good = _answered(rows, kept)
    status, seconds = rows[kept, 2], rows[kept, 1]
    refused = seconds[np.isin(status, _REFUSED)] * 1e3
    late = (status == 504) | ((status == 200) & (seconds > _DEADLINE_MS / 1000))
    return {
        "model": name,
        "asked/s": round(per_second),
        "goodput/s": round(len(good) / duration),
        "good p50 ms": float(np.median(good) * 1e3) if len(good) else None,
        "good p99 ms": float(np.percentile(good, 99) * 1e3) if len(good) else None,
        "refused/s": round(len(refused) / duration),
        "refusal p50 ms": float(np.median(refused)) if len(refused) else None,
        "refusal p99 ms": float(np.percentile(refused, 99)) if len(refused) else None,
        "late/s": round(float(late.sum() / duration), 1),
        "failed": int((~np.isin(status, (200, 504, *_REFUSED))).sum()),
    }


def _refusals(url: str) -> str:
    """By reason, from the metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.partition("{")[2] for line in lines if line.startswith("headrace_serving_refused_total{")]
    return "; ".join(found) or "none"


@dataclass(frozen=True)
class _Overload:
    """The peak of `heavy`, the rate that was then asked of it, and who used how much of a core meanwhile."""

    peak: load.Load
    rate: float
    cores: Mapping[str, float]


def _cpu_seconds(parts: Mapping[str, list[psutil.Process]]) -> dict[str, float]:
    return {name: sum(sum(process.cpu_times()[:2]) for process in found) for name, found in parts.items()}


def _measure(instance: _Instance, body: Path, directory: Path) -> _Overload:
    """Both open loops leave their rows in the directory."""
    heavy, light = (f"{instance.url}/v1/models/{name}:predict" for name in (_HEAVY, _LIGHT))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # Clients keep to one core, in both measurements.
    load.run(heavy, body, connections=_PEAK_CONNECTIONS, seconds=2)
    peak = load.run(heavy, body, connections=_PEAK_CONNECTIONS, seconds=_SECONDS)
    rate = peak.per_second * _TIMES_CAPACITY
    seconds = _SECONDS + _SETTLE_SECONDS
    children = [
        _open_loop(heavy, body, rate, seconds, directory / "heavy.npy"),
        _open_loop(light, body, _LIGHT_PER_SECOND, seconds, directory / "light.npy"),
    ]
    parts = instance.processes() | {"generators": [psutil.Process(child.pid) for child in children]}
    time.sleep(_SETTLE_SECONDS)  # as long as the table leaves out
    before, began_at = _cpu_seconds(parts), time.monotonic()
    time.sleep(_SECONDS / 2)
    after, elapsed = _cpu_seconds(parts), time.monotonic() - began_at
    for child in children:
        child.wait(timeout=seconds + 90)
    return _Overload(peak, rate, {name: (after[name] - before[name]) / elapsed for name in parts})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for name, units in _UNITS.items():
            saved(directory / name / "1", units)
        with _serving(directory) as instance:
            overload = _measure(instance, write_body(directory / "body.json"), directory)
            reasons = _refusals(instance.url)
        peak, rate = overload.peak, overload.rate
        heavy = _line(_HEAVY, np.load(directory / "heavy.npy"), rate)
        light = _line(_LIGHT, np.load(directory / "light.npy"), _LIGHT_PER_SECOND)
    goodput = heavy["goodput/s"]
    assert isinstance(goodput, int)
    share = goodput / peak.per_second
    publish(
        "overload",
        f"One instance asked for {_TIMES_CAPACITY:g} times its capacity",
        [heavy, light],
        notes=[
            f"Peak of {_HEAVY}: {peak.per_second:,.0f}/s over {_PEAK_CONNECTIONS} connections ({load.generator()}).",
            f"Goodput / peak: {share:.3f}, target {_GOODPUT_TARGET}. Refusals: p99 target {_REFUSAL_TARGET_MS:g} ms.",
            f"Good: answered within {_DEADLINE_MS} ms. Clients and server share {os.cpu_count()} cores.",
            "Cores used: " + ", ".join(f"{name} {share:.2f}" for name, share in overload.cores.items()) + ".",
            f"Machine load while this ran: {os.getloadavg()[0]:.1f}.",
            f"Refused since the start: {reasons}",
        ],
        facts={"peak_per_second": peak.per_second, "goodput_over_peak": share},
    )


if __name__ == "__main__":
    main()
