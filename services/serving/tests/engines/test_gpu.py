"""SERVING_DEVICE: a replica on a GPU answers as one on the CPU does, and says why it cannot where there is none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.process.gpu import has_gpu
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import Zygote
from services.serving.wire.prediction import read_tensor
from testing.redis_server import RedisServer

_ON_GPU = ModelOptions(engine=EngineOptions(device="gpu"))
_NEEDS_GPU = pytest.mark.skipif(not has_gpu(), reason="there is no GPU on this machine")


@pytest.fixture
def gpu_zygote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zygote]:
    """The suite hides GPUs from processes that do not ask for them (conftest.py)."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    zygote = Zygote(device="gpu")
    yield zygote
    zygote.stop()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (_ON_GPU, "SERVING_DEVICE is gpu, and TensorFlow finds no GPU here"),
        (ModelOptions(engine=EngineOptions(engine="litert", device="gpu")), "engine litert computes on CPUs"),
    ],
)
def test_what_cannot_compute_on_a_gpu_keeps_a_version_from_loading(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path, options: ModelOptions, reason: str
) -> None:
    """The session's zygote shows its runners no device."""
    runner = zygote.start_runner(redis_server.url, saved_models / "network", options=options)
    assert reason in runner.message("failed")["message"]


@_NEEDS_GPU
@pytest.mark.covers("perf-bench-gpu")
def test_a_replica_on_a_gpu_answers_as_one_on_the_cpu(
    zygote: Zygote, gpu_zygote: Zygote, redis_server: RedisServer, saved_models: Path
) -> None:
    message = request(
        b"1", {"x": np.linspace(-1, 1, 192, dtype=np.float32).reshape(3, 64)}, signature="serving_default"
    )
    answers = []
    for forked, options, kind in (
        (zygote, ModelOptions(), "session, single-threaded executor"),
        (gpu_zygote, _ON_GPU, "session, default executor, on a GPU"),
    ):
        runner = forked.start_runner(redis_server.url, saved_models / "network", options=options).serve()
        assert runner.ready["engine"] == kind
        answers.append(read_tensor(Asker(redis_server.url, "m").ask(message).outputs[0]))
        assert runner.leave() == 0
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-3, atol=1e-5)
