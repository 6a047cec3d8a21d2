"""Headrace and its rivals, in turn, under the same load: `python -m benchmarks.serving --rivals`."""

import functools
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

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
_IDLE_SECONDS = 3.0
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
class Line:
    """What one server did at one number of connections, in every round; the other servers' lines of a round were
    measured seconds before and after it."""

    door: str
    shown: str
    connections: int
    rounds: Sequence[http_load.Load]

    def rates(self) -> list[float]:
        """Predictions per second, by round."""
        return [load.per_second for load in self.rounds]


Measure = Callable[[Door, int], http_load.Load]
"""(server, connections) -> what that load saw."""


def compare(
    saved_model: Path, reference: Reference, directory: Path, names: Sequence[str], *, seconds: int, rounds: int
) -> None:
    """Measures Headrace and the named rivals (all that are installed where there are none) and prints the tables.

    All servers run at the same time and are asked in turn, so that what a table compares is seconds apart: the
    machine's own speed changes by a third within minutes. The cost of the idle servers is printed.
    """
    wanted = list(names) or list(RIVALS)
    missing = [name for name in wanted if not is_installed(name)]
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        doors: list[Door] = []
        for name in (_HEADRACE, *(name for name in wanted if name not in missing)):
            print(f"starting {name}", file=sys.stderr, flush=True)
            with _noting(name, failed):
                door = stack.enter_context(_open(name, saved_model, reference, directory))
                _check(door, reference)
                _body(door, reference, directory)
                doors.append(door)
        idle = _busy_cores()
        lines = _in_turn(doors, functools.partial(_over_http, directory, seconds), rounds, failed)
        with_grpc = [door for door in doors if door.grpc_target and door.name not in failed]
        grpc_lines = _in_turn(with_grpc, functools.partial(_over_grpc, seconds), rounds, failed)
    how = (
        f"One run, {rounds} rounds of {seconds} s a line: medians. All servers run, one instance each, max batch 64, on"
        f" {os.cpu_count()} cores that the generator shares; asked by nobody, the machine used {idle:.2f} cores; load"
        f" average {os.getloadavg()[0]:.1f}."
    )
    notes = [
        how,
        *(f"Not installed: {name} (python -m benchmarks.rivals.install {name})." for name in missing),
        *(f"Not measured: {name}: {reason[:300]}" for name, reason in failed.items()),
    ]
    _publish("serving_rivals", f"HTTP, 64 floats as JSON ({http_load.generator()})", lines, notes)
    if grpc_lines:
        _publish("serving_rivals_grpc", "gRPC, 64 floats (asyncio generator)", grpc_lines, notes)


@contextmanager
def _noting(name: str, failed: dict[str, str]) -> Iterator[None]:
    """A server that cannot be measured is named below the tables and ends nothing."""
    try:
        yield
    except (RuntimeError, OSError, ValueError, KeyError, AssertionError, subprocess.SubprocessError) as error:
        failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name} was not measured: {failed[name]}", file=sys.stderr, flush=True)


def _busy_cores() -> float:
    """How many cores the machine uses now, over some seconds."""
    share = psutil.cpu_percent(interval=_IDLE_SECONDS)
    return float(share) / 100 * (os.cpu_count() or 1)


def _in_turn(doors: Sequence[Door], measure: Measure, rounds: int, failed: dict[str, str]) -> list[Line]:
    """Every round asks all servers at one level, one after the other, then at the next; a first one warms them up.
    Servers that fail are in no line."""
    found: dict[tuple[str, int], list[http_load.Load]] = {}
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        for connections in CONNECTIONS if number else CONNECTIONS[1:2]:
            for door in doors:
                with _noting(door.name, failed) if door.name not in failed else nullcontext():
                    if door.name not in failed:
                        load = measure(door, connections)
                        if number:
                            found.setdefault((door.name, connections), []).append(load)
    return [
        Line(door.name, door.shown, connections, found[door.name, connections])
        for door in doors
        if door.name not in failed
        for connections in CONNECTIONS
    ]


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

    def is_right(index: int) -> bool:
        body = json.dumps(door.request(reference.inputs[index : index + 1].tolist())).encode()
        request = urllib.request.Request(door.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = np.asarray(door.predictions(json.load(answer)))
        return bool(np.allclose(found, reference.outputs[index : index + 1], atol=_TOLERANCE))

    count = len(reference.inputs)
    with ThreadPoolExecutor(count) as pool:
        right = list(pool.map(is_right, [index % count for index in range(count * _CHECKED_ROUNDS)]))
    if not all(right):
        raise ValueError(f"{right.count(False)} of {len(right)} answers are not TensorFlow's")


def _body(door: Door, reference: Reference, directory: Path) -> Path:
    """The file that wrk sends to the server; written once."""
    path = directory / f"{door.name}.json"
    if not path.exists():
        path.write_text(json.dumps(door.request(reference.inputs[:1].tolist())))
    return path


def _over_http(directory: Path, seconds: int, door: Door, connections: int) -> http_load.Load:
    return http_load.run(door.url, directory / f"{door.name}.json", connections=connections, seconds=seconds)


def _over_grpc(seconds: int, door: Door, connections: int) -> http_load.Load:
    return grpc_load.run(door.grpc_target, door.grpc_method, door.grpc_request, calls=connections, seconds=seconds)


def _publish(name: str, title: str, lines: Sequence[Line], notes: Sequence[str]) -> None:
    rows = [
        _row(line, [other for other in lines if other.connections == line.connections])
        for line in sorted(lines, key=lambda item: (item.connections, -median(item.rates())))
    ]
    publish(name, f"Predictions over one instance beside the rivals: {title}", rows, notes=notes)


def _ratios(line: Line, others: Sequence[Line]) -> list[float]:
    """Round by round: the line's rate over the best of the others'."""
    best = [max(rates) for rates in zip(*(other.rates() for other in others), strict=True)]
    return [rate / other if other else float("inf") for rate, other in zip(line.rates(), best, strict=True)]


def _row(line: Line, lines_of_all: Sequence[Line]) -> Mapping[str, Cell]:
    is_headrace = line.door == _HEADRACE
    rivals = [other for other in lines_of_all if other.door != _HEADRACE]
    anchors = [other for other in lines_of_all if other.door == _ANCHOR]
    over_best = _ratios(line, rivals) if is_headrace and rivals else []
    row: dict[str, Cell] = {
        "connections": line.connections,
        "server": line.shown,
        "predictions/s": round(median(line.rates())),
        "p50 ms": float(median(load.p50_ms for load in line.rounds)),
        "p99 ms": float(median(load.p99_ms for load in line.rounds)),
        "errors": sum(load.errors for load in line.rounds),
        "x best rival": median(over_best) if over_best else None,
    }
    if not anchors:
        shown = f"{min(over_best):.2f} to {max(over_best):.2f}" if over_best else None
        return row | {"rounds": shown, "target x best rival": 1.0 if is_headrace else None}
    ratios = _ratios(line, anchors)
    return row | {
        "x mosec": median(ratios),
        "rounds": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "target x mosec": TARGET_OVER_MOSEC[line.connections] if is_headrace else None,
        "p50 limit ms": _P50_LIMIT_MS if is_headrace and line.connections == 1 else None,
    }
