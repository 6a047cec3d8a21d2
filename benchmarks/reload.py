"""Rows 2 and 10: what changing the model costs those who are asking, and what a version costs in memory and time.

An open loop asks at a fixed rate over HTTP, 70 % of what the machine can do by default, while a new version is
registered every few seconds. A request belongs to a reload window if it was due between the registration and the end
of the old version's process. The load generator and the registry share the machine with serving.
"""

import asyncio
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from benchmarks.report import Cell, publish
from conftest import RedisServer
from services.serving.memory import private_bytes
from services.serving.tests.registry_process import RegistryProcess

_MODEL = "bench"
_INPUTS = 64
_RELOADS = int(os.environ.get("BENCH_RELOADS", "6"))
_PAUSE_SECONDS = float(os.environ.get("BENCH_PAUSE_SECONDS", "5"))
_LOAD_SHARE = float(os.environ.get("BENCH_LOAD_SHARE", "0.7"))
_CAPACITY_SECONDS = 4.0
_CONNECTIONS = 32
_DEADLINE_SECONDS = 60.0
_RATIO_LIMIT = 1.2
_PRIVATE_LIMIT_MB = 40


@dataclass(frozen=True)
class Reload:
    """One change of version, in epoch seconds."""

    version: int
    began_at: float
    available_at: float
    ended_at: float
    load_seconds: float
    private_mb: float


def save_models(directory: Path, count: int) -> None:
    """`count` versions of a 64-128-128-10 network, each with weights of its own."""
    import tensorflow as tf

    for seed in range(count):
        module = tf.Module()
        module.kernels = [
            tf.Variable(tf.random.stateless_normal(shape, (seed, shape[0])) * 0.1)
            for shape in itertools.pairwise((_INPUTS, 128, 128, 10))
        ]
        predict = functools.partial(_predict, module.kernels)
        signature = tf.function(predict, input_signature=[tf.TensorSpec([None, _INPUTS], tf.float32, name="x")])
        tf.saved_model.save(module, str(directory / str(seed)), signatures=signature)


def _predict(kernels: list[Any], x: Any) -> dict[str, Any]:
    import tensorflow as tf

    for kernel in kernels[:-1]:
        x = tf.nn.relu(x @ kernel)
    return {"y": tf.nn.softmax(x @ kernels[-1])}


class _Connection(asyncio.Protocol):
    """One request at a time; `finish` is called with (connection, is_ok)."""

    def __init__(self, load: "_OpenLoop") -> None:
        self._load = load
        self._received = b""
        self.due_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, content = self._received.partition(b"\r\n\r\n")
        if not found or len(content) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        self._received = b""
        self._load.finish(self, is_ok=head.startswith(b"HTTP/1.1 200"))


class _OpenLoop:
    """Requests are due at fixed times, whatever becomes of those before; latency counts from the due time."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._free: list[_Connection] = []
        self._waiting: list[float] = []
        self.results: list[tuple[float, float, bool]] = []

    async def run(self, host: str, port: int, *, per_second: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_CONNECTIONS):
            _, connection = await loop.create_connection(lambda: _Connection(self), host, port)
            self._free.append(connection)
        started = time.time()
        sent = 0
        while (now := time.time()) < started + seconds:
            while sent < (now - started) * per_second:
                self._due(started + sent / per_second)
                sent += 1
            await asyncio.sleep(0.0005)
        deadline = time.time() + _DEADLINE_SECONDS
        while len(self.results) < sent and time.time() < deadline:
            await asyncio.sleep(0.01)
        self.results += [(due_at, _DEADLINE_SECONDS, False) for due_at in self._waiting]
        self.results += [(started, _DEADLINE_SECONDS, False)] * (sent - len(self.results))

    def _due(self, due_at: float) -> None:
        if self._free:
            self._send(self._free.pop(), due_at)
        else:
            self._waiting.append(due_at)

    def _send(self, connection: _Connection, due_at: float) -> None:
        connection.due_at = due_at
        connection.transport.write(self._request)

    def finish(self, connection: _Connection, *, is_ok: bool) -> None:
        self.results.append((connection.due_at, time.time() - connection.due_at, is_ok))
        if self._waiting:
            self._send(connection, self._waiting.pop(0))
        else:
            self._free.append(connection)


def _run_load(url: str, per_second: float, seconds: float, out: Path) -> None:
    """A process of its own: writes an array of (due at, seconds, is ok) rows."""
    parts = urlsplit(url)
    body = json.dumps({"instances": [[0.5] * _INPUTS]}).encode()
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    load = _OpenLoop(head + body)
    asyncio.run(load.run(parts.hostname or "", parts.port or 0, per_second=per_second, seconds=seconds))
    np.save(out, np.array(load.results, np.float64))


def _start_load(url: str, per_second: float, seconds: float, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.reload", "load", url, str(per_second), str(seconds), str(out)]
    return subprocess.Popen(command)


def _capacity(url: str, directory: Path) -> float:
    """Answers per second when far more is asked than can be answered, bounded by this generator's own speed."""
    out = directory / "capacity.npy"
    _start_load(url, 20_000.0, _CAPACITY_SECONDS, out).wait(_DEADLINE_SECONDS * 2)
    rows = np.load(out)
    finished = rows[:, 0] + rows[:, 1]
    begun = rows[:, 0].min()
    return float(((finished < begun + _CAPACITY_SECONDS) & (rows[:, 2] > 0)).sum() / _CAPACITY_SECONDS)


