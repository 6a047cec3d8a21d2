"""Asynchronous predictions over HTTP: real Redis, fronts and a runner; what is answered, kept, bounded and refused."""

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from common.access.access import Access
from common.access.guard import Guard
from common.process.tracing import open_tracing
from common.redis_url import RedisUrl
from protos import queue_pb2
from services.serving.doors.rules import serving_rules
from services.serving.front.async_predictions import AsyncLimits
from services.serving.options.model_options import BatchingOptions
from services.serving.queue.async_redis import Places
from services.serving.tests.support.fake_runner import FakeRunner, sums_of_no_negative
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.keys import queue_key
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until
from testing.walking import bearer, write_access

_WAIT_SECONDS = 60.0
_MAX_BODY_BYTES = 4096
_ROWS = {"instances": [[1, 2]]}
_SUBMIT = "/v1/models/m:predictAsync"
_UNKNOWN = "/v1/predictions/0123456789abcdef"
_BATCH = BatchingOptions.max_batch_size
_AHEAD = 2 * _BATCH


@pytest.fixture(scope="module")
def front(redis_beside: RedisServer) -> Iterator[FrontThread]:
    redis_url = redis_beside.url
    with (
        FrontThread(redis_url, replica_state(version()), queue_limit=16, max_body_bytes=_MAX_BODY_BYTES) as front,
        FakeRunner(redis_url, sums_of_no_negative, targets=("alias/production", "version/3")) as front.runner,
    ):
        yield front


@pytest.fixture
def client(front: FrontThread) -> Iterator[httpx.Client]:
    with plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS) as client:
        yield client
    front.runner.answers.set()


def _places(redis: RedisServer) -> Places:
    """Of model m."""
    return Places("m" if RedisUrl.parse(redis.url).is_cluster else "")


def submit(client: httpx.Client, body: Any = _ROWS, path: str = _SUBMIT) -> str:
    response = client.post(path, json=body)
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/predictions/{response.json()['id']}"
    return str(response.json()["id"])


def test_the_answer_is_that_of_predict_with_its_version(client: httpx.Client) -> None:
    for body, path in ((_ROWS, _SUBMIT), ({"inputs": {"x": [[1, 2], [3, 4]]}}, "/v1/models/m/versions/3:predictAsync")):
        answer = client.get(f"/v1/predictions/{submit(client, body, path)}", params={"wait_seconds": 60})
        assert answer.status_code == 200
        same = client.post(path.replace("Async", ""), json=body).json()
        assert answer.json() == {**same, "version": 3}
        assert answer.headers["headrace-version"] == "3"
        assert answer.headers["x-request-id"]


def test_it_is_pending_until_the_runner_answers_and_then_kept(front: FrontThread, client: httpx.Client) -> None:
    front.runner.answers.clear()
    prediction = submit(client)
    pending = client.get(f"/v1/predictions/{prediction}")
    assert (pending.status_code, pending.json()) == (202, {"id": prediction})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"/v1/predictions/{prediction}", params={"wait_seconds": 60})
        front.runner.answers.set()
        assert waiting.result().json() == {"predictions": [3.0], "version": 3}
    for _ in range(3):
        assert client.get(f"/v1/predictions/{prediction}").json() == {"predictions": [3.0], "version": 3}


def test_waiting_ends_when_its_time_is_over(front: FrontThread, client: httpx.Client) -> None:
    front.runner.answers.clear()
    prediction = submit(client)
    assert client.get(f"/v1/predictions/{prediction}", params={"wait_seconds": 0.05}).status_code == 202


