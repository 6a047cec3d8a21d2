"""X-Prediction-Key: keyed predictions are logged by key, and scored on production's predecessor too."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos import prediction_log_pb2, queue_pb2
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread, LoggedFront
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.replica_states import ROWS_OF_TWO, replica_state, version
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

_PATH = "/v1/models/m:predict"
_TWO_ROWS = {"instances": [[1, 2], [3, 4]]}
_WAIT_SECONDS = 60.0


def negated(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    return {"y": -inputs["x"].sum(axis=1)}


@pytest.fixture(scope="module")
def redis_url(redis_beside: RedisServer) -> Iterator[str]:
    with (
        FakeRunner(redis_beside.url, row_sums, targets=("alias/production", "version/3")),
        FakeRunner(redis_beside.url, negated, version=2, targets=("alias/predecessor",)),
    ):
        yield redis_beside.url


def _answers(record: prediction_log_pb2.PredictionLog) -> list[float]:
    return np.frombuffer(record.predict_log.response.outputs["y"].tensor_content, "<f4").tolist()


@each_row("packed", [False, True])
def test_a_prediction_with_keys_is_logged_with_its_outputs_and_without_its_inputs(
    redis_url: str, tmp_path: Path, packed: bool
) -> None:
    with LoggedFront(redis_url, tmp_path, replica_state(version())) as front:
        body = json.dumps(_TWO_ROWS).encode()
        headers = [("x-prediction-key", "UA1"), ("x-prediction-key", "Z%C3%BCrich%2C 7")]
        headers += [("content-encoding", "gzip")] if packed else []
        content = gzip.compress(body) if packed else body
        answer = front.post(content=content, headers=headers)
        assert answer.json() == {"predictions": [3.0, 7.0]}
        front.post(_TWO_ROWS)
    (record,) = front.records()
    assert list(record.prediction_keys) == ["UA1", "Zürich, 7"]
    assert (record.alias, record.is_shadow, record.log_metadata.model_spec.version.value) == ("production", False, 3)
    assert (_answers(record), len(record.predict_log.request.inputs)) == ([3.0, 7.0], 0)


def test_a_sampled_prediction_with_keys_is_one_record_with_its_inputs(redis_url: str, tmp_path: Path) -> None:
    with LoggedFront(redis_url, tmp_path, replica_state(version()), rate=1.0) as front:
        headers = {"x-prediction-key": "a,b"}
        front.post(_TWO_ROWS, "/v1/models/m/versions/3:predict", headers=headers)
    (record,) = front.records()
    assert (list(record.prediction_keys), record.alias) == (["a", "b"], "")
    assert list(record.predict_log.request.inputs) == ["x"]


def _shadows(front: FrontThread) -> dict[str, float]:
    assert front.shadow is not None
    return {one.labels["result"]: one.value for metric in front.shadow.collect() for one in metric.samples}


def _predecessor_state() -> Any:
    predecessor = version(2, aliases=("predecessor",))
    return replica_state(version(), predecessor, aliases={"production": 3, "predecessor": 2})


def test_what_production_answered_under_keys_is_scored_on_its_predecessor_too(redis_url: str, tmp_path: Path) -> None:
    with LoggedFront(redis_url, tmp_path, _predecessor_state()) as front:
        headers = {"x-prediction-key": "a,b"}
        answer = front.post(_TWO_ROWS, headers=headers)
        assert (answer.json()["predictions"], answer.headers["headrace-version"]) == ([3.0, 7.0], "3")
        front.post(_TWO_ROWS)
        wait_until(lambda: _shadows(front) == {"answered": 1.0}, "the predecessor has answered")
    live, shadow = front.records()
    assert (live.alias, live.is_shadow, shadow.alias, shadow.is_shadow) == ("production", False, "predecessor", True)
    assert (list(shadow.prediction_keys), _answers(shadow)) == (["a", "b"], [-3.0, -7.0])
    assert shadow.log_metadata.model_spec.version.value == 2


def test_what_asks_for_a_signature_that_the_predecessor_lacks_is_not_scored_on_it(
    redis_url: str, tmp_path: Path
) -> None:
    both = version(signatures={"serving_default": ROWS_OF_TWO, "old": ROWS_OF_TWO})
    before = version(2, aliases=("predecessor",), signatures={"old": ROWS_OF_TWO})
    state = replica_state(both, before, aliases={"production": 3, "predecessor": 2})
    with LoggedFront(redis_url, tmp_path, state) as front:
        for signature in ("serving_default", "old"):
            asked = {**_TWO_ROWS, "signature_name": signature}
            front.post(asked, headers={"x-prediction-key": "a,b"})
        wait_until(lambda: bool(_shadows(front)), "the predecessor has answered")
        assert _shadows(front) == {"answered": 1.0}
    shadows = [one for one in front.records() if one.is_shadow]
    assert [one.log_metadata.model_spec.signature_name for one in shadows] == ["old"]


def test_grpc_takes_keys_as_metadata(redis_url: str, tmp_path: Path) -> None:
    with (
        LoggedFront(redis_url, tmp_path, replica_state(version())) as front,
        grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel,
    ):
        call, request = predict_stub(channel), predict_request([3, 4])
        call(request, metadata=[("x-prediction-key", "a")])
        with pytest.raises(grpc.RpcError, match="names 2 of 1 row"):
            call(request, metadata=[("x-prediction-key", "a"), ("x-prediction-key", "b")])
    (record,) = front.records()
    assert (list(record.prediction_keys), record.alias) == (["a"], "production")


@each_row(
    ("path", "keys", "sentence"),
    [
        (_PATH, "a", "names 1 of 2 rows"),
        (_PATH, "a,", "a key that is empty"),
        (_PATH, "", "a key that is empty"),
        (_PATH, f"a,{'b' * 257}", "longer than 256 characters"),
        (_PATH, "a,Zürich", "is not ASCII with percent-encoded UTF-8"),
        (_PATH, "a,Z%FCrich", "is not ASCII with percent-encoded UTF-8"),
        ("/v1/models/m:predictAsync", "a,b", "goes with :predict alone"),
        ("/v1/models/m:classify", "a,b", "goes with :predict alone"),
    ],
)
def test_keys_that_do_not_go_with_the_request_are_refused(
    redis_url: str, tmp_path: Path, path: str, keys: str, sentence: str
) -> None:
    with LoggedFront(redis_url, tmp_path, replica_state(version())) as front:
        answer = front.post(_TWO_ROWS, path, headers=[(b"x-prediction-key", keys.encode())])
    assert (answer.status_code, sentence in answer.json()["error"]) == (400, True), answer.text
    assert not (tmp_path / "m").exists()


def test_a_replica_that_logs_nothing_refuses_keys(redis_url: str) -> None:
    with FrontThread(redis_url, replica_state(version())) as front:
        answer = front.post(_TWO_ROWS, headers={"x-prediction-key": "a,b"})
    assert "SERVING_REQUEST_LOG sets the place" in answer.json()["error"]
