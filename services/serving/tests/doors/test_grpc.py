"""The gRPC door of a front: deadlines, errors, defaults, counts. `test_contract_grpc.py` has values and faults."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from protos import queue_pb2, tfserving_pb2
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.grpc_calls import predict_request, predict_stub, stub
from services.serving.tests.support.replica_states import ROWS_OF_TWO, replica_state, version
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import TensorSpec
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_TIMEOUT_SECONDS = 60.0


def row_sums(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    outputs = {"y": inputs["x"].sum(axis=1), "doubled": inputs["x"] * 2}
    return {name: outputs[name] for name in request.output_filter or outputs}


@pytest.fixture
def front(redis_server: RedisServer) -> Iterator[FrontThread]:
    with FrontThread(redis_server.url, replica_state(version())) as running:
        yield running


@pytest.fixture
def channel(front: FrontThread) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as opened:
        yield opened


def predict(channel: grpc.Channel, **fields: Any) -> Any:
    return predict_stub(channel)(predict_request([1, 2]), **{"timeout": _TIMEOUT_SECONDS, **fields})


def test_an_input_that_is_optional_by_the_schema_may_be_left_out_and_metadata_shows_its_default(
    redis_server: RedisServer,
) -> None:
    inputs = {**ROWS_OF_TWO.inputs, "k": TensorSpec("DT_INT64", (-1, 2))}
    grown = dataclasses.replace(ROWS_OF_TWO, inputs=inputs, optional={"k": 7}, has_schema=True)
    with (
        FrontThread(redis_server.url, replica_state(version(signature=grown))) as front,
        grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel,
        FakeRunner(redis_server.url, row_sums),
    ):
        assert list(predict(channel).outputs["y"].float_val) == [3.0]
        asked = tfserving_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        asked.model_spec.name = "m"
        method = "/tensorflow.serving.PredictionService/GetModelMetadata"
        metadata = stub(channel, method, tfserving_pb2.GetModelMetadataResponse.FromString)(asked).metadata
        signatures = tfserving_pb2.SignatureDefMap.FromString(metadata["signature_def"].value).signature_def
        default = signatures["serving_default"].defaults["k"]
        assert ([dim.size for dim in default.tensor_shape.dim], list(default.int64_val)) == ([1, 2], [7, 7])


@pytest.mark.covers("srv-grpc")
def test_the_clients_deadline_is_the_requests_deadline(
    front: FrontThread, redis_server: RedisServer, channel: grpc.Channel
) -> None:
    remaining: list[float] = []

    def note(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        remaining.append(request.deadline_at_micros / 1e6 - time.time())
        return row_sums(inputs, request)

    with FakeRunner(redis_server.url, note):
        predict(channel, timeout=20.0)
        predict(channel, timeout=None)
    assert 0 < remaining[0] <= 22 < remaining[1] <= 60  # gRPC rounds a deadline up on its way


def test_a_call_that_is_not_answered_ends_at_its_deadline(
    front: FrontThread, redis_server: RedisServer, channel: grpc.Channel
) -> None:
    with FakeRunner(redis_server.url, row_sums) as runner:
        runner.answers.clear()
        with pytest.raises(grpc.RpcError) as caught:
            predict(channel, timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: front.call(lambda: front.front.open_count) == 0)


def test_an_error_of_the_runner_keeps_its_code_and_long_words_are_cut(
    front: FrontThread, redis_server: RedisServer, channel: grpc.Channel
) -> None:
    def fail(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        raise RequestFailed(9, "x" * 2000)

    with FakeRunner(redis_server.url, fail), pytest.raises(grpc.RpcError) as caught:
        predict(channel)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "x" * 1024 + "...TRUNCATED"


def test_the_latency_of_successes_is_kept_by_api(
    front: FrontThread, redis_server: RedisServer, channel: grpc.Channel
) -> None:
    with FakeRunner(redis_server.url, row_sums):
        predict(channel)
    counts = [line for line in front.latency.lines() if "_count" in line]
    assert counts == [':tensorflow:serving:request_latency_count{model_name="m",API="Predict",entrypoint="GRPC"} 1\n']


def test_a_reload_of_the_configuration_is_refused_with_the_reason(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub(channel, "/tensorflow.serving.ModelService/HandleReloadConfigRequest")(tfserving_pb2.PredictRequest())
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "takes its models from a registry" in str(caught.value.details())


@pytest.mark.covers("srv-metadata")
@each_row(
    ("fields", "message"),
    [
        ([], "GetModelMetadataRequest must specify at least one metadata_field"),
        (["other"], "Metadata field other is not supported"),
    ],
)
def test_metadata_fields_are_checked_before_the_model(channel: grpc.Channel, fields: list[str], message: str) -> None:
    request = tfserving_pb2.GetModelMetadataRequest(metadata_field=fields)
    request.model_spec.name = "other"
    with pytest.raises(grpc.RpcError) as caught:
        stub(channel, "/tensorflow.serving.PredictionService/GetModelMetadata")(request)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)