def test_a_client_that_hangs_up_ends_its_wait_at_once_and_nobody_elses(
    front: FrontThread, client: httpx.Client
) -> None:
    front.runner.answers.clear()
    prediction = submit(client)
    path = f"/v1/predictions/{prediction}?wait_seconds=60"

    def waiting() -> float:
        (gauge,) = (
            metric for metric in front.asynchronous.collect() if metric.name == "headrace_serving_async_waiting"
        )
        return gauge.samples[0].value

    with ThreadPoolExecutor(1) as pool:
        stays = pool.submit(client.get, path)
        wait_until(lambda: waiting() == 1)
        with socket.create_connection(("127.0.0.1", front.port)) as gone:
            gone.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wait_until(lambda: waiting() == 2)
            assert (
                plain_http.get(front.url + "/headrace/status", timeout=60).json()["async_predictions"]["waiting"] == 2
            )
        wait_until(lambda: waiting() == 1)
        wait_until(lambda: front.call(lambda: len(front.server.server_state.tasks)) == 1)
        front.runner.answers.set()
        # Its wait is as long as the other's and began before it, so that was over before its time.
        assert stays.result().json() == {"predictions": [3.0], "version": 3}
    wait_until(lambda: not front.call(lambda: front.server.server_state.tasks) and waiting() == 0)


def test_a_failed_one_has_the_code_and_the_words_of_predict(client: httpx.Client) -> None:
    body = {"instances": [[-1, 2]]}
    failed = client.get(f"/v1/predictions/{submit(client, body)}", params={"wait_seconds": 60})
    same = client.post("/v1/models/m:predict", json=body)
    assert (failed.status_code, failed.json()) == (same.status_code, same.json()) == (400, {"error": "x is negative"})


def test_another_front_answers_for_an_id_when_the_one_that_took_it_is_gone(
    redis_beside: RedisServer, client: httpx.Client
) -> None:
    with (
        FrontThread(redis_beside.url, replica_state(version())) as other,
        plain_http.client(base_url=other.url, timeout=60) as its_client,
    ):
        prediction = submit(its_client)
    answer = client.get(f"/v1/predictions/{prediction}", params={"wait_seconds": 60})
    assert answer.json() == {"predictions": [3.0], "version": 3}


def test_past_its_deadline_it_has_failed_for_good(
    redis_beside: RedisServer, front: FrontThread, client: httpx.Client
) -> None:
    front.runner.answers.clear()
    prediction = submit(client, path=f"{_SUBMIT}?deadline_seconds=0.05")
    late = client.get(f"/v1/predictions/{prediction}", params={"wait_seconds": 60})
    assert (late.status_code, late.json()["error"]) == (504, "the deadline passed before a runner answered")
    front.runner.answers.set()
    submit(client)
    with redis_beside.client() as asked:
        wait_until(lambda: asked.xlen(queue_key("m", "alias/production")) == 0)
    assert client.get(f"/v1/predictions/{prediction}").status_code == 504


def test_a_cancelled_one_leaves_the_queue_and_is_unknown(front: FrontThread, client: httpx.Client) -> None:
    front.runner.answers.clear()
    blocking = [submit(client) for _ in range(3)]
    wait_until(lambda: client.get("/headrace/status").json()["queues"][0]["requests"] == 3)
    for prediction in blocking:
        cancelled = client.delete(f"/v1/predictions/{prediction}")
        assert (cancelled.status_code, cancelled.json()) == (200, {"id": prediction, "was_open": True})
    assert client.get("/headrace/status").json()["queues"][0]["requests"] == 0
    front.runner.answers.set()
    assert client.get(f"/v1/predictions/{blocking[0]}").status_code == 404
    assert client.delete(f"/v1/predictions/{blocking[0]}").status_code == 404


