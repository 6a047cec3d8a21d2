"""examples/redis_client, as a user runs it: nothing but Redis between it and a runner."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from protos import queue_pb2
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from testing.redis_server import RedisServer

_ROOT = Path(__file__).parents[4]
_MOST_LINES = 30


def row_sums(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    if inputs["x"].ndim != 2:
        raise RequestFailed(Code.INVALID_ARGUMENT, "x has no rows")
    return {"y": inputs["x"].sum(axis=1)}


def run_client(redis_server: RedisServer, inputs: str) -> subprocess.CompletedProcess[str]:
    script = _ROOT / "examples" / "redis_client" / "client.py"
    with FakeRunner(redis_server.url, row_sums):
        return subprocess.run(
            [sys.executable, str(script), redis_server.url, "m", inputs],
            env=os.environ | {"PYTHONPATH": str(_ROOT)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def test_the_example_enqueues_and_polls(redis_server: RedisServer) -> None:
    done = run_client(redis_server, '{"x": [[1, 2], [3, 4]]}')
    assert (done.returncode, done.stdout) == (0, "3 y [3.0, 7.0]\n"), done.stderr


def test_the_example_tells_why_a_prediction_failed(redis_server: RedisServer) -> None:
    done = run_client(redis_server, '{"x": 1}')
    assert (done.returncode, done.stderr.strip()) == (1, "x has no rows")


def test_the_example_is_short() -> None:
    lines = (_ROOT / "examples" / "redis_client" / "client.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= _MOST_LINES
