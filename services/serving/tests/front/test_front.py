"""The front's promises: an accepted prediction is answered once, or refused quickly and openly."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from protos import queue_pb2
from services.serving.queue import scripts as queue_scripts
from services.serving.tests.support.fake_runner import FakeRunner, row_sums, sums_of_no_negative
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire import keys as queue_keys
from services.serving.wire.prediction import RequestFailed
from testing import plain_http
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_WAIT_SECONDS = 60.0


def predict(front: FrontThread, rows: list[list[float]], **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", None)
    path = fields.pop("path", "/v1/models/m:predict")
    return front.post({"instances": rows, **fields}, path, headers=headers)


@pytest.fixture
def front(redis_server: RedisServer) -> Iterator[FrontThread]:
    with FrontThread(redis_server.url, replica_state(version())) as running:
        yield running


def reply_list(front: FrontThread) -> str:
    return front.call(lambda: front.front.resolve("m").queue.client.reply_to)


def test_each_of_many_concurrent_clients_gets_its_own_answer(front: FrontThread, redis_server: RedisServer) -> None:
    with (
        FakeRunner(redis_server.url, row_sums),
        ThreadPoolExecutor(16) as pool,
        plain_http.client(timeout=60) as client,
    ):

        def ask(number: int) -> float:
            body = {"instances": [[number, 0.5]]}
            return float(client.post(front.url + "/v1/models/m:predict", json=body).json()["predictions"][0])

        before = threading.active_count()
        assert list(pool.map(ask, range(300))) == [number + 0.5 for number in range(300)]
        assert threading.active_count() - before <= 16, "those of the clients"
    with redis_server.client() as asked:
        assert asked.xlen(queue_keys.queue_key("m", "alias/production")) == 0


@pytest.mark.parametrize(("requests", "writes"), [(31, 1), (63, 2), (200, 2)])
def test_requests_of_one_turn_are_written_together_and_half_a_batch_ahead_when_the_queue_is_empty(
    redis_server: RedisServer, requests: int, writes: int
) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version()), in_flight_limit=1000, queue_limit=1000) as front,
        FakeRunner(redis_server.url, row_sums),
        redis_server.client() as client,
    ):
        route = front.call(lambda: front.front.resolve("m"))

        async def ask_many() -> list[queue_pb2.PredictionReply]:
            loop = asyncio.get_running_loop()
            futures = [loop.create_future() for _ in range(requests)]
            for future in futures:
                request = queue_pb2.PredictionRequest()
                request.inputs.add(name="x", dtype="<f4", shape=[1, 2], data=np.array([[1, 2]], np.float32).tobytes())
                front.front.submit(route, request, future.set_result)
            return list(await asyncio.wait_for(asyncio.gather(*futures), _WAIT_SECONDS))

        replies = front.run(ask_many())
        written = client.info("commandstats")["cmdstat_evalsha"]["calls"]  # of the front; the fake runner uses EVAL
    assert [reply.error_code for reply in replies] == [0] * requests
    assert written == writes


def test_the_deadline_travels_with_the_request(front: FrontThread, redis_server: RedisServer) -> None:
    deadlines: list[float] = []

    def note(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        deadlines.append(request.deadline_at_micros / 1e6 - time.time())
        return row_sums(inputs, request)

    with FakeRunner(redis_server.url, note):
        assert predict(front, [[1, 2]], headers={"X-Request-Timeout-Ms": "20000"}).status_code == 200
        assert predict(front, [[1, 2]]).status_code == 200
        assert predict(front, [[1, 2]], headers={"X-Request-Timeout-Ms": "3600000"}).status_code == 200
    assert 0 < deadlines[0] <= 20 < deadlines[1] <= 60
    assert deadlines[2] <= 60, "no client may ask for more than the setting"


def test_a_late_or_repeated_answer_is_ignored(front: FrontThread, redis_server: RedisServer) -> None:
    with FakeRunner(redis_server.url, row_sums) as runner:
        runner.answers.clear()
        late = predict(front, [[1, 2]], headers={"X-Request-Timeout-Ms": "20"})
        assert (late.status_code, "deadline" in late.json()["error"]) == (504, True)
        with redis_server.client() as client:
            batch = queue_pb2.ReplyBatch()
            batch.replies.add(request_id=b"nobodys!", version=3)
            client.rpush(reply_list(front), batch.SerializeToString(), batch.SerializeToString())
        runner.answers.set()
        assert predict(front, [[2, 2]]).json() == {"predictions": [4.0]}


def test_junk_among_the_answers_harms_no_request_that_is_open(front: FrontThread, redis_server: RedisServer) -> None:
    key = reply_list(front)
    with FakeRunner(redis_server.url, row_sums) as runner, redis_server.client() as client:
        runner.answers.clear()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(predict, front, [[1, 2]])
            client.rpush(key, b"\xff" * 9, b"", b"\x0a\xff\xff\xff\xff\x7f", b"\n" * 1_000_000)
            runner.answers.set()
            assert asked.result(timeout=60).json() == {"predictions": [3.0]}
        client.set(key, "somebody else's")
        wait_until(lambda: predict(front, [[2, 2]]).status_code == 200)


def test_a_full_queue_refuses_with_429(redis_server: RedisServer) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version()), queue_limit=2) as front,
        FakeRunner(redis_server.url, row_sums) as runner,
        ThreadPoolExecutor(2) as pool,
    ):
        runner.answers.clear()
        accepted = [pool.submit(predict, front, [[1, number]]) for number in range(2)]
        with redis_server.client() as client:
            wait_until(lambda: client.xlen(queue_keys.queue_key("m", "alias/production")) == 2)
        refused = predict(front, [[1, 2]])
        runner.answers.set()
        assert refused.status_code == 429
        assert "full" in refused.json()["error"]
        assert [done.result().status_code for done in accepted] == [200, 200]


def test_the_fronts_own_limit_refuses_with_429(redis_server: RedisServer) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version()), in_flight_limit=1) as front,
        FakeRunner(redis_server.url, row_sums) as runner,
        ThreadPoolExecutor(1) as pool,
    ):
        runner.answers.clear()
        accepted = pool.submit(predict, front, [[1, 2]])
        wait_until(lambda: front.call(lambda: front.front.open_count) == 1)
        assert predict(front, [[1, 2]]).status_code == 429
        runner.answers.set()
        assert accepted.result().status_code == 200


def test_nobody_serving_refuses_with_503(front: FrontThread) -> None:
    answer = predict(front, [[1, 2]])
    assert answer.status_code == 503
    assert "no runner serves model m" in answer.json()["error"]


def test_a_runner_that_stopped_renewing_does_not_count(front: FrontThread, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        key = queue_keys.serving_key("m", "alias/production")
        client.eval(queue_scripts.RENEW.text, 1, key, "dead", 20)
        others = queue_keys.finishing_key("m", "alias/production")
        wait_until(lambda: client.eval(queue_scripts.SILENT.text, 2, key, others) == [[b"dead"], [b"dead"]])
    assert predict(front, [[1, 2]]).status_code == 503


def test_an_error_of_the_runner_reaches_the_client_with_its_code(front: FrontThread, redis_server: RedisServer) -> None:
    def fail(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        raise RequestFailed(9, "the table is not initialised")

    with FakeRunner(redis_server.url, fail):
        answer = predict(front, [[1, 2]])
    assert answer.status_code == 400
    assert answer.json() == {"error": "the table is not initialised"}


def test_an_answer_that_cannot_be_read_is_a_500_and_harms_no_other(
    front: FrontThread, redis_server: RedisServer
) -> None:
    def lie(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        if inputs["x"][0, 0] == 0:
            return {"y": np.empty((1,), "<c8")}
        return row_sums(inputs, request)

    with FakeRunner(redis_server.url, lie):
        assert predict(front, [[0, 2]]).json() == {"error": "Failed to write JSON value for tensor type: complex64"}
        assert predict(front, [[1, 2]]).status_code == 200


def test_redis_away_refuses_new_requests_at_once_and_comes_back(front: FrontThread, redis_server: RedisServer) -> None:
    with FakeRunner(redis_server.url, row_sums):
        assert predict(front, [[1, 2]]).status_code == 200
        redis_server.kill()
        wait_until(lambda: not front.health.is_ready())
        started = time.monotonic()
        refused = predict(front, [[1, 2]])
        assert refused.status_code == 503
        assert "Redis" in refused.json()["error"]
        assert time.monotonic() - started < 30
        redis_server.start()
        wait_until(lambda: predict(front, [[1, 2]]).status_code == 200)
        assert front.health.is_ready()


def test_what_was_accepted_before_redis_died_is_answered_after_it_came_back(
    front: FrontThread, redis_server: RedisServer
) -> None:
    with FakeRunner(redis_server.url, row_sums) as runner, ThreadPoolExecutor(8) as pool:
        runner.answers.clear()
        accepted = [pool.submit(predict, front, [[1, number]]) for number in range(8)]
        with redis_server.client() as client:
            wait_until(lambda: client.xlen(queue_keys.queue_key("m", "alias/production")) == 8)
        redis_server.kill()
        redis_server.forget_stored()  # the worst case: Redis comes back with nothing
        redis_server.start()
        with redis_server.client() as client:
            client.xgroup_create(queue_keys.queue_key("m", "alias/production"), "runners", id="0", mkstream=True)
        runner.answers.set()
        answers = [done.result() for done in accepted]
    assert [answer.json() for answer in answers] == [{"predictions": [1.0 + number]} for number in range(8)]


def test_what_redis_died_with_is_tried_until_a_runner_is_back(front: FrontThread, redis_server: RedisServer) -> None:
    assert redis_server.process is not None
    with ThreadPoolExecutor(1) as pool:
        redis_server.process.send_signal(signal.SIGSTOP)  # whether it takes the request is not to be known
        asked = pool.submit(predict, front, [[1, 2]])
        wait_until(lambda: front.front.open_count == 1)
        redis_server.kill()
        redis_server.forget_stored()
        redis_server.start()
        wait_until(lambda: front.front.admission.refusals["m", "no runner"] >= 1)
        with FakeRunner(redis_server.url, row_sums):
            assert asked.result().json() == {"predictions": [3.0]}


def test_a_forgotten_script_is_loaded_again(front: FrontThread, redis_server: RedisServer) -> None:
    with FakeRunner(redis_server.url, row_sums), redis_server.client() as client:
        client.script_flush()
        assert predict(front, [[1, 2]]).status_code == 200


def test_a_silent_redis_counts_as_away_and_what_is_on_its_way_to_it_is_refused_before_its_deadline(
    front: FrontThread, redis_server: RedisServer
) -> None:
    assert redis_server.process is not None
    with FakeRunner(redis_server.url, row_sums):
        assert predict(front, [[1, 2]]).status_code == 200
        redis_server.process.send_signal(signal.SIGSTOP)
        try:
            assert predict(front, [[1, 2]]).status_code == 503, "504 would be the deadline's"
            wait_until(lambda: not front.health.is_ready())
            assert predict(front, [[1, 2]]).status_code == 503
        finally:
            redis_server.process.send_signal(signal.SIGCONT)
        wait_until(front.health.is_ready)
        assert predict(front, [[1, 2]]).status_code == 200


def test_the_page_of_the_replica_names_versions_and_queues(front: FrontThread, redis_server: RedisServer) -> None:
    with FakeRunner(redis_server.url, row_sums):
        predict(front, [[1, 2]])
        page = plain_http.get(front.url + "/headrace/status", timeout=60).json()
    assert page["models"] == {"m": {"production": 3}}
    assert [(v["version"], v["state"], v["aliases"]) for v in page["versions"]] == [(3, "AVAILABLE", ["production"])]
    served = {"model": "m", "target": "alias/production", "requests": 0, "runners": 1}
    assert served in page["queues"]


def test_the_latency_of_successes_is_kept_by_api_and_door(front: FrontThread, redis_server: RedisServer) -> None:
    with FakeRunner(redis_server.url, row_sums):
        assert predict(front, [[1, 2]]).status_code == 200
        assert front.post({"instances": ["word"]}).status_code == 400
    counts = [line for line in front.latency.lines() if "_count" in line]
    assert counts == [':tensorflow:serving:request_latency_count{model_name="m",API="predict",entrypoint="REST"} 1\n']


@pytest.mark.covers("srv-monitoring")
def test_counts_by_model_version_signature_and_status_add_up_to_what_was_asked(
    front: FrontThread, redis_server: RedisServer
) -> None:
    with FakeRunner(redis_server.url, sums_of_no_negative):
        rows = [1, 2, -3, 4, -5]
        assert [predict(front, [[row, 0]]).status_code for row in rows] == [200, 200, 400, 200, 400]
        assert predict(front, [[1, 2]], path="/v1/models/other:predict").status_code == 404
    families = {family.name: family.samples for family in front.counts.collect()}
    counts = {
        tuple(sample.labels[name] for name in ("model", "version", "signature", "code")): sample.value
        for sample in families["headrace_serving_requests"]
        if sample.name.endswith("_total")
    }
    answered = ("m", "3", "serving_default")
    assert counts == {(*answered, "0"): 3.0, (*answered, "3"): 2.0, ("", "", "", "5"): 1.0}
    timed = [sample for sample in families["headrace_serving_request_seconds"] if sample.name.endswith("_count")]
    assert [sample.value for sample in timed if sample.value] == [3.0], "those that were answered"
