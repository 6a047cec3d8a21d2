"""Start-up seconds and memory of each service, and `headrace up` to the first gated prediction.

`python -m benchmarks.startup [--repeats N]`
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks.report import Cell, publish
from examples.flights.replay import events
from headrace.client.platform import Client
from headrace.compose.platform import ComposeLauncher
from headrace.files.definition_folder import read_folder
from headrace.local.launcher import Launcher
from headrace.local.processes import LocalPlatform, ProcessSpec

_FLIGHTS_DIR = Path("examples/flights")
_EVENTS, _REQUEST_EVENTS = 25_000, 1_000
_PORT_OFFSET = 15_000
_LIMIT_SECONDS = {"ingest": 1.0, "registry": 1.0, "serving-0": 1.0}
_LIMIT_MB = {"ingest": 120, "registry": 120, "serving-0": 120}
_LONGEST_SECONDS = 120.0


def _seconds_to_healthz(spec: ProcessSpec) -> float:
    """From the start of the process, alone on the machine, until it answers; it is stopped afterwards."""
    url = spec.ready_url.replace("/readyz", "/healthz")
    began = time.monotonic()
    with spec.log_path.open("wb") as log:
        process = subprocess.Popen(spec.command, env={**os.environ, **spec.environment}, stdout=log, stderr=log)
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() - began > _LONGEST_SECONDS:
                raise RuntimeError(f"{spec.name} did not start; see {spec.log_path}")
            time.sleep(0.002)
        return time.monotonic() - began
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _start_rows(data_dir: Path, repeats: int) -> dict[str, float]:
    platform = LocalPlatform(data_dir, _PORT_OFFSET)
    (data_dir / "logs").mkdir(parents=True, exist_ok=True)
    specs = (platform.registry(), platform.ingest(), platform.replica(0), *platform.trainers())
    return {spec.name: statistics.median(_seconds_to_healthz(spec) for _ in range(repeats)) for spec in specs}


def _first_prediction(data_dir: Path) -> tuple[float, float, dict[str, float]]:
    """Seconds to ready, seconds to the first gated prediction, resident MB by process (its children left out)."""
    launcher = Launcher(data_dir)
    began = time.monotonic()
    try:
        launcher.up(port_offset=None)
        launcher.wait_until_ready(timeout_seconds=_LONGEST_SECONDS)
        ready = time.monotonic() - began
        learn_flights(launcher, until=began + _LONGEST_SECONDS)
        seconds = time.monotonic() - began
        memory = {item.name: psutil.Process(item.pid).memory_info().rss / 1e6 for item in launcher.state().processes}
        return ready, seconds, memory
    finally:
        launcher.close()


def learn_flights(launcher: Launcher | ComposeLauncher, *, until: float) -> int:
    """Appends enough flights for a round, and returns their number once a version has answered."""
    definition, flights = read_folder(_FLIGHTS_DIR), list(events(_EVENTS))
    with launcher.client(by="benchmark") as client:
        client.apply(definition)
        for start in range(0, len(flights), _REQUEST_EVENTS):
            client.append("flights", flights[start : start + _REQUEST_EVENTS])
        predict_when_served(client, definition.model, flights[0], until=until)
    return len(flights)


def predict_when_served(client: Client, model: str, flight: dict[str, object], *, until: float) -> None:
    """Waits until a replica serves a promoted version, and asks it; `until` is a moment of time.monotonic()."""
    while time.monotonic() < until:
        replica = client.replica_states()[0]
        if any(item["state"] == "AVAILABLE" and "production" in item["aliases"] for item in replica["versions"]):
            inputs = client.signatures(model)["serving_default"]["inputs"]
            client.predict(model, instances=[{name: flight[name] for name in inputs}])
            return
        time.sleep(0.05)
    raise RuntimeError("no version was served in time")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    folder = Path(tempfile.mkdtemp(prefix="headrace-startup-"))
    try:
        starts = _start_rows(folder / "alone", repeats)
        ready, first, memory = _first_prediction(folder / "platform")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows: list[dict[str, Cell]] = [
        {
            "process": name,
            "to /healthz s": starts.get(name),
            "limit s": _LIMIT_SECONDS.get(name),
            "resident MB": memory.get(name),
            "limit MB": _LIMIT_MB.get(name),
        }
        for name in memory
    ]
    publish("startup", "Start and memory of each process", rows, notes=[f"To /healthz: median of {repeats} starts."])
    publish(
        "first_prediction",
        "headrace up to the first gated prediction",
        [{"what": "every process ready, s", "measured": ready, "limit": None},
         {"what": f"first prediction by a version that passed its gate ({_EVENTS:,} flights), s", "measured": first,
          "limit": 30.0}],
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
