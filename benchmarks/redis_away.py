"""Redis away and back: how fast predictions are refused meanwhile, and how soon they succeed again.

    python -m benchmarks.redis_away [--mode local|compose] [--repeats 5] [--away-seconds 4]

A platform serves a small model, in containers through the proxy. One asker over REST and one over gRPC ask all the
time, one prediction after the other. Redis is stopped, and started again; then frozen (SIGSTOP, `docker pause`), and
let go. A frozen Redis breaks no connection: the front takes it for lost when it has owed a reply for over a second, so
what is asked before the first refusal is left out there. What counts as Redis' return is that it answers PING.
"""

import argparse
import http.client
import itertools
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import grpc
import numpy as np

from benchmarks.report import Cell, publish
from benchmarks.serving_load.grpc_load import PREDICT, predict_request
from benchmarks.serving_load.processes import wait_until
from benchmarks.startup import predict_when_served
from headrace.compose.docker_cli import run_docker
from headrace.compose.platform import ComposeLauncher
from headrace.local.launcher import Launcher
from headrace.local.processes import LocalPlatform
from headrace.places import SERVICES

_LIMIT_MS, _LIMIT_SECONDS = 100.0, 2.0
_MODEL, _EVENTS = "above-zero", 1000
_STREAM_YAML = """
stream: numbers
features:
  - {name: x, dtype: float32}
labels:
  - {name: above, dtype: int64, min: 0, max: 1}
"""
_MODEL_YAML = f"""
name: {_MODEL}
stream: numbers
label: above
estimator: linear_classifier
features:
  x: {{type: numeric, normalize: none}}
triggers: {{min_examples: {_EVENTS}, max_interval_seconds: 3600, cooldown_seconds: 0, max_round_examples: {_EVENTS}}}
gate: {{metric: auc, max_regression: 1.0, on_reject: retry}}
"""
_STREAM = "numbers"
_LONGEST_SECONDS = 120.0
_DEADLINE_SECONDS = 2.0
_PAUSE_SECONDS = 0.01
_CALM_SECONDS = 1.0
"""Of answers before Redis goes, and after it is back."""


@dataclass(frozen=True)
class Heard:
    """`outcome`: answered, refused, broken (no answer). Times are time.monotonic()'s."""

    at: float
    until: float
    outcome: str


class Redis(Protocol):
    """The platform's Redis, as an operator holds it."""

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def dial(self) -> socket.socket:
        """Raises OSError when no process listens."""


class LocalRedis:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._path = LocalPlatform(launcher.data_dir, launcher.state().port_offset).redis_socket

    def stop(self) -> None:
        self._launcher.stop("redis")

    def start(self) -> None:
        self._launcher.start("redis")

    def freeze(self) -> None:
        self._launcher.kill("redis", signal.SIGSTOP)

    def thaw(self) -> None:
        self._launcher.kill("redis", signal.SIGCONT)

    def dial(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_DEADLINE_SECONDS)
        connection.connect(str(self._path))
        return connection


class ComposeRedis:
    """The port is not published; this machine reaches the container's own address."""

    def __init__(self, launcher: ComposeLauncher) -> None:
        self._id = launcher.state().ids["redis"]
        self._address = ""
        self._find()

    def stop(self) -> None:
        run_docker("stop", self._id)

    def start(self) -> None:
        run_docker("start", self._id)
        self._find()

    def freeze(self) -> None:
        run_docker("pause", self._id)

    def thaw(self) -> None:
        run_docker("unpause", self._id)

    def dial(self) -> socket.socket:
        return socket.create_connection((self._address, 6379), timeout=_DEADLINE_SECONDS)

    def _find(self) -> None:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        self._address = run_docker("inspect", "--format", form, self._id).strip()


class Asker:
    """Sends predictions to one door in sequence, in a separate thread."""

    def __init__(self, predict: Callable[[], str]) -> None:
        self.heard: list[Heard] = []
        self._predict = predict
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            at = time.monotonic()
            outcome = self._predict()
            self.heard.append(Heard(at, time.monotonic(), outcome))

    def has_answered_since(self, moment: float) -> bool:
        return any(item.outcome == "answered" and item.until >= moment for item in list(self.heard))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(4 * _DEADLINE_SECONDS)


