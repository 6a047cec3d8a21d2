"""Large messages at every door: read beside the front, within bounds, with the same answers as small ones."""

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import psutil
import pytest

from protos import example_pb2, queue_pb2, tfserving_pb2
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import ROWS_OF_TWO, replica_state, version
from services.serving.wire.limits import Limits
from services.serving.wire.replica_state import Signature, TensorSpec
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

_TIMEOUT_SECONDS = 60.0
_EXAMPLES = Signature(
    "tensorflow/serving/regress", {"inputs": TensorSpec("DT_STRING", (-1,))}, {"outputs": TensorSpec("DT_FLOAT", (-1,))}
)
_LIMITS = Limits(max_bytes=64 << 20, max_rows=100_000, max_lists=300_000)


def model(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    if "inputs" in inputs:
        return {"outputs": np.array([len(example) for example in inputs["inputs"]], np.float32)}
    return {"y": inputs["x"].sum(axis=1)}


@pytest.fixture(scope="module")
def front(redis_beside: RedisServer) -> Iterator[FrontThread]:
    """One for the module, with the processes beside it that read large messages."""
    state = replica_state(version(signatures={"serving_default": ROWS_OF_TWO, "regression": _EXAMPLES}))
    with (
        FrontThread(redis_beside.url, state, max_body_bytes=64 << 20, limits=_LIMITS) as front,
        FakeRunner(redis_beside.url, model),
    ):
        yield front


def post(front: FrontThread, body: bytes, verb: str = "predict") -> httpx.Response:
    return plain_http.post(f"{front.url}/v1/models/m:{verb}", content=body, timeout=_TIMEOUT_SECONDS)


def rows(unit: bytes, count: int, *, last: bytes = b"", key: bytes = b"instances") -> bytes:
    return b'{"%b":[%b]}' % (key, b",".join([unit] * count + [last] * bool(last)))


def call(front: FrontThread, method: str, message: bytes) -> bytes:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}", options=options) as channel:
        ask = channel.unary_unary(
            f"/tensorflow.serving.PredictionService/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        return ask(message, timeout=_TIMEOUT_SECONDS)


def readers() -> list[psutil.Process]:
    """A child that has ended and that nobody has waited for has no command line any more."""
    children = psutil.Process(os.getpid()).children()
    return [child for child in children if "common.process.aside" in (child.as_dict(["cmdline"])["cmdline"] or ())]


def test_a_large_body_is_answered_as_a_small_one(front: FrontThread) -> None:
    values = [[index, 0.123456789012345] for index in range(90_000)]
    answer = post(front, json.dumps({"instances": values}).encode())
    assert answer.status_code == 200, answer.text[:300]
    expected = np.array(values, np.float32).sum(axis=1)
    assert np.array_equal(np.array(answer.json()["predictions"], np.float32), expected)
    columns = post(front, json.dumps({"inputs": values}).encode())
    assert np.array_equal(np.array(columns.json()["outputs"], np.float32), expected)


def test_others_are_answered_while_a_large_body_is_read(front: FrontThread) -> None:
    body = rows(b"[0.25,0.5]", 50_000)
    assert post(front, body).status_code == 200
    for reader in readers():
        reader.suspend()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, front, body)
        try:
            assert plain_http.get(f"{front.url}/healthz", timeout=_TIMEOUT_SECONDS).status_code == 200
            assert post(front, b'{"instances":[[1,2]]}').json() == {"predictions": [3.0]}
            assert not waiting.done()
        finally:
            for reader in readers():
                reader.resume()
        assert waiting.result().json() == {"predictions": [0.75] * 50_000}