@each_row(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", _SUBMIT, "{", 400, "JSON"),
        ("POST", _SUBMIT, '{"instances": [["a", 2]]}', 400, "instances"),
        ("POST", _SUBMIT, '{"instances": [[1]], "signature_name": "no"}', 400, '"no" not found'),
        ("POST", "/v1/models/no:predictAsync", '{"instances": [[1]]}', 404, "Servable not found"),
        ("POST", "/v1/models/m/labels/no:predictAsync", '{"instances": [[1]]}', 400, "label: no"),
        ("POST", "/v1/models/m/versions/99999999999999999999:predictAsync", "{}", 400, "to numeric"),
        ("POST", f"{_SUBMIT}?deadline_seconds=601", "{}", 400, "deadline_seconds is '601'"),
        ("POST", f"{_SUBMIT}?deadline_seconds=0", "{}", 400, "deadline_seconds is '0'"),
        ("POST", f"{_SUBMIT}?deadline=1", "{}", 400, "unknown parameter deadline,"),
        ("POST", _SUBMIT, "x" * (_MAX_BODY_BYTES + 1), 413, "larger than"),
        ("GET", _SUBMIT, "", 400, "Malformed request"),
        ("GET", _UNKNOWN, "", 404, "there is no prediction"),
        ("GET", f"{_UNKNOWN}?wait_seconds=61", "", 400, "at most 60"),
        ("GET", f"{_UNKNOWN}?wait_seconds=soon", "", 400, "wait_seconds is 'soon'"),
        ("GET", f"{_UNKNOWN}?wait_seconds=-1", "", 400, "wait_seconds is '-1'"),
        ("GET", f"{_UNKNOWN}?wait=1", "", 400, "unknown parameter wait,"),
        ("DELETE", _UNKNOWN, "", 404, "there is no prediction"),
        ("DELETE", f"{_UNKNOWN}?wait_seconds=1", "", 400, "unknown parameter wait_seconds"),
        ("PUT", _UNKNOWN, "", 400, "Malformed request"),
    ],
)
def test_what_is_wrong_is_said(
    client: httpx.Client, method: str, path: str, body: str, status: int, message: str
) -> None:
    response = client.request(method, path, content=body)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]


def test_a_queue_that_is_half_full_refuses_and_takes_those_who_wait(front: FrontThread, client: httpx.Client) -> None:
    front.runner.answers.clear()
    predictions = [submit(client) for _ in range(8)]
    refused = client.post(_SUBMIT, json=_ROWS)
    assert (refused.status_code, "is half full" in refused.json()["error"]) == (429, True)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/v1/models/m:predict", json=_ROWS)
        wait_until(lambda: client.get("/headrace/status").json()["queues"][0]["requests"] == 9)
        front.runner.answers.set()
        assert asked.result().json() == {"predictions": [3.0]}
    for prediction in predictions:
        assert client.get(f"/v1/predictions/{prediction}", params={"wait_seconds": 60}).status_code == 200


def test_a_front_that_stops_tells_who_waits_what_it_knows(redis_server: RedisServer) -> None:
    with ThreadPoolExecutor(1) as pool, FakeRunner(redis_server.url, sums_of_no_negative) as runner:
        runner.answers.clear()
        with FrontThread(redis_server.url, replica_state(version())) as front:
            prediction = front.post(_ROWS, _SUBMIT).json()["id"]
            path = f"{front.url}/v1/predictions/{prediction}"
            waiting = pool.submit(plain_http.get, path, params={"wait_seconds": 60}, timeout=_WAIT_SECONDS)
            wait_until(lambda: front.asynchronous.waiting.count == 1)
        assert waiting.result().status_code == 202


def test_nobody_who_serves_is_said_at_once(redis_server: RedisServer) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front:
        refused = front.post(_ROWS, _SUBMIT)
    assert (refused.status_code, "no runner serves" in refused.json()["error"]) == (503, True)


