"""A value of a wrong type at any key of a prediction: TensorFlow Serving's 400, from every door, and the next one is
answered."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from protos import queue_pb2
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import Signature, TensorSpec
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.wrong_values import JSON_VALUES, wrong

SIGNATURE = Signature(
    "tensorflow/serving/predict",
    {
        "x": TensorSpec("DT_FLOAT", (-1, 2), "serve_x:0"),
        "k": TensorSpec("DT_INT64", (-1,), "serve_k:0"),
        "s": TensorSpec("DT_STRING", (-1,), "serve_s:0"),
    },
    {"y": TensorSpec("DT_FLOAT", (-1,), "Sum:0")},
)
ROW: dict[str, Any] = {"x": [1, 2], "k": 3, "s": {"b64": "YQ=="}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": (":predict", {"signature_name": "serving_default", "instances": [ROW]}),
    "columns": (":predict", {"inputs": {"x": [[1, 2]], "k": [3], "s": ["a"]}}),
    "later": (":predictAsync", {"instances": [ROW]}),
    "classify": (":classify", {"context": {"s": "a"}, "examples": [{"x": [1.5, 2.5], "k": 3}]}),
    "regress": (":regress", {"examples": [{"x": [1.5, 2.5], "k": 3, "s": {"b64": "YQ=="}}]}),
}


def _sums(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    """Of any shape: ranks and sizes are the runner's to check (test_contract_rest)."""
    return {"y": inputs["x"].reshape(max(1, inputs["k"].size), -1).sum(axis=1)}


@each_row("name", BODIES)
def test_a_prediction_with_a_value_of_a_wrong_type_is_refused_in_a_sentence(
    redis_server: RedisServer, name: str
) -> None:
    verb, body = BODIES[name]
    state = replica_state(version(signature=SIGNATURE))
    with (
        FrontThread(redis_server.url, state, queue_limit=1000) as front,
        FakeRunner(redis_server.url, _sums),
        plain_http.client(base_url=front.url, timeout=60) as client,
    ):
        for place, given in wrong(body, JSON_VALUES):
            answer = client.post(f"/v1/models/m{verb}", content=json.dumps(given))
            assert answer.status_code in (200, 202, 400, 404), f"{place}: {answer.status_code} {answer.text}"
            assert answer.is_success or answer.json()["error"], place
        assert client.post("/v1/models/m:predict", json={"instances": [ROW]}).json() == {"predictions": [3.0]}
