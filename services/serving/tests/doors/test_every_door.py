"""One row, as tensors and as an Example, by REST, by gRPC and by the queue: one score."""

import base64
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import redis

from protos import example_pb2, tfserving_pb2
from services.serving.tests.support.grpc_calls import predict_stub
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.standalone_server import StandaloneServer, copy_version
from services.serving.wire.keys import version_target
from services.serving.wire.prediction import read_tensor
from testing import plain_http
from testing.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("warm_python")
_X, _K, _SCORE = 1.5, 3, 22.5


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, saved_models: Path, redis_beside: RedisServer
) -> Iterator[StandaloneServer]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("scorer", "visits"):
        (folder / name).mkdir()
        copy_version(saved_models / name, folder / name, 1)
    models = [
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}'
        for name in ("scorer", "visits")
    ]
    (folder / "models.config").write_text(f"model_config_list {{ {' '.join(models)} }}")
    started = StandaloneServer(redis_beside.url, f"--model_config_file={folder / 'models.config'}")
    started.wait_ready()
    yield started
    started.kill()


def _example() -> bytes:
    example = example_pb2.Example()
    example.features.feature["x"].float_list.value.append(_X)
    example.features.feature["k"].int64_list.value.append(_K)
    return example.SerializeToString()


def _by_rest(server: StandaloneServer, body: dict[str, object]) -> float:
    url = f"{server.url}/v1/models/scorer:predict"
    answer = plain_http.post(url, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    (score,) = answer.json().get("predictions") or answer.json()["outputs"]
    return float(score)


def _by_grpc(server: StandaloneServer, signature: str, *, model: str = "scorer", **inputs: np.ndarray) -> float:
    """The score of the first row."""
    asked = tfserving_pb2.PredictRequest()
    asked.model_spec.name, asked.model_spec.signature_name = model, signature
    for name, value in inputs.items():
        tensor = asked.inputs[name]
        for size in value.shape:
            tensor.tensor_shape.dim.add(size=size)
        if value.dtype == object:
            tensor.dtype = tfserving_pb2.DT_STRING
            tensor.string_val.extend(value.tolist())
            continue
        tensor.dtype = tfserving_pb2.DT_FLOAT if value.dtype == np.float32 else tfserving_pb2.DT_INT64
        tensor.tensor_content = value.tobytes()
    with grpc.insecure_channel(server.grpc_address) as channel:
        output = predict_stub(channel)(asked, timeout=60).outputs["score"]
    return float(output.float_val[0] if output.float_val else np.frombuffer(output.tensor_content, "<f4")[0])


def _by_queue(url: str, signature: str, **inputs: np.ndarray) -> float:
    connection = redis.Redis.from_url(url)
    keys = {key.decode() for key in connection.scan_iter("headrace:queue:*")}
    connection.close()
    (model,) = {key.removeprefix("headrace:queue:{").partition("}:")[0] for key in keys if "scorer" in key}
    asked = request(signature.encode(), inputs, signature=signature)
    reply = Asker(url, model).ask(asked, target=version_target(1))
    return float(read_tensor(reply.outputs[0])[0])


@pytest.mark.covers("srv-inputs", "srv-client")
def test_one_row_has_one_score_by_every_door(server: StandaloneServer, redis_beside: RedisServer) -> None:
    x, k = np.array([_X], np.float32), np.array([_K], np.int64)
    example = np.array([_example()], object)
    encoded = {"b64": base64.b64encode(_example()).decode()}
    scores = {
        "REST, rows": _by_rest(server, {"instances": [{"x": _X, "k": _K}]}),
        "REST, columns": _by_rest(server, {"inputs": {"x": [_X], "k": [_K]}}),
        "REST, Example": _by_rest(server, {"signature_name": "serving_examples", "instances": [encoded]}),
        "gRPC, tensors": _by_grpc(server, "", x=x, k=k),
        "gRPC, Example": _by_grpc(server, "serving_examples", examples=example),
        "queue, tensors": _by_queue(redis_beside.url, "serving_default", x=x, k=k),
        "queue, Example": _by_queue(redis_beside.url, "serving_examples", examples=example),
    }
    assert scores == dict.fromkeys(scores, _SCORE)


@pytest.mark.covers("rec-parse", "srv-inputs")
def test_lists_of_lists_come_nested_by_rest_and_as_two_lists_by_grpc(server: StandaloneServer) -> None:
    def by_grpc(values: list[int], lengths: list[int]) -> float:
        given = {"visits": values, "visits_row_lengths": lengths}
        arrays = {name: np.array([row], np.int64) for name, row in given.items()}
        return _by_grpc(server, "", model="visits", **arrays)

    rows = {"instances": [{"visits": visits} for visits in ([[1, 2], [], [3]], [[4]], [])]}
    answer = plain_http.post(f"{server.url}/v1/models/visits:predict", json=rows, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["predictions"] == [609.0, 205.0, 0.0]
    assert [by_grpc([1, 2, 3], [2, 0, 1]), by_grpc([4], [1]), by_grpc([], [])] == [609.0, 205.0, 0.0]
    with pytest.raises(grpc.RpcError, match=r'input \\"visits\\", row 0: 3 values, .* \(visits_row_lengths\) hold 2'):
        by_grpc([1, 2, 3], [2, 0])
