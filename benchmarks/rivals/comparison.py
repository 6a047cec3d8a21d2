"""Headrace and its rivals, one after the other, under the same load: `python -m benchmarks.serving --rivals`."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import Cell, publish
from benchmarks.rivals.catalog import RIVALS, Document
from benchmarks.rivals.install import is_installed
from benchmarks.rivals.running import running
from benchmarks.serving_load import grpc_load, processes
from benchmarks.serving_load import load as http_load

CONNECTIONS = (1, 16, 64, 256)
TARGET_OVER_MOSEC = {1: 4.0, 16: 2.5, 64: 1.3, 256: 1.3}
_HEADRACE, _ANCHOR = "headrace", "mosec"
_P50_LIMIT_MS = 1.0
_WARM_UP_SECONDS = 3
_CHECKED_ROUNDS = 4
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Reference:
    """Inputs and what TensorFlow makes of them: float32 [rows, inputs] and [rows, outputs]."""

    inputs: np.ndarray
    outputs: np.ndarray


@dataclass(frozen=True)
class Door:
    """A running server: where and how it is asked."""

    name: str
    shown: str
    url: str
    request: Callable[[list[list[float]]], Document]
    predictions: Callable[[Document], Document]
    grpc_target: str = ""
    grpc_method: str = ""
    grpc_request: bytes = b""


@dataclass(frozen=True)
class Level:
    """What one server did at one number of connections."""

    door: str
    shown: str
    connections: int
    load: http_load.Load


def compare(saved_model: Path, reference: Reference, directory: Path, names: Sequence[str], *, seconds: int) -> None:
    """Measures Headrace and the named rivals (all that are installed where there are none) and prints the tables."""
    wanted = list(names) or list(RIVALS)
    missing = [name for name in wanted if not is_installed(name)]
    http_levels: list[Level] = []
    grpc_levels: list[Level] = []
    failed: dict[str, str] = {}
    for name in (_HEADRACE, *(name for name in wanted if name not in missing)):
        print(f"measuring {name}", file=sys.stderr, flush=True)
        try:
            with _open(name, saved_model, reference, directory) as door:
                _check(door, reference)
                body = directory / f"{name}.json"
                body.write_text(json.dumps(door.request(reference.inputs[:1].tolist())))
                http_levels += _over_http(door, body, seconds)
                grpc_levels += _over_grpc(door, seconds)
        except (RuntimeError, OSError, ValueError, KeyError, AssertionError) as error:
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name} was not measured: {failed[name]}", file=sys.stderr, flush=True)
    how = (
        f"One run, {seconds} s a line, one instance each, max batch 64, on {os.cpu_count()} cores that the generator"
        f" shares; load average {os.getloadavg()[0]:.1f}."
    )
    notes = [
        how,
        *(f"Not installed: {name} (python -m benchmarks.rivals.install {name})." for name in missing),
        *(f"Not measured: {name}: {reason[:300]}" for name, reason in failed.items()),
    ]
    _publish("serving_rivals", f"HTTP, 64 floats as JSON ({http_load.generator()})", http_levels, notes)
    if grpc_levels:
        _publish("serving_rivals_grpc", "gRPC, 64 floats (asyncio generator)", grpc_levels, notes)


@contextmanager
def _open(name: str, saved_model: Path, reference: Reference, directory: Path) -> Iterator[Door]:
    shape, content = [1, reference.inputs.shape[1]], reference.inputs[:1].tobytes()
    if name == _HEADRACE:
        with processes.serving(directory / name, saved_model) as headrace:
            yield Door(
                name, "Headrace", f"{headrace.url}/v1/models/{processes.MODEL}:predict",
                lambda rows: {"instances": rows}, lambda answer: answer["predictions"],
                headrace.grpc_target, grpc_load.PREDICT, grpc_load.predict_request(processes.MODEL, content, shape),
            )  # fmt: skip
        return
    rival = RIVALS[name]
    with running(rival, saved_model, directory / name) as server:
        grpc: tuple[str, str, bytes] = ("", "", b"")
        if rival.speaks_v2_grpc:
            grpc = (server.grpc_target, grpc_load.V2_INFER, grpc_load.v2_request("bench", content, shape))
        yield Door(name, rival.shown, server.url, rival.request, rival.predictions, *grpc)


def _check(door: Door, reference: Reference) -> None:
    """Many distinct requests at once: a server that mixes up the answers of a batch is not worth measuring."""

    def ask(index: int) -> bool:
        body = json.dumps(door.request(reference.inputs[index : index + 1].tolist())).encode()
        request = urllib.request.Request(door.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = np.asarray(door.predictions(json.load(answer)))
        return bool(np.allclose(found, reference.outputs[index : index + 1], atol=_TOLERANCE))

    count = len(reference.inputs)
    with ThreadPoolExecutor(count) as pool:
        right = list(pool.map(ask, [index % count for index in range(count * _CHECKED_ROUNDS)]))
    if not all(right):
        raise ValueError(f"{right.count(False)} of {len(right)} answers are not TensorFlow's")


def _over_http(door: Door, body: Path, seconds: int) -> list[Level]:
    http_load.run(door.url, body, connections=32, seconds=_WARM_UP_SECONDS)
    levels = []
    for connections in CONNECTIONS:
        load = http_load.run(door.url, body, connections=connections, seconds=seconds)
        levels.append(Level(door.name, door.shown, connections, load))
    return levels


def _over_grpc(door: Door, seconds: int) -> list[Level]:
    if not door.grpc_target:
        return []
    target, method, request = door.grpc_target, door.grpc_method, door.grpc_request
    grpc_load.run(target, method, request, calls=16, seconds=_WARM_UP_SECONDS)
    return [
        Level(door.name, door.shown, calls, grpc_load.run(target, method, request, calls=calls, seconds=seconds))
        for calls in CONNECTIONS
    ]


def _publish(name: str, title: str, levels: Sequence[Level], notes: Sequence[str]) -> None:
    rows = [
        _row(level, [other for other in levels if other.connections == level.connections])
        for level in sorted(levels, key=lambda item: (item.connections, -item.load.per_second))
    ]
    publish(name, f"Predictions over one instance beside the rivals: {title}", rows, notes=notes)


def _row(level: Level, level_of_all: Sequence[Level]) -> Mapping[str, Cell]:
    rates = {other.door: other.load.per_second for other in level_of_all}
    anchor, rate = rates.get(_ANCHOR), level.load.per_second
    others = [value for door, value in rates.items() if door != _HEADRACE]
    is_headrace = level.door == _HEADRACE
    row: dict[str, Cell] = {
        "connections": level.connections,
        "server": level.shown,
        "predictions/s": round(rate),
        "p50 ms": level.load.p50_ms,
        "p99 ms": level.load.p99_ms,
        "errors": level.load.errors,
        "x best rival": rate / max(others) if is_headrace and others else None,
    }
    if anchor is None:
        return row | {"target x best rival": 1.0 if is_headrace else None}
    return row | {
        "x mosec": rate / anchor,
        "target x mosec": TARGET_OVER_MOSEC[level.connections] if is_headrace else None,
        "p50 limit ms": _P50_LIMIT_MS if is_headrace and level.connections == 1 else None,
    }
