"""How each rival is started and asked.

All serve one instance with one model process, batches of at most 64, and wait 2 ms for them where they take a wait.
The settings beyond that are those which made each one fastest in trials on 2 cores.
"""

import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.install import python_of

SERVERS = Path(__file__).with_name("servers").absolute()
Document = Any
"""A parsed JSON document."""


def _instances(rows: list[list[float]]) -> Document:
    return {"instances": rows}


def _predictions(answer: Document) -> Document:
    return answer["predictions"]


def _v2_request(rows: list[list[float]]) -> Document:
    flat = [value for row in rows for value in row]
    return {"inputs": [{"name": "x", "shape": [len(rows), len(rows[0])], "datatype": "FP32", "data": flat}]}


def _v2_answer(answer: Document) -> Document:
    output = answer["outputs"][0]
    return np.asarray(output["data"]).reshape(output["shape"]).tolist()


@dataclass(frozen=True)
class Rival:
    """One serving system."""

    name: str
    shown: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = "/predict"
    request: Callable[[list[list[float]]], Document] = _instances
    predictions: Callable[[Document], Document] = _predictions
    speaks_v2_grpc: bool = False
    """KServe's GRPCInferenceService, on RIVAL_GRPC_PORT."""


def _script(name: str) -> tuple[str, ...]:
    return (str(python_of(name)), str(SERVERS / f"{name}_server.py"))


_V2: dict[str, Any] = {
    "path": "/v2/models/bench/infer", "request": _v2_request, "predictions": _v2_answer, "speaks_v2_grpc": True,
}  # fmt: skip
# Triton's Python stub loads libpython by name; it has to be that of the environment's own interpreter.
_LIBRARIES = {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}
_MOSEC_OPTIONS = ("--address", "127.0.0.1", "--port", "{port}", "--log-level", "warning")
_RAY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip
_ALL = (
    Rival("mosec", "mosec 0.9.8", (*_script("mosec"), *_MOSEC_OPTIONS)),
    Rival("pytriton", "pytriton 0.7.0", _script("pytriton"), _LIBRARIES, **_V2),
    Rival("mlserver", "MLServer 1.7.1", _script("mlserver"), **_V2),
    Rival("ray", "Ray Serve 2.60.0", _script("ray"), _RAY),
)
RIVALS = {rival.name: rival for rival in _ALL}
"""The fastest of seven that were measured over HTTP and over gRPC, KServe's server and Ray's
(benchmarks/results/2026-11-21-serving.md)."""