def test_answers_are_bounded_by_count_and_by_bytes_and_expire(redis_server: RedisServer) -> None:
    limits = AsyncLimits(deadline_seconds=30, result_seconds=1, count=2, total_bytes=4000)

    def inflated(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        return {"y": np.zeros((1, int(inputs["x"][0, 0])), np.float32)}

    with (
        FrontThread(redis_server.url, replica_state(version()), async_limits=limits) as front,
        FakeRunner(redis_server.url, inflated),
        plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS) as client,
    ):
        small = [submit(client, {"instances": [[1, 2]]}, f"{_SUBMIT}?deadline_seconds=3") for _ in range(2)]
        for prediction in small:
            assert client.get(f"/v1/predictions/{prediction}", params={"wait_seconds": 3}).status_code == 200
        refused = client.post(_SUBMIT, json=_ROWS)
        assert (refused.status_code, "2 asynchronous predictions" in refused.json()["error"]) == (429, True)
        wait_until(lambda: client.get(f"/v1/predictions/{small[1]}").status_code == 404)
        large = submit(client, {"instances": [[2000, 2]]})
        assert client.get("/headrace/status").json()["async_predictions"]["count"] == 1
        assert client.get(f"/v1/predictions/{large}", params={"wait_seconds": 60}).status_code == 200
        refused = client.post(_SUBMIT, json=_ROWS)
        assert (refused.status_code, "4000 bytes" in refused.json()["error"]) == (429, True)
        assert client.get("/headrace/status").json()["async_predictions"]["bytes"] > 8000
        assert client.delete(f"/v1/predictions/{large}").json() == {"id": large, "was_open": False}
        assert client.get(f"/v1/predictions/{large}").status_code == 404
        assert client.get("/headrace/status").json()["async_predictions"] == {
            "count": 0, "bytes": 0, "waiting": 0, "lines": 0,
        }  # fmt: skip
        submit(client, {"instances": [[1, 2]]})


def test_without_redis_it_is_unavailable_and_comes_back(redis_server: RedisServer) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version())) as front,
        plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS) as client,
    ):
        unknown = f"/v1/predictions/{_places(redis_server).new_id()}"
        assert client.get(unknown).status_code == 404
        redis_server.kill()
        for answer in (client.post(_SUBMIT, json=_ROWS), client.get(unknown), client.delete(unknown)):
            assert (answer.status_code, "Redis" in answer.json()["error"]) == (503, True)
        redis_server.start()
        wait_until(lambda: client.get(unknown).status_code == 404)


def test_a_traced_one_is_followed_from_its_submission_to_its_answer_whichever_replica_hands_it_over(
    redis_beside: RedisServer, front: FrontThread
) -> None:
    tracing = open_tracing("serving", 1e-12)
    told = {"traceparent": f"00-{32 * '1'}-{16 * '2'}-01", "x-request-id": "later"}
    with FrontThread(redis_beside.url, replica_state(version()), tracing=tracing) as traced:
        with plain_http.client(base_url=traced.url, timeout=_WAIT_SECONDS, headers=told) as client:
            ran, failed = submit(client), submit(client, {"instances": [[-1, 2]]})
            assert client.post("/v1/models/none:predictAsync", json=_ROWS).status_code == 404
        with plain_http.client(base_url=traced.url, timeout=_WAIT_SECONDS) as other:
            for prediction in (ran, failed, ran):
                assert other.get(f"/v1/predictions/{prediction}?wait_seconds=60").status_code in (200, 400)
            spans = other.get("/v1/traces/later").json()["spans"]
    submissions = [span for span in spans if span["parent_id"] == 16 * "2"]
    assert [bool(span["error"]) for span in submissions] == [False, False, True]
    for submission, error in zip(submissions, ("", "x is negative"), strict=False):
        below = {span["name"]: span for span in spans if span["parent_id"] == submission["span_id"]}
        assert below.keys() == {"wait in the queue", "batch in the runner", "answer kept"}
        batch = below["batch in the runner"]
        assert (batch["attributes"]["headrace.model"], batch["attributes"]["headrace.version"]) == ("m", 3)
        assert batch["error"] == error
    assert len(spans) == 9, "an answer that is fetched again is told once"