def _rest(url: str, token: str) -> Callable[[], str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=2 * _DEADLINE_SECONDS)
    headers = {"Content-Type": "application/json", "X-Request-Timeout-Ms": str(int(1000 * _DEADLINE_SECONDS))}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}

    def predict() -> str:
        try:
            connection.request("POST", f"/v1/models/{_MODEL}:predict", b'{"instances": [{"x": 0.5}]}', headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return "broken"
        return "answered" if answer.status == http.HTTPStatus.OK else "refused"

    return predict


def _grpc(target: str, token: str) -> Callable[[], str]:
    request = predict_request(_MODEL, np.array([0.5], np.float32).tobytes(), [1])
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = grpc.insecure_channel(target).unary_unary(PREDICT)
    shown = (("authorization", f"Bearer {token}"),) if token else ()

    def predict() -> str:
        try:
            call(request, timeout=_DEADLINE_SECONDS, metadata=shown)
        except grpc.RpcError as error:
            status = error.code() if isinstance(error, grpc.Call) else None
            is_ours = status is grpc.StatusCode.UNAVAILABLE and "Redis" in str(error)
            return "refused" if is_ours else "broken"
        return "answered"

    return predict


@dataclass(frozen=True)
class Absence:
    """One time that Redis was away: from `at` to `ended_at`, when its return was begun; it answered at `back_at`."""

    at: float
    ended_at: float
    back_at: float


def _answers(redis: Redis) -> bool:
    try:
        with redis.dial() as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _back(redis: Redis) -> float:
    """When Redis answers again."""
    wait_until(lambda: _answers(redis), "Redis answering")
    return time.monotonic()


def _be_away(redis: Redis, askers: Sequence[Asker], away_seconds: float, *, frozen: bool) -> Absence:
    """Takes Redis away and back, and returns when both doors have answered for a while."""
    begun_at = time.monotonic()
    (redis.freeze if frozen else redis.stop)()
    # A frozen process is away from the signal on; a stopped process, when it has ended.
    at = begun_at if frozen else time.monotonic()
    time.sleep(away_seconds)
    ended_at = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(_back, redis)
        (redis.thaw if frozen else redis.start)()
        back_at = looking.result()
    for asker in askers:
        wait_until(partial(asker.has_answered_since, back_at), "a prediction being answered")
    time.sleep(_CALM_SECONDS)
    return Absence(at, ended_at, back_at)


def _line(kind: str, door: str, heard: Sequence[Heard], absences: Sequence[Absence]) -> dict[str, Cell]:
    """Over all absences of one way, at one door."""
    refusals_ms: list[float] = []
    noticed, recoveries, others = [], [], 0
    for absence in absences:
        inside = [item for item in heard if absence.at <= item.at and item.until <= absence.ended_at]
        first = next(item.until for item in inside if item.outcome == "refused")
        noticed.append(first - absence.at)
        kept = [item for item in inside if kind == "stopped" or item.at >= first]
        refusals_ms += [1e3 * (item.until - item.at) for item in kept if item.outcome == "refused"]
        others += sum(item.outcome != "refused" for item in kept)
        back = next(item.until for item in heard if item.outcome == "answered" and item.until >= absence.back_at)
        recoveries.append(back - absence.back_at)
    return {
        "Redis": kind,
        "door": door,
        "first refusal s, max": max(noticed),
        "refused": len(refusals_ms),
        "p50 ms": statistics.median(refusals_ms),
        "max ms": max(refusals_ms),
        "limit ms": _LIMIT_MS,
        "not refused": others,
        "back s, p50": statistics.median(recoveries),
        "back s, max": max(recoveries),
        "limit s": _LIMIT_SECONDS,
    }


def _serve(launcher: Launcher | ComposeLauncher, folder: Path) -> None:
    """Teaches the platform the model, and returns when it answers predictions."""
    folder.mkdir(parents=True)
    (folder / "stream.yaml").write_text(_STREAM_YAML)
    (folder / "model.yaml").write_text(_MODEL_YAML)
    xs = np.random.default_rng(7).uniform(-1, 1, _EVENTS)
    with launcher.client(by="benchmark") as client:
        client.apply(folder)
        client.append(_STREAM, [{"x": float(x), "above": int(x > 0)} for x in xs])
        predict_when_served(client, _MODEL, {"x": 0.5}, until=time.monotonic() + _LONGEST_SECONDS)


def _measure(launcher: Launcher | ComposeLauncher, options: argparse.Namespace) -> list[dict[str, Cell]]:
    redis: Redis
    if isinstance(launcher, ComposeLauncher):
        redis, url = ComposeRedis(launcher), launcher.state().door_of("serving")
        published = run_docker("port", launcher.state().ids["proxy"], "8500/tcp").split()[0]
        target = f"127.0.0.1:{published.rpartition(':')[2]}"
    else:
        redis, replica = LocalRedis(launcher), launcher.state().process("serving-0")
        url, target = launcher.state().addresses.serving[0], f"127.0.0.1:{replica.grpc_port}"
    with launcher.client() as client:
        token = client.token
    askers = {"REST": Asker(_rest(url, token)), "gRPC": Asker(_grpc(target, token))}
    rows = []
    try:
        for absence in ("stopped", "frozen"):
            time.sleep(_CALM_SECONDS)
            absences = [
                _be_away(redis, list(askers.values()), options.away_seconds, frozen=absence == "frozen")
                for _ in range(options.repeats)
            ]
            rows += [_line(absence, door, list(asker.heard), absences) for door, asker in askers.items()]
    finally:
        for asker in askers.values():
            asker.stop()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis_away")
    parser.add_argument("--mode", choices=["local", "compose"], default="local")
    parser.add_argument("--repeats", type=int, default=5, help="absences of each kind")
    parser.add_argument("--away-seconds", type=float, default=4.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-redis-away-"))
    launcher: Launcher | ComposeLauncher = Launcher(folder / "platform")
    if options.mode == "compose":
        launcher = ComposeLauncher(project="headrace-redis-away", services=("proxy", *SERVICES), is_temporary=True)
    try:
        launcher.up(port_offset=None)
        launcher.wait_until_ready(timeout_seconds=_LONGEST_SECONDS)
        _serve(launcher, folder / "definition")
        rows = _measure(launcher, options)
    finally:
        launcher.close()
        shutil.rmtree(folder, ignore_errors=True)
    return _publish(rows, options)


def _publish(rows: Sequence[Mapping[str, Cell]], options: argparse.Namespace) -> int:
    """Exit status 1 when a limit is passed."""
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    notes = [
        f"{options.repeats} absences of {options.away_seconds:g} s of each kind; {machine}.",
        "Refused: asked and answered while Redis was away; frozen: asked after the first refusal.",
        f"What was open when Redis went is held for its return until the deadline ({_DEADLINE_SECONDS:g} s).",
    ]
    name = "redis_away" if options.mode == "local" else "redis_away_compose"
    publish(name, f"Redis away and back, {options.mode}", rows, notes=notes)
    limits = (("max ms", "limit ms"), ("back s, max", "limit s"))
    over = [
        row for row, (seen, limit) in itertools.product(rows, limits) if float(row[seen] or 0) > float(row[limit] or 0)
    ]
    return int(bool(over) or any(row["not refused"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
