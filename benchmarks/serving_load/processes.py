"""Redis, a registry with one version, and serving, on loopback ports and in a separate folder."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.serving_load.caller import PLAIN, Caller
from testing.redis_server import redis_binary
from testing.registry_process import RegistryProcess

MODEL = "bench"
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Running:
    """Serving, with a version in production."""

    url: str
    grpc_target: str
    front_pid: int
    start_seconds: float
    """From the start of the process until it answered /healthz."""
    pids: Mapping[str, int]

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far by each part."""
        return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in self.pids.items()}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def wait_until(condition: Callable[[], bool], condition_text: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition_text} did not come true within {_START_SECONDS:.0f} s")
        time.sleep(0.01)


def answers(url: str, caller: Caller = PLAIN) -> bool:
    try:
        with caller.get(url, timeout_seconds=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def process(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _redis_command(socket_path: Path) -> list[str]:
    place = ["--port", "0", "--unixsocket", str(socket_path), "--dir", str(socket_path.parent)]
    return [redis_binary(), *place, "--save", ""]


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """A Redis that keeps nothing on disk, as `headrace up` starts it; yields its URL."""
    directory.mkdir(parents=True, exist_ok=True)
    socket_path = directory / "redis.sock"
    with process(_redis_command(socket_path), {}, directory / "redis.log"):
        wait_until(socket_path.exists, "Redis being there")
        yield f"unix://{socket_path}"


@contextmanager
def serving(
    directory: Path,
    saved_model: Path,
    settings: Mapping[str, str] = {},
    caller: Caller = PLAIN,
) -> Iterator[Running]:
    """Starts everything and yields when the model is served; stops it afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    http_port, grpc_port = free_ports(2)
    socket_path = directory / "redis.sock"
    registry = RegistryProcess(directory / "registry")
    with process(_redis_command(socket_path), {}, directory / "redis.log") as redis, ExitStack() as stack:
        registry.start()
        stack.callback(registry.kill)
        registry.add_model(MODEL)
        registry.add_version(MODEL, saved_model)
        environment = {
            "SERVING_DATA_DIR": str(directory / "serving"),
            "SERVING_HTTP_PORT": str(http_port),
            "SERVING_GRPC_PORT": str(grpc_port),
            "SERVING_REDIS_URL": f"unix://{socket_path}",
            "SERVING_REGISTRY_ADDRESS": registry.address,
            "CUDA_VISIBLE_DEVICES": "-1",
            **settings,
        }
        started = time.monotonic()
        with process([sys.executable, "-m", "services.serving"], environment, directory / "serving.log") as front:
            url = f"{caller.scheme}://127.0.0.1:{http_port}"
            wait_until(lambda: answers(f"{url}/healthz", caller), "serving being alive")
            start_seconds = time.monotonic() - started
            wait_until(lambda: answers(f"{url}/readyz", caller), "serving being ready")
            wait_until(lambda: _runner_pid(url, caller) != 0, "the version being in production")
            pids = {"front": front.pid, "redis": redis.pid, "runner": _runner_pid(url, caller)}
            yield Running(url, f"127.0.0.1:{grpc_port}", front.pid, start_seconds, pids)


def _runner_pid(url: str, caller: Caller) -> int:
    """From /headrace/status, whose runner ids end in the process id; 0 while nothing is in production."""
    with caller.get(f"{url}/headrace/status", timeout_seconds=5) as answer:
        versions = json.load(answer)["versions"]
    runners = [version["runner"] for version in versions if "production" in version["aliases"]]
    return int(runners[0].rpartition("/")[2]) if runners else 0
