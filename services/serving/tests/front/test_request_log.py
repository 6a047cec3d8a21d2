"""The request log: what a record holds, where it goes, and that it never costs a prediction."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import text_format

from common.errors import InvalidInput, Unavailable
from common.eventlog import tfrecord
from common.eventlog.open import open_event_log
from protos import queue_pb2, tfserving_config_pb2, tfserving_pb2
from services.serving.front.request_log import (
    DROPPED_FULL,
    DROPPED_UNWRITTEN,
    WRITTEN,
    Place,
    RequestLog,
    Sample,
    configured_rates,
    open_place,
    open_request_log,
    rates_of,
)
from services.serving.options.model_server_config import config_json
from services.serving.options.settings import ServingSettings
from services.serving.tests.support.fake_runner import FakeRunner, sums_of_no_negative
from services.serving.tests.support.front_process import FrontThread, LoggedFront
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.replica_states import replica_state, version
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row

_WAIT_SECONDS = 60.0
_PATH = "/v1/models/m:predict"
_ROWS = {"instances": [[1, 2]]}
_ALL = 1.0
_READ_WITH_TENSORFLOW = """
import sys
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2
for record in tf.data.TFRecordDataset(sys.argv[1:]):
    log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
    x = tf.make_ndarray(log.predict_log.request.inputs["x"]).tolist()
    y = tf.make_ndarray(log.predict_log.response.outputs["y"]).tolist()
    print(log.log_metadata.model_spec.name, log.log_metadata.model_spec.version.value, x, y)
"""


@pytest.fixture(scope="module")
def redis_url(redis_beside: RedisServer) -> Iterator[str]:
    with FakeRunner(redis_beside.url, sums_of_no_negative):
        yield redis_beside.url


def logging_to(place: Place, *, buffer_bytes: int = 1 << 20, default: float = _ALL) -> RequestLog:
    log = RequestLog(place, default=default, buffer_bytes=buffer_bytes)
    log.start()
    return log


def floats(proto: tfserving_pb2.TensorProto) -> list[float]:
    return np.frombuffer(proto.tensor_content, "<f4").tolist()


def counts(log: RequestLog) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["model"], sample.labels["result"]): sample.value
        for metric in log.collect()
        for sample in metric.samples
    }


def test_a_record_tells_who_asked_what_and_got_which_answer_from_which_version(redis_url: str, tmp_path: Path) -> None:
    before = time.time()
    with LoggedFront(redis_url, tmp_path, replica_state(version()), rate=_ALL) as front:
        answer = front.post(_ROWS, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        made = front.post({"inputs": [[-1, 2]]}).headers["x-request-id"]
        front.post({"inputs": "no numbers"})
        with grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel:
            asked = predict_request([3, 4])
            _, told = predict_stub(channel).with_call(asked, metadata=[("x-request-id", "grpc-1")])
            trailing = {item.key: item.value for item in told.trailing_metadata()}
            assert (trailing["x-request-id"], trailing["headrace-version"]) == ("grpc-1", "3")
    over_rest, failed, over_grpc = front.records()
    assert (over_rest.request_id, failed.request_id, over_grpc.request_id) == ("mine-1", made, "grpc-1")
    for record, inputs, outputs in ((over_rest, [1, 2], [3]), (over_grpc, [3, 4], [7])):
        spec = record.log_metadata.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "serving_default")
        assert floats(record.predict_log.request.inputs["x"]) == inputs
        assert floats(record.predict_log.response.outputs["y"]) == outputs
        assert 0 < record.latency_seconds < _WAIT_SECONDS
        assert before <= record.answered_at <= time.time()
        assert record.log_metadata.sampling_config.sampling_rate == 1.0
    assert (failed.error_code, failed.error_message) == (3, "x is negative")
    assert len(failed.predict_log.response.outputs) == 0
    assert counts(front.log) == {("m", WRITTEN): 3}


def test_records_go_to_a_topic_of_the_model(redis_url: str, tmp_path: Path) -> None:
    log = logging_to(open_place(f"segments:{tmp_path}"))
    with FrontThread(redis_url, replica_state(version()), request_log=log) as front:
        for _ in range(5):
            assert front.post(_ROWS).status_code == 200
    log.stop(timeout_seconds=_WAIT_SECONDS)
    topics = open_event_log(f"segments:{tmp_path}")
    end = topics.end_position("predictions.m")[0]
    records = list(topics.read("predictions.m", 0, 0, end))
    assert sum(record.headers.example_count for record in records) == 5
    assert all(len(tfrecord.cut(record.value)[0]) == record.headers.example_count for record in records)
    topics.close()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_tensorflow_and_tensorflow_servings_own_messages_read_it(redis_url: str, tmp_path: Path) -> None:
    with LoggedFront(redis_url, tmp_path, replica_state(version()), rate=_ALL) as front:
        front.post(_ROWS)
    files = [str(path) for path in (tmp_path / "m").iterdir()]
    done = subprocess.run(
        [sys.executable, "-c", _READ_WITH_TENSORFLOW, *files], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "m 3 [[1.0, 2.0]] [3.0]", done.stderr


def test_a_model_may_have_a_sampling_rate_of_its_own(redis_url: str, tmp_path: Path) -> None:
    with LoggedFront(redis_url, tmp_path, replica_state(version()), rate=_ALL) as front:
        front.log.use({"m": 0.0})
        front.post(_ROWS)
        front.log.use({"m": 1.0, "other": 0.0})
        front.post({"instances": [[5, 5]]})
    (record,) = front.records()
    assert floats(record.predict_log.request.inputs["x"]) == [5, 5]
    front.log.stop(timeout_seconds=_WAIT_SECONDS)  # again, which writes nothing twice
    assert len(front.records()) == 1


def test_about_the_share_that_was_asked_for_is_taken() -> None:
    log = RequestLog(_Stuck(), default=0.2, buffer_bytes=1)
    assert 700 < sum(log.takes("m") for _ in range(5000)) < 1300


def test_the_keys_of_a_prediction_count_for_the_buffer() -> None:
    log = RequestLog(_Stuck(), default=_ALL, buffer_bytes=1000)
    empty = Sample("m", b"", 0.0, 0.0, queue_pb2.PredictionRequest(), queue_pb2.PredictionReply())
    for _ in range(3):
        log.offer(replace(empty, keys=("k" * 200, "l" * 200)))
    assert counts(log) == {("m", DROPPED_FULL): 1}


class _Stuck:
    """A place that does not come back from a write until it is told to."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.is_asked = threading.Event()

    def append(self, model: str, records: Sequence[bytes]) -> None:
        self.is_asked.set()
        self.goes_on.wait(_WAIT_SECONDS)

    def close(self) -> None: ...