def _order_of(
    redis_server: RedisServer, folder: Path, *, queue_limit: int, asked: Callable[[httpx.Client, httpx.Client], str]
) -> list[float]:
    """The first numbers of the requests as a runner answers them, once `asked` (by ann, by bob) has returned the id of
    the last, which another front then hands over."""
    access = Access(write_access(folder / "access.yaml", {"predictor": ("predict:m",), "viewer": ("predict:m",)}))
    guard, order = Guard(access, serving_rules()), list[float]()

    def noted(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        order.append(float(inputs["x"].flat[0]))
        return sums_of_no_negative(inputs, request)

    state = replica_state(version())
    with FakeRunner(redis_server.url, noted) as runner:
        runner.answers.clear()
        with (
            FrontThread(redis_server.url, state, queue_limit=queue_limit, guard=guard) as front,
            plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS, headers=bearer("predictor")) as ann,
            plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS, headers=bearer("viewer")) as bob,
        ):
            last = asked(ann, bob)
        runner.answers.set()
        with (
            FrontThread(redis_server.url, state, guard=guard) as other,
            plain_http.client(base_url=other.url, timeout=_WAIT_SECONDS, headers=bearer("predictor")) as client,
        ):
            assert client.get(f"/v1/predictions/{last}", params={"wait_seconds": 60}).status_code == 200
    return order


def test_with_identity_a_long_line_of_one_principal_holds_up_no_other(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    def asked(ann: httpx.Client, bob: httpx.Client) -> str:
        for number in range(400):
            last = submit(ann, {"instances": [[number, 0]]})
        submit(bob, {"instances": [[1000, 0]]})
        assert redis_server.client().hlen(_places(redis_server).of_all("lines")) == 1
        forgotten = submit(ann, {"instances": [[2000, 0]]})
        assert ann.delete(f"/v1/predictions/{forgotten}").json()["was_open"]
        return last

    order = _order_of(redis_server, tmp_path, queue_limit=1024, asked=asked)
    assert [number for number in order if number != 1000] == list(range(400)), (
        "none is lost, and ann's keep their order"
    )
    assert order.index(1000) <= _AHEAD + _BATCH


def test_with_identity_one_principal_leaves_room_in_the_lines(redis_server: RedisServer, tmp_path: Path) -> None:
    limit = _AHEAD + 22

    def asked(ann: httpx.Client, bob: httpx.Client) -> str:
        statuses = [ann.post(_SUBMIT, json={"instances": [[number, 0]]}) for number in range(limit)]
        assert [answer.status_code for answer in statuses] == [202] * (limit - 2) + [429] * 2
        assert "predictions of predictor for model m" in statuses[-1].json()["error"]
        submit(bob, {"instances": [[1000, 0]]})
        return str(statuses[0].json()["id"])

    order = _order_of(redis_server, tmp_path, queue_limit=2 * limit, asked=asked)
    assert order[: _AHEAD // 2] == list(range(_AHEAD // 2))


@each_row("limits", [AsyncLimits(count=18), AsyncLimits(total_bytes=30_000)])
def test_with_identity_one_principal_leaves_room_among_those_that_are_kept(
    redis_server: RedisServer, tmp_path: Path, limits: AsyncLimits
) -> None:
    """Under both bounds, which answers that nobody fetches fill, too."""
    access = Access(write_access(tmp_path / "access.yaml", {"predictor": ("predict:m",), "viewer": ("predict:m",)}))
    state, guard = replica_state(version()), Guard(access, serving_rules())
    with (
        FrontThread(redis_server.url, state, async_limits=limits, guard=guard) as front,
        FakeRunner(redis_server.url, sums_of_no_negative),
        plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS, headers=bearer("predictor")) as ann,
        plain_http.client(base_url=front.url, timeout=_WAIT_SECONDS, headers=bearer("viewer")) as bob,
    ):
        kept = list[str]()
        while (answer := ann.post(_SUBMIT, json=_ROWS)).status_code == 202:
            kept.append(answer.json()["id"])
            assert ann.get(f"/v1/predictions/{kept[-1]}", params={"wait_seconds": 60}).status_code == 200
        assert (answer.status_code, "predictor holds its share" in answer.json()["error"]) == (429, True)
        assert limits.count > 18 or len(kept) == 16
        others = submit(bob)
        assert bob.delete(f"/v1/predictions/{others}").status_code == 200
        for prediction in kept:
            assert ann.delete(f"/v1/predictions/{prediction}").status_code == 200
        assert ann.delete(f"/v1/predictions/{submit(ann)}").status_code == 200, "there is room again"
        assert redis_server.client().hgetall(_places(redis_server).of_all("held")) == {}
