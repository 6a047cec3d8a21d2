"""Starts a rival on loopback, waits until it answers, and leaves nothing of it behind."""

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.rivals.catalog import SERVERS, Rival
from benchmarks.serving_load.model import INPUTS
from benchmarks.serving_load.processes import free_ports

_START_SECONDS = 120.0
_STOP_SECONDS = 15.0


@dataclass(frozen=True)
class RunningRival:
    """A rival that has answered once."""

    url: str
    """Of its predict call."""
    grpc_target: str
    start_seconds: float


@contextmanager
def running(rival: Rival, saved_model: Path, directory: Path) -> Iterator[RunningRival]:
    """Yields when the rival answers a prediction with 200.

    Raises:
        RuntimeError: it ended, or did not answer in time; the message has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port, grpc_port, metrics_port = free_ports(3)
    environment = {
        **os.environ,
        "RIVAL_SAVED_MODEL": str(saved_model.absolute()),
        "RIVAL_WORK_DIR": str(directory.absolute()),
        "RIVAL_PORT": str(port),
        "RIVAL_GRPC_PORT": str(grpc_port),
        "RIVAL_METRICS_PORT": str(metrics_port),
        **rival.environment,
    }
    command = [word.format(port=port) for word in rival.command]
    log = directory / f"{rival.name}.log"
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=SERVERS, env=environment, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}{rival.path}"
    try:
        _wait_until_it_answers(rival, url, process, log)
        yield RunningRival(url, f"127.0.0.1:{grpc_port}", time.monotonic() - started)
    finally:
        _stop(process)


def _wait_until_it_answers(rival: Rival, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    body = json.dumps(rival.request([[0.0] * INPUTS])).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            pass  # It is starting.
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{rival.shown} did not answer; its log ends with: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, and kills what is left of its processes, those that left its session included."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_SECONDS)
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(family, _STOP_SECONDS)