def test_a_place_that_hangs_costs_records_and_no_prediction(redis_url: str) -> None:
    place = _Stuck()
    log = logging_to(place, buffer_bytes=200)
    with (
        FrontThread(redis_url, replica_state(version()), request_log=log) as front,
        plain_http.client(timeout=60) as client,
    ):
        assert client.post(front.url + _PATH, json=_ROWS).status_code == 200
        assert place.is_asked.wait(_WAIT_SECONDS)
        for _ in range(10):
            assert client.post(front.url + _PATH, json=_ROWS).status_code == 200
        assert counts(log)["m", DROPPED_FULL] > 0
    place.goes_on.set()
    log.stop(timeout_seconds=_WAIT_SECONDS)
    assert sum(counts(log).values()) == 11


class _Broken:
    def __init__(self) -> None:
        self.is_asked = threading.Event()

    def append(self, model: str, records: Sequence[bytes]) -> None:
        self.is_asked.set()
        raise InvalidInput("records are not wanted here")

    def close(self) -> None: ...


def test_a_place_that_refuses_costs_records_and_no_prediction(redis_url: str) -> None:
    place = _Broken()
    log = logging_to(place)
    with FrontThread(redis_url, replica_state(version()), request_log=log) as front:
        assert front.post(_ROWS).status_code == 200
        assert place.is_asked.wait(_WAIT_SECONDS)
        assert front.post(_ROWS).status_code == 200
    log.stop(timeout_seconds=_WAIT_SECONDS)
    assert counts(log) == {("m", DROPPED_UNWRITTEN): 2}


class _Away(_Broken):
    def append(self, model: str, records: Sequence[bytes]) -> None:
        self.is_asked.set()
        raise Unavailable("the log is away")


def test_a_place_that_is_away_is_tried_again_and_not_waited_for_at_the_end() -> None:
    place = _Away()
    log = logging_to(place)
    log.offer(Sample("m", b"tag", 1.0, 0.1, queue_pb2.PredictionRequest(), queue_pb2.PredictionReply()))
    assert place.is_asked.wait(_WAIT_SECONDS)
    assert counts(log) == {}
    log.stop(timeout_seconds=_WAIT_SECONDS)
    assert counts(log) == {("m", DROPPED_UNWRITTEN): 1}


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")
    with pytest.raises(Unavailable, match="cannot be written"):
        open_place(f"tfrecord:{tmp_path}").append("m", [b"record"])


@each_row(
    ("text", "message"),
    [("much", "'much'"), ("1.5", "1.5"), ("m=", "'m='"), ("-0.1", "-0.1"), ("nan", "nan"), ("0.1,m=2", "is 2")],
)
def test_a_sampling_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        rates_of(text)


def test_the_sampling_is_read_with_what_differs_per_model() -> None:
    assert rates_of("0.5, flights=1,digits=0") == (
        0.5,
        {"flights": 1.0, "digits": 0.0},
    )
    assert rates_of("") == (0.0, {})


def _settings(**values: str) -> ServingSettings:
    return ServingSettings.model_validate(values)


def test_sampling_without_a_place_and_a_place_that_is_none_are_refused() -> None:
    assert open_request_log(_settings()) is None
    with pytest.raises(InvalidInput, match="the place, is not"):
        open_request_log(_settings(request_log_sampling="1"))
    with pytest.raises(InvalidInput, match="unknown scheme"):
        open_request_log(_settings(request_log="redis://x", request_log_sampling="1"))
    with pytest.raises(InvalidInput, match="absolute folder"):
        open_request_log(_settings(request_log="tfrecord:logs", request_log_sampling="1"))


def test_a_configuration_names_its_models_sampling() -> None:
    config = text_format.Parse(
        """
        model_config_list {
          config { name: "a" base_path: "/a" logging_config { sampling_config { sampling_rate: 0.25 } } }
          config { name: "b" base_path: "/b" }
        }
        """,
        tfserving_config_pb2.ModelServerConfig(),
    )
    assert configured_rates(config_json(config)) == {"a": 0.25}
