"""`python -m services.serving` as a process: start, readiness, signals, its manager, its log lines."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from common.eventlog import tfrecord
from protos import prediction_log_pb2
from services.serving.__main__ import main
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_STUBBED = "services.serving.tests.support.stubbed_serving"
_WAIT_SECONDS = 60.0
_MOST_RESIDENT_BYTES = 120 * 1024 * 1024
_ROWS = {"instances": [[1, 2]]}


class Serving:
    """The process, with a manager that loads nothing."""

    def __init__(
        self, redis_url: str, port: int, directory: Path, *, log_path: Path | None = None, **environment: str
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.manager_log = directory / "manager.log"
        self.environment = os.environ | {
            "SERVING_HTTP_PORT": str(port), "SERVING_GRPC_PORT": "0", "SERVING_REDIS_URL": redis_url,
            "STUB_MANAGER_LOG": str(self.manager_log), **environment,
        }  # fmt: skip
        with (log_path or Path(os.devnull)).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", _STUBBED], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def answers(self, path: str, status: int = 200) -> bool:
        try:
            return plain_http.get(self.url + path, timeout=5).status_code == status
        except httpx.TransportError:
            return False

    def has_open_request(self) -> bool:
        return "headrace_serving_open_requests 1.0" in plain_http.get(self.url + "/metrics", timeout=60).text

    def manager_lines(self) -> list[str]:
        return self.manager_log.read_text().splitlines() if self.manager_log.exists() else []


@pytest.fixture
def start(redis_server: RedisServer, free_port: int, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def begin(*, until: str = "/readyz", log_path: Path | None = None, **environment: str) -> Serving:
        """Returns when that path answers with 200; at once for ""."""
        redis_url = environment.pop("redis_url", redis_server.url)
        serving = Serving(redis_url, free_port, tmp_path, log_path=log_path, **environment)
        started.append(serving)
        wait_until(lambda: not until or serving.answers(until))
        return serving

    yield begin
    for serving in started:
        serving.process.kill()
        serving.process.wait(timeout=60)


def test_it_gets_ready_and_answers(start: Callable[..., Serving], redis_server: RedisServer) -> None:
    serving = start()
    assert plain_http.get(serving.url + "/readyz", timeout=60).json()["conditions"] == {
        "queue": "ok",
        "manager": "ok",
        "registry": "ok",
    }
    with FakeRunner(redis_server.url, row_sums):
        answer = plain_http.post(serving.url + "/v1/models/m:predict", json=_ROWS, timeout=60)
    assert answer.json() == {"predictions": [3.0]}
    assert (
        'headrace_serving_requests_total{code="0",door="http",model="m",signature="serving_default",version="3"} 1.0'
        in plain_http.get(serving.url + "/metrics", timeout=60).text
    )


def test_a_process_of_the_interpreter_stays_small_and_without_tensorflow(start: Callable[..., Serving]) -> None:
    serving = start()
    serving.process.kill()
    serving.process.wait(timeout=60)
    command = [f"{sys.prefix}/bin/python", "-m", _STUBBED]
    with subprocess.Popen(command, env=serving.environment) as process:
        wait_until(lambda: serving.answers("/readyz"))
        assert psutil.Process(process.pid).memory_info().rss < _MOST_RESIDENT_BYTES
        assert "tensorflow" not in Path(f"/proc/{process.pid}/maps").read_text()
        process.terminate()


def test_it_is_alive_but_not_ready_without_redis(start: Callable[..., Serving], tmp_path: Path) -> None:
    serving = start(until="/healthz", redis_url=f"unix://{tmp_path}/nothing.sock")
    assert serving.answers("/readyz", 503)
    refused = plain_http.post(serving.url + "/v1/models/m:predict", json=_ROWS, timeout=60)
    assert refused.status_code == 503


def test_sigterm_finishes_what_runs_then_stops_the_manager_and_exits_0(
    start: Callable[..., Serving], redis_server: RedisServer
) -> None:
    serving = start()
    with FakeRunner(redis_server.url, row_sums) as runner, ThreadPoolExecutor(1) as pool:
        runner.answers.clear()
        asked = pool.submit(plain_http.post, serving.url + "/v1/models/m:predict", json=_ROWS, timeout=60)
        wait_until(serving.has_open_request)
        serving.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not serving.answers("/healthz"))
        assert "stop" not in serving.manager_lines()
        runner.answers.set()
        assert asked.result().json() == {"predictions": [3.0]}
        assert serving.process.wait(timeout=_WAIT_SECONDS) == 0
    assert serving.manager_lines()[-1] == "stop"


def test_what_does_not_finish_in_time_is_refused_before_the_end(
    start: Callable[..., Serving], redis_server: RedisServer
) -> None:
    serving = start(SERVING_DRAIN_SECONDS="0.2")
    with FakeRunner(redis_server.url, row_sums) as runner, ThreadPoolExecutor(1) as pool:
        runner.answers.clear()
        asked = pool.submit(plain_http.post, serving.url + "/v1/models/m:predict", json=_ROWS, timeout=60)
        wait_until(serving.has_open_request)
        serving.process.send_signal(signal.SIGTERM)
        answer = asked.result()
        assert (answer.status_code, "stopping" in answer.json()["error"]) == (503, True)
        assert serving.process.wait(timeout=_WAIT_SECONDS) == 0


def test_a_manager_that_dies_is_started_again(start: Callable[..., Serving]) -> None:
    serving = start(until="", STUB_MANAGER_DIES="1")
    wait_until(lambda: len(serving.manager_lines()) == 2)
    wait_until(lambda: serving.answers("/readyz"))


def test_the_manager_does_not_outlive_a_front_that_is_killed(start: Callable[..., Serving]) -> None:
    serving = start()
    wait_until(lambda: len(serving.manager_lines()) == 1)
    manager = int(serving.manager_lines()[0].split()[1])
    serving.process.kill()
    serving.process.wait(timeout=60)
    wait_until(lambda: not psutil.pid_exists(manager) or psutil.Process(manager).status() == psutil.STATUS_ZOMBIE)


@each_row(
    ("name", "value", "message"),
    [
        ("SERVING_REDIS_URL", "http://x", "SERVING_REDIS_URL"), ("SERVING_QUEUE_LIMT", "1", "unknown setting"),
        ("SERVING_QUEUE_LIMIT", "0", "SERVING_QUEUE_LIMIT"), ("SERVING_ASYNC_LIMIT", "0", "SERVING_ASYNC_LIMIT"),
    ],
)  # fmt: skip
def test_a_wrong_setting_stops_the_start_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    assert main([]) == 2
    assert message in capsys.readouterr().err


def test_a_taken_port_stops_the_start_with_a_sentence(start: Callable[..., Serving]) -> None:
    start(until="/healthz")
    second = start(until="")
    assert second.process.wait(timeout=_WAIT_SECONDS) == 1


def test_a_front_that_is_killed_after_the_id_loses_no_answer(
    start: Callable[..., Serving], redis_server: RedisServer
) -> None:
    first = start()
    with FakeRunner(redis_server.url, row_sums) as runner:
        runner.answers.clear()
        submitted = plain_http.post(first.url + "/v1/models/m:predictAsync", json=_ROWS, timeout=60)
        prediction = submitted.json()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(timeout=60)
        wait_until(lambda: not first.answers("/healthz"), "its port being free")
        runner.answers.set()
        again = start()
        answer = plain_http.get(
            f"{again.url}/v1/predictions/{prediction}", params={"wait_seconds": 30}, timeout=_WAIT_SECONDS
        )
        assert answer.json() == {"predictions": [3.0], "version": 3}


def test_log_lines_and_records_name_the_request(
    start: Callable[..., Serving], redis_server: RedisServer, tmp_path: Path
) -> None:
    log_path = tmp_path / "serving.log"
    serving = start(
        log_path=log_path, SERVING_LOG_FORMAT="json", SERVING_LOG_LEVEL="DEBUG",
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