@each_row(
    ("body", "message"),
    [
        (rows(b'{"x":1}', 400_001), "the body has 400002 objects, expected at most 400000; send fewer rows at once"),
        (rows(b"{}", 400_000), "the body has 400001 objects, expected at most 400000; send fewer rows at once"),
        (rows(b"[]", 300_000), "the body has 300001 lists, expected at most 300000; send fewer rows at once"),
        (rows(b"1", 100_001), "the request has 100,001 rows, expected at most 100,000; send fewer at once"),
    ],
)
@each_row("verb", ["predict", "predictAsync"])
def test_more_values_than_a_request_may_have_are_refused(
    front: FrontThread, body: bytes, message: str, verb: str
) -> None:
    answer = post(front, body, verb)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_more_examples_than_a_request_may_have_are_refused(front: FrontThread) -> None:
    answer = post(front, rows(b"{}", 100_001, key=b"examples"), "regress")
    message = "the request has 100,001 rows, expected at most 100,000; send fewer at once"
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    request = tfserving_pb2.RegressionRequest(model_spec={"name": "m"})
    request.input.example_list.examples.extend([b""] * 200_000)
    with pytest.raises(grpc.RpcError) as refused:
        call(front, "Regress", request.SerializeToString())
    assert refused.value.details() == message.replace("100,001", "200,000")
    _LIMITS.check_rows(100_000)


def test_brackets_in_texts_are_no_lists(front: FrontThread) -> None:
    body = b'{"note":"%b","instances":[[1,2]]}' % (rb"[\"[\\" * 400_000)
    assert post(front, body).json() == {"predictions": [3.0]}


def test_a_fault_in_a_large_body_is_told_as_in_a_small_one(front: FrontThread) -> None:
    small, large = (post(front, rows(b'{"x":[1,2]}', count, last=b'{"y":1}')) for count in (3, 90_000))
    assert small.status_code == large.status_code == 400
    assert large.json()["error"] == small.json()["error"].replace("element: 3", "element: 90000")


def test_large_grpc_messages_are_answered_whatever_the_order_of_their_fields(front: FrontThread) -> None:
    spec = tfserving_pb2.PredictRequest(model_spec={"name": "m"}).SerializeToString()
    given = tfserving_pb2.PredictRequest()
    tensor = given.inputs["x"]
    tensor.dtype = tfserving_pb2.DT_FLOAT
    for size in (150_000, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(np.arange(300_000, dtype=np.float32))
    expected = np.arange(300_000, dtype=np.float32).reshape(-1, 2).sum(axis=1)
    for message in (spec + given.SerializeToString(), given.SerializeToString() + spec):
        response = tfserving_pb2.PredictResponse.FromString(call(front, "Predict", message))
        assert (response.model_spec.name, response.model_spec.version.value) == ("m", 3)
        assert np.array_equal(np.array(response.outputs["y"].float_val, np.float32), expected)


@each_row("message", [b"\x0a\xff\xff\xff\xff\x7f" + b"x" * 300_000, b"\x80" * 300_000, b"\x1a\x00" * 200_000])
def test_a_large_message_that_is_no_request_is_refused(front: FrontThread, message: bytes) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(front, "Predict", message)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_large_examples_are_regressed_over_both_doors(front: FrontThread) -> None:
    request = tfserving_pb2.RegressionRequest(model_spec={"name": "m", "signature_name": "regression"})
    example = example_pb2.Example()
    example.features.feature["x"].bytes_list.value.append(b"x" * 1000)
    request.input.example_list.examples.extend([example.SerializeToString()] * 400)
    size = example.ByteSize()
    response = tfserving_pb2.RegressionResponse.FromString(call(front, "Regress", request.SerializeToString()))
    assert [item.value for item in response.result.regressions] == [size] * 400
    answer = post(front, rows(b'{"x":"%b"}' % (b"x" * 1000), 400, key=b"examples"), "regress")
    assert answer.json() == {"results": [float(size)] * 400}


def test_an_asynchronous_prediction_may_be_large_and_so_may_its_answer(front: FrontThread) -> None:
    submitted = post(front, rows(b"[0.25,0.5]", 90_000), "predictAsync").json()
    url = f"{front.url}/v1/predictions/{submitted['id']}"
    wait_until(lambda: plain_http.get(url, params={"wait_seconds": 5}, timeout=_TIMEOUT_SECONDS).status_code == 200)
    answer = plain_http.get(url, timeout=_TIMEOUT_SECONDS).json()
    assert (answer["predictions"], answer["version"]) == ([0.75] * 90_000, 3)
