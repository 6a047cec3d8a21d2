"""What only a whole serving process shows: an asynchronous prediction outlives it, its log lines name requests."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.eventlog import tfrecord
from protos import prediction_log_pb2
from services.serving.tests.front.test_front_process import Serving
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from testing import plain_http
from testing.redis_server import RedisServer
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_WAIT_SECONDS = 60.0
_ROWS = {"instances": [[1, 2]]}


@pytest.fixture
def start(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def begin(port: int, *, log_path: Path | None = None, **environment: str) -> Serving:
        started.append(Serving(redis_server.url, port, tmp_path, log_path=log_path, **environment))
        wait_until(lambda: started[-1].answers("/readyz"))
        return started[-1]

    yield begin
    for serving in started:
        serving.process.kill()
        serving.process.wait(timeout=60)


def test_a_front_that_is_killed_after_the_id_loses_no_answer(
    start: Callable[..., Serving], redis_server: RedisServer, free_port: int
) -> None:
    first = start(free_port)
    with FakeRunner(redis_server.url, row_sums) as runner:
        runner.answers.clear()
        submitted = plain_http.post(first.url + "/v1/models/m:predictAsync", json=_ROWS, timeout=60)
        prediction = submitted.json()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(timeout=60)
        wait_until(lambda: not first.answers("/healthz"), "its port being free")
        runner.answers.set()
        again = start(free_port)
        answer = plain_http.get(
            f"{again.url}/v1/predictions/{prediction}", params={"wait_seconds": 30}, timeout=_WAIT_SECONDS
        )
        assert answer.json() == {"predictions": [3.0], "version": 3}


def test_log_lines_and_records_name_the_request(
    start: Callable[..., Serving], redis_server: RedisServer, free_port: int, tmp_path: Path
) -> None:
    log_path = tmp_path / "serving.log"
    serving = start(
        free_port, log_path=log_path, SERVING_LOG_FORMAT="json", SERVING_LOG_LEVEL="DEBUG",
        SERVING_REQUEST_LOG=f"tfrecord:{tmp_path}/requests", SERVING_REQUEST_LOG_SAMPLING="0,m=1",
    )  # fmt: skip
    with FakeRunner(redis_server.url, row_sums):
        for model, status, request_id in (("m", 200, "order-17"), ("no", 404, "order-18")):
            asked = f"{serving.url}/v1/models/{model}:predict"
            answer = plain_http.post(asked, json=_ROWS, headers={"x-request-id": request_id}, timeout=60)
            assert answer.status_code == status
        metrics = plain_http.get(serving.url + "/metrics", timeout=60).text
        assert "headrace_serving_async_predictions_total" in metrics
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(timeout=_WAIT_SECONDS) == 0
    lines = [json.loads(line) for line in log_path.read_text().splitlines() if line.startswith("{")]
    told = {line["request_id"]: line for line in lines if "request_id" in line}
    assert (told["order-17"]["model"], told["order-17"]["version"], told["order-17"]["code"]) == ("m", 3, 0)
    assert (told["order-18"]["model"], told["order-18"]["code"]) == ("no", 5)
    (path,) = (tmp_path / "requests" / "m").iterdir()
    (record,) = tfrecord.cut(path.read_bytes())[0]
    assert prediction_log_pb2.PredictionLog.FromString(record).request_id == "order-17"
