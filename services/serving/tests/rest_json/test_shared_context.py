"""`context` beside `instances`: as if every row held it, read once, and counted."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from common.definition.inputs import WITH_CONTEXT
from common.schema import PADDING
from protos import queue_pb2
from services.serving.batching.models import is_mergeable
from services.serving.front.front_metrics import FrontMetrics
from services.serving.rest_json.predict import Document, Inputs, read_inputs
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.limits import Limits
from services.serving.wire.prediction import Prediction, RequestFailed, read_prediction, write_tensor
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.redis_server import RedisServer
from testing.rows import each_row

_PLAIN = Signature(
    "tensorflow/serving/predict",
    {"user": TensorSpec("DT_STRING", (-1,)), "place": TensorSpec("DT_FLOAT", (-1, 2)),
     "item": TensorSpec("DT_INT64", (-1,))},
    {"score": TensorSpec("DT_FLOAT", (-1,))},
)  # fmt: skip
_TRAINED = Signature(
    "tensorflow/serving/predict",
    {"seen": TensorSpec("DT_INT64", (-1, -1)), "seen_row_lengths": TensorSpec("DT_INT64", (-1, -1)),
     "age": TensorSpec("DT_FLOAT", (-1,)), "item": TensorSpec("DT_INT64", (-1,))},
    {"score": TensorSpec("DT_FLOAT", (-1,))},
    optional={"age": 30.0},
    padding=dict.fromkeys(("seen", "seen_row_lengths"), PADDING["int64"]),
    nested={"seen": "seen_row_lengths"},
    has_schema=True,
)  # fmt: skip
_USER = {"user": "ann", "place": [1.5, 2.5]}


def read(signature: Signature, instances: list[Any], **more: Any) -> Inputs:
    return read_inputs(
        Document(json.dumps({"instances": instances, **more}).encode()), signature, Limits(max_bytes=100_000)
    )


@pytest.mark.covers("perf-shared-context")
@each_row(
    ("signature", "context", "rows"),
    [
        (_PLAIN, _USER, [{"item": 1}, {"item": 2}, {"item": 3}]),
        (_PLAIN, _USER, [{"item": 1}, {"item": 2, "user": "bob"}]),
        (_PLAIN, {**_USER, "item": 9}, [{}, {}]),
        (_TRAINED, {"seen": [[1, 2], [3]]}, [{"item": 1}, {"item": 2, "age": 4.0}]),
        (_TRAINED, {"seen": [[1]], "age": 7.0}, [{"item": 1}, {"item": 2, "seen": [[4], [5, 6]]}]),
        (_TRAINED, {"seen": [[1]], "age": None}, [{"item": 1}]),
    ],
)
def test_a_context_gives_what_its_inputs_in_every_row_give(
    signature: Signature, context: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    found, expanded = read(signature, rows, context=context), read(signature, [context | row for row in rows])
    assert list(found.arrays) == list(expanded.arrays)
    for name, array in expanded.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tolist() == array.tolist()
    assert (found.sharing, expanded.sharing) == (len(rows), 0)


def test_tensorflow_serving_would_not_look_at_it() -> None:
    """Rows that have every input are answered as without it, whatever it is."""
    rows = [{**_USER, "item": 1}]
    for context in ({"user": "bob"}, {"unknown": 1}, 5, None):
        assert read(_PLAIN, rows, context=context).arrays["user"].tolist() == [b"ann"]


@each_row(
    ("signature", "context", "rows", "sentence"),
    [
        (_PLAIN, 5, [{"item": 1}], "Expecting 'context' to be an object"),
        (_PLAIN, {**_USER, "hat": 1}, [{"item": 1}], "'context': JSON object: does not have named input: hat"),
        (_PLAIN, {"user": "ann"}, [{"item": 1}], 'JSON object: {"item":1} keys must be equal to: item,place'),
        (_PLAIN, {**_USER, "place": ["a", 1]}, [{"item": 1}], "Failed to process 'context' key: place. Error: "),
        (_TRAINED, {"seen": [[1]]}, [1, 2], "instances is a list of values"),
        (_TRAINED, {"hat": 1}, [{"seen": [[1]], "item": 1}], "does not have named input: hat"),
        (_PLAIN, {"user": "a" * 60_000, "place": [1, 2]}, [{"item": 1}, {"item": 2}], "expected at most 100000"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(signature: Signature, context: Any, rows: list[Any], sentence: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        read(signature, rows, context=context)
    assert caught.value.code == 3
    assert sentence in caught.value.message.replace("\n", "").replace("    ", "").replace(": 1}", ":1}")


@pytest.mark.covers("perf-shared-context")
def test_a_version_that_takes_one_row_of_the_context_gets_one(redis_server: RedisServer) -> None:
    given: list[dict[str, tuple[int, ...]]] = []

    def scored(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        given.append({name: array.shape for name, array in inputs.items()})
        return {"score": (inputs["place"].sum(axis=1) + inputs["item"]).astype("<f4")}

    default = dataclasses.replace(_PLAIN, has_schema=True)
    context = {"user": TensorSpec("DT_STRING", (1,)), "place": TensorSpec("DT_FLOAT", (1, 2))}
    once = dataclasses.replace(default, inputs={**default.inputs, **context})
    served = version(signatures={"serving_default": default, WITH_CONTEXT: once})
    rows = [{"item": number} for number in range(5)]
    with FrontThread(redis_server.url, replica_state(served)) as front, FakeRunner(redis_server.url, scored):
        answers = [
            front.post(body).json()
            for body in (
                {"instances": rows, "context": _USER},
                {"instances": [*rows[:4], {"item": 4, "user": "bob"}], "context": _USER},
                {"instances": [_USER | row for row in rows]},
            )
        ]
        registry = CollectorRegistry()
        registry.register(FrontMetrics(front.front))
        told = front.call(lambda: generate_latest(registry).decode())
    assert answers == [{"predictions": [4.0, 5.0, 6.0, 7.0, 8.0]}] * 3
    whole = {"user": (5,), "place": (5, 2), "item": (5,)}
    assert given == [{"user": (1,), "place": (1, 2), "item": (5,)}, whole, whole]
    assert 'headrace_serving_contexts_total{model="m"} 2.0' in told
    assert 'headrace_serving_contexts_transformed_once_total{model="m"} 1.0' in told
    assert 'headrace_serving_context_rows_total{model="m"} 10.0' in told


def test_a_runner_takes_one_row_of_the_context_and_no_other_number() -> None:
    context = {"user": TensorSpec("DT_STRING", (1,)), "place": TensorSpec("DT_FLOAT", (1, 2))}
    once = dataclasses.replace(
        _PLAIN, inputs={**_PLAIN.inputs, **context}, optional={"place": 0.5}, has_schema=True
    )  # fmt: skip

    def taken(users: int) -> Prediction:
        request = queue_pb2.PredictionRequest(signature=WITH_CONTEXT)
        write_tensor(request.inputs.add(), "user", np.array([b"ann"] * users, object))
        write_tensor(request.inputs.add(), "item", np.arange(3))
        return read_prediction(request, {WITH_CONTEXT: once})

    assert (taken(1).rows, taken(1).inputs["place"].tolist()) == (3, [[0.5, 0.5]])
    assert not is_mergeable(once), "each request has its own context"
    with pytest.raises(RequestFailed, match=r'"user" has shape \[2\], expected \[1\]'):
        taken(2)


def test_columns_share_nothing() -> None:
    body = json.dumps({"inputs": {"seen": [[1]], "item": [1]}, "context": {"age": 1.0}}).encode()
    with pytest.raises(RequestFailed, match="expecting 'instances'"):
        read_inputs(Document(body), _TRAINED)
