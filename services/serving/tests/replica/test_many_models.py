"""More models than memory on one replica: loaded when they are asked, evicted by use. One server for the module."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from services.serving.tests.conftest import StartManager
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.standalone_server import StandaloneServer
from services.serving.wire.replica_state import ReplicaState
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess

pytestmark = pytest.mark.usefixtures("warm_python")
_MODELS = 8
_BUDGET_BYTES = 60_000_000
"""For two: a runner of these models holds 16 to 40 MB."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, saved_models: Path) -> Iterator[StandaloneServer]:
    directory = tmp_path_factory.mktemp("many")
    entries = []
    for number in range(_MODELS):
        base = directory / f"m{number}"
        shutil.copytree(saved_models / f"affine/{number % 3 + 1}", base / str(number + 1))
        entries.append(f'config {{ name: "m{number}" base_path: "{base}" model_platform: "tensorflow" }}')
    config = directory / "models.config"
    config.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    redis = RedisServer(directory)
    redis.start()
    started = StandaloneServer(
        redis.url, f"--model_config_file={config}",
        SERVING_DATA_DIR=str(directory / "data"), SERVING_MODEL_MEMORY_BYTES=str(_BUDGET_BYTES),
        SERVING_MODEL_PRIORITIES="m7=low",
    )  # fmt: skip
    started.wait_ready()
    yield started
    started.kill()
    redis.stop()


def _memory(server: StandaloneServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/headrace/status").json()["memory"]
    return found


def _answer(server: StandaloneServer, number: int) -> list[float]:
    response = server.predict(f"m{number}", [1.0, 2.0, 3.0])
    assert response.status_code == 200, response.text
    return list(response.json()["predictions"])


@pytest.mark.covers("srv-multi-model", "srv-lifecycle")
def test_a_model_is_loaded_when_it_is_asked_and_not_before(server: StandaloneServer) -> None:
    assert _memory(server)["loaded"] == []
    assert server.states("m0") == {1: "START"}, "TensorFlow Serving's word for what is not loaded yet"
    assert _answer(server, 0) == [1006.0]
    assert server.states("m0") == {1: "AVAILABLE"}
    assert _memory(server)["loaded"] == ["m0"]


@pytest.mark.covers("srv-multi-model")
def test_everything_is_answered_while_models_come_and_go(server: StandaloneServer) -> None:
    """Each request by its own model, though all are asked at once and few of them fit."""
    with ThreadPoolExecutor(2 * _MODELS) as pool:
        answers = list(pool.map(lambda number: _answer(server, number), [*range(_MODELS)] * 2))
    assert answers == [[1000.0 * (number % 3 + 1) + 6] for number in [*range(_MODELS)] * 2]
    memory = _memory(server)
    assert sum(memory["evictions"].values()) >= 3
    assert memory["used_bytes"] <= memory["budget_bytes"] == _BUDGET_BYTES
    assert set(memory["cold_requests"]) == {f"m{number}" for number in range(_MODELS)}
    metrics = server.get("/metrics").text
    assert "headrace_serving_model_memory_budget_bytes 6e+07" in metrics
    evicted = sum(float(line.split()[-1]) for line in metrics.splitlines() if "serving_evictions_total{" in line)
    assert evicted >= sum(memory["evictions"].values())


def test_grpc_waits_too_and_a_deadline_ends_the_wait(server: StandaloneServer) -> None:
    cold = next(f"m{number}" for number in range(_MODELS) if server.states(f"m{number}") == {number + 1: "START"})
    request = predict_request([1.0, 2.0, 3.0], model=cold)
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = predict_stub(channel)
        with pytest.raises(grpc.RpcError) as late:
            predict(request, timeout=0.01)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        answer = predict(request, timeout=60)
    number = int(cold[1:])
    assert list(answer.outputs["y"].float_val) == [1000.0 * (number % 3 + 1) + 6]


def test_a_model_of_low_priority_gives_way_on_the_cores(server: StandaloneServer) -> None:
    assert _answer(server, 1) == [2006.0]
    assert _answer(server, 7) == [2006.0]
    models = {one["name"]: one["versions"][0] for one in server.get("/headrace/models").json()["models"]}
    normal, low = (psutil.Process(int(models[name]["runner"].split("/")[-1])).nice() for name in ("m1", "m7"))
    assert low == min(normal + 10, 19)


def _is_cold(model: str, state: ReplicaState) -> bool:
    return all(version.is_cold for version in state.versions if version.model == model)


def test_models_of_a_registry_leave_and_come_back_with_their_aliases(
    registry: RegistryProcess, start_manager: StartManager, saved_models: Path, asker: Asker
) -> None:
    registry.add_model("n")
    registry.add_version("m", saved_models / "affine/1")
    registry.add_version("n", saved_models / "affine/2")
    manager = start_manager(model_memory_bytes="1")  # Room for one, whatever it takes.
    manager.wait_until(lambda state: sum(version.is_cold for version in state.versions) == 2, "both being cold")
    for model, number, other in (("m", 1, "n"), ("n", 1, "m"), ("m", 1, "n")):
        manager.ask(model)
        manager.wait_available(model, number, "production")
        manager.wait_until(partial(_is_cold, other), f"{other} being cold")
    assert asker.ask(request(b"a", {"x": np.array([[5, 0, 0]], "<f4")})).version == 1
    assert manager.state is not None
    assert manager.state.memory is not None
    assert manager.state.memory.evictions == {"m": 1, "n": 1}


def test_an_unknown_model_or_version_is_refused_at_once(server: StandaloneServer) -> None:
    assert server.predict("m99", [1.0, 2.0, 3.0]).status_code == 404
    assert server.predict("m3/versions/99", [1.0, 2.0, 3.0]).status_code == 404