@contextmanager
def _serving(directory: Path, redis: RedisServer, registry: RegistryProcess) -> Iterator[tuple[str, psutil.Process]]:
    with (directory / "serving.log").open("wb") as log:
        probe = RegistryProcess(directory)  # Only for its free ports.
        environment = os.environ | {
            "SERVING_DATA_DIR": str(directory / "serving"),
            "SERVING_REDIS_URL": redis.url,
            "SERVING_REGISTRY_ADDRESS": registry.address,
            "SERVING_HTTP_PORT": str(probe.http_port),
            "SERVING_GRPC_PORT": str(probe.grpc_port),
        }
        process = subprocess.Popen([sys.executable, "-m", "services.serving"], env=environment, stderr=log)
        try:
            url = f"http://127.0.0.1:{probe.http_port}"
            _wait_for(url, 1)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=_DEADLINE_SECONDS)


def _versions(url: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/headrace/status", timeout=5) as answer:
            return list(json.load(answer)["versions"])
    except OSError:
        return []


def _wait_for(url: str, version: int) -> dict[str, Any]:
    """Until this version alone has a runner; its status."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while time.monotonic() < deadline:
        running = [item for item in _versions(url) if item["runner"]]
        if [item["version"] for item in running] == [version] and running[0]["state"] == "AVAILABLE":
            return running[0]
        time.sleep(0.05)
    raise TimeoutError(f"version {version} was not served within {_DEADLINE_SECONDS:.0f} s")


def _reload(url: str, registry: RegistryProcess, saved_model: Path) -> Reload:
    began_at = time.time()
    version = registry.add_version(_MODEL, saved_model)
    status = _wait_for(url, version)
    return Reload(
        version, began_at, status["available_at"], time.time(), status["load_seconds"], status["private_bytes"] / 2**20
    )


def _p99_ms(seconds: np.ndarray) -> float:
    return float(np.percentile(seconds, 99) * 1e3) if len(seconds) else float("nan")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        models = directory / "models"
        command = [sys.executable, "-m", "benchmarks.reload", "save", str(models), str(_RELOADS + 1)]
        subprocess.run(command, env=environment, check=True, timeout=300, stderr=subprocess.DEVNULL)
        redis, registry = RedisServer(directory / "redis"), RegistryProcess(directory / "registry")
        redis.start()
        registry.start()
        try:
            registry.add_model(_MODEL)
            registry.add_version(_MODEL, models / "0")
            with _serving(directory, redis, registry) as (url, front):
                _measure(directory, models, registry, url, front)
        finally:
            registry.kill()
            redis.stop()


def _measure(directory: Path, models: Path, registry: RegistryProcess, url: str, front: psutil.Process) -> None:
    predict_url = f"{url}/v1/models/{_MODEL}:predict"
    capacity = _capacity(predict_url, directory)
    per_second = capacity * _LOAD_SHARE
    manager = front.children()[0]
    zygote = manager.children()[0]
    zygote_before = private_bytes(zygote.pid)
    seconds = (_RELOADS + 1) * _PAUSE_SECONDS + 3
    load = _start_load(predict_url, per_second, seconds, directory / "load.npy")
    reloads = []
    for number in range(1, _RELOADS + 1):
        time.sleep(_PAUSE_SECONDS)
        reloads.append(_reload(url, registry, models / str(number)))
    load.wait(_DEADLINE_SECONDS * 2)
    rows = np.load(directory / "load.npy")
    rows = rows[rows[:, 0] > rows[:, 0].min() + 1.0]
    within = np.zeros(len(rows), bool)
    for reload in reloads:
        within |= (rows[:, 0] >= reload.began_at) & (rows[:, 0] <= reload.ended_at)
    steady, during = _p99_ms(rows[~within, 1]), _p99_ms(rows[within, 1])
    private_mb = max(reload.private_mb for reload in reloads)
    table: list[dict[str, Cell]] = [
        {"what": "p99 ms, steady", "measured": steady, "limit": None},
        {"what": "p99 ms, in reload windows", "measured": during, "limit": steady * _RATIO_LIMIT},
        {"what": "ratio", "measured": during / steady, "limit": _RATIO_LIMIT},
        {"what": "p50 ms, steady", "measured": float(np.median(rows[~within, 1]) * 1e3), "limit": None},
        {"what": "failed requests", "measured": int((rows[:, 2] == 0).sum()), "limit": 0},
        {"what": "private MB of a loaded version, most", "measured": private_mb, "limit": _PRIVATE_LIMIT_MB},
        {
            "what": "fork to ready s, median",
            "measured": _median([item.load_seconds for item in reloads]),
            "limit": None,
        },
        {
            "what": "registered to available s, median",
            "measured": _median([item.available_at - item.began_at for item in reloads]),
            "limit": None,
        },
        {
            "what": "zygote's private MB gained over all reloads",
            "measured": (private_bytes(zygote.pid) - zygote_before) / 2**20,
            "limit": None,
        },
    ]
    publish(
        "reload",
        f"{_RELOADS} reloads under load: one every {_PAUSE_SECONDS:g} s at {_LOAD_SHARE:.0%} of capacity",
        table,
        notes=[
            f"requests in windows: {int(within.sum())} of {len(rows)}; asked {per_second:.0f}/s of {capacity:.0f}/s",
            "the generator, Redis and the registry run on the same cores",
        ],
        facts={"reloads": _RELOADS, "per_second": per_second, "requests": len(rows)},
    )


def _median(values: list[float]) -> float:
    return float(np.median(values))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["save", target, count]:
            save_models(Path(target), int(count))
        case ["load", load_url, rate, duration, target]:
            _run_load(load_url, float(rate), float(duration), Path(target))
        case _:
            main()
