"""Refusals at the front: decided at once, fair between models, and aware of deadlines. Time is told, not waited for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from common.access.principal import Principal, act_as
from protos import queue_pb2
from services.serving.front.core import Front, OnReply
from services.serving.front.front_metrics import FrontMetrics
from services.serving.options.model_options import BatchingOptions, ModelOptions
from services.serving.options.model_priorities import ModelPriority
from services.serving.queue.admission import BATCHES_FULL, Admission, QueueLoad
from services.serving.tests.front.test_front import predict
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.keys import queue_key
from services.serving.wire.prediction import RequestFailed
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until


def full_of(count: int, *, rate: float | None = None, at_once: int = 10) -> QueueLoad:
    load = QueueLoad()
    load.at_once = at_once
    for _ in range(count):
        load.opened(1)
    load.rate = rate
    return load


def refusal(admission: Admission, load: QueueLoad, **changes: Any) -> str:
    """The reason by which a request is refused, "" when it is taken."""
    arguments = {"open_count": load.open_count, "rows": 1, "timeout_seconds": 10.0} | changes
    try:
        admission.check("m", load, **arguments)
    except RequestFailed:
        return admission.refusals.most_common()[0][0][1]
    return ""


def test_a_front_takes_what_its_limit_allows() -> None:
    assert refusal(Admission(2, 4096), full_of(1)) == ""
    assert refusal(Admission(2, 4096), full_of(2)) == "front full"


@each_row(("priority", "count"), [(ModelPriority.LOW, 450), (ModelPriority.NORMAL, 800), (ModelPriority.HIGH, 887)])
def test_one_slow_model_leaves_room_for_the_others(priority: ModelPriority, count: int) -> None:
    slow, limit = QueueLoad(), 900
    slow.priority = priority
    while not refusal(Admission(limit, 4096), slow):
        slow.opened(1)
    assert slow.open_count == count
    assert refusal(Admission(limit, 4096), slow) == "unfair"
    assert refusal(Admission(limit, 4096), QueueLoad(), open_count=slow.open_count) == ""


def test_what_cannot_be_answered_before_its_deadline_is_refused_at_once() -> None:
    load = full_of(500, rate=100.0)
    assert refusal(Admission(10_000, 10_000), load, timeout_seconds=10.0) == ""
    assert refusal(Admission(10_000, 10_000), load, timeout_seconds=9.9) == "too late"
    assert refusal(Admission(10_000, 10_000), full_of(500), timeout_seconds=0.001) == "", "nothing was measured yet"


def test_one_that_runs_and_one_to_run_next_are_taken_however_slow_they_seem() -> None:
    assert refusal(Admission(10_000, 10_000), full_of(1, rate=0.001)) == ""
    assert refusal(Admission(10_000, 10_000), full_of(2, rate=0.001)) == "too late"


def test_few_requests_may_fill_most_of_a_deadline() -> None:
    assert refusal(Admission(10_000, 10_000), full_of(16, rate=20.0), timeout_seconds=1.0) == ""
    assert refusal(Admission(10_000, 10_000), full_of(17, rate=20.0), timeout_seconds=1.0) == "too late"
    assert refusal(Admission(10_000, 10_000), full_of(9, rate=10.0), timeout_seconds=1.0) == ""
    assert refusal(Admission(10_000, 10_000), full_of(10, rate=10.0), timeout_seconds=1.0) == "too late"


@each_row(("timeout_seconds", "at_least"), [(0.05, 600), (0.1, 750), (0.3, 850), (1.0, 850)])
def test_what_is_taken_from_three_times_too_much_is_answered_in_time(timeout_seconds: float, at_least: float) -> None:
    """A runner whose call takes 5 ms and 1 ms per request, up to 64 of them: at most 928 in a second, and 800 when no
    request may take longer than 50 ms."""
    load, admission = full_of(0, at_once=64), Admission(10_000, 10_000)
    waiting: list[float] = []
    now, next_at, in_time, late, longest_run = 0.0, 0.0, 0, 0, 20.0
    while now < longest_run:
        batch, waiting = waiting[:64], waiting[64:]
        now += 0.005 + 0.001 * len(batch)
        while next_at < now:  # 3,000 are asked for in a second
            if not refusal(admission, load, timeout_seconds=timeout_seconds):
                load.opened(1)
                waiting.append(next_at)
            next_at += 1 / 3000
        answered_in_time = sum(now - asked_at <= timeout_seconds for asked_at in batch)
        answer(load, len(batch), now)
        if now > longest_run / 2:  # afterwards the rate is known
            in_time += answered_in_time
            late += len(batch) - answered_in_time
    assert late <= 0.01 * in_time
    assert in_time / (longest_run / 2) > at_least


def answer(load: QueueLoad, count: int, now: float, *, in_time: bool = True) -> None:
    for _ in range(count):
        load.closed(1)
    load.answered(count if in_time else 0, now)


def test_the_rate_is_measured_only_while_there_is_more_than_enough_to_do() -> None:
    load = full_of(0)
    for second in range(20):  # one request at a time says nothing about what the runners can do
        load.opened(1)
        answer(load, 1, second + 0.9)
    assert load.rate is None
    for _ in range(80):
        load.opened(1)
    for step in range(8):
        answer(load, 10, 100.0 + 0.1 * step)
    assert load.rate == pytest.approx(100.0)
    load.opened(1)
    answer(load, 1, 200.0)
    assert load.rate == pytest.approx(100.0), "the queue ran short meanwhile"
    assert (load.open_count, load.open_rows) == (0, 0)


def test_a_slow_estimate_is_mended_by_what_is_always_taken() -> None:
    load, admission = full_of(0, rate=0.001), Admission(10_000, 10_000)
    for step in range(1, 60):
        while not refusal(admission, load, timeout_seconds=1.0):
            load.opened(1)
        answer(load, 10, 0.01 * step)
    assert load.rate is not None
    assert load.rate > 700


def test_answers_that_came_too_late_slow_the_estimate_down_until_the_queue_is_short_again() -> None:
    load = full_of(600, rate=100.0)
    for step in range(1, 20):
        answer(load, 10, 0.2 * step, in_time=False)
    assert refusal(Admission(10_000, 10_000), load) == "too late"
    for _ in range(load.open_count):
        load.closed(1)
    assert refusal(Admission(10_000, 10_000), load) == ""


def test_enqueued_batches_bound_the_examples_that_wait_and_run() -> None:
    options = ModelOptions(batching=BatchingOptions(max_batch_size=4, max_enqueued_batches=2, num_batch_threads=1))
    load = QueueLoad()
    assert load.follow(asdict(options)) == 12
    assert refusal(Admission(1000, 10_000), load, rows=100) == "", "alone it is taken, however large"
    for _ in range(11):
        load.opened(1)
    assert refusal(Admission(1000, 10_000), load, rows=1) == ""
    assert refusal(Admission(1000, 10_000), load, rows=2) == "batches full"
    assert load.follow({}) == 0
    unbatched = ModelOptions(batching=BatchingOptions(max_enqueued_batches=2, is_enabled=False))
    assert load.follow(asdict(unbatched)) == 0


@each_row(("rate", "queue_limit", "expected"), [(None, 90, 80), (20.0, 10_000, 90)])
def test_a_principal_leaves_room_for_the_others(rate: float | None, queue_limit: int, expected: int) -> None:
    load, admission = full_of(0, rate=rate), Admission(900, queue_limit)
    while not refusal(admission, load, principal="flood"):
        load.opened(1, "flood")
    assert (load.of_principals, admission.refusals["m", "principal"]) == ({"flood": expected}, 1)
    admission.check("m", load, open_count=load.open_count, rows=1, timeout_seconds=10.0, principal="other")
    load.closed(1, "flood")
    admission.check("m", load, open_count=load.open_count, rows=1, timeout_seconds=10.0, principal="flood")


def test_what_other_fronts_have_in_the_queue_counts_against_a_principals_room() -> None:
    load = QueueLoad()
    load.opened(1, "flood")
    assert refusal(Admission(900, 90), load, principal="flood", depth=89) == ""
    assert refusal(Admission(900, 90), load, principal="flood", depth=90) == "principal"


def test_a_flood_of_one_principal_does_not_keep_out_another(redis_server: RedisServer) -> None:
    options = asdict(ModelOptions(batching=BatchingOptions(max_batch_size=16)))
    with (
        FrontThread(
            redis_server.url, replica_state(version(options=options)), in_flight_limit=900, queue_limit=90
        ) as front,
        held_back(redis_server) as runner,
    ):
        answered: list[str] = []

        def send(name: str) -> None:
            act_as(Principal(name, frozenset()))
            submit_here(front, lambda reply: answered.append(f"{name} {reply.error_code}"))

        refused = 0
        for _ in range(200):
            try:
                front.call(lambda: send("flood"))
            except RequestFailed:
                refused += 1
        assert refused == 120
        shown = generate_latest(_registry_of(front.front)).decode()
        assert re.search(r'in_flight_of_principal{model="m",principal="flood",target="\S+"} 80.0\n', shown)
        front.call(lambda: send("other"))
        assert front.front.resolve("m").queue.turns.waiting() == {"flood": 80 - 32, "other": 1}
        redis_server.client().client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: Asker(redis_server.url, "m").queue_length() == 2 * 32)  # What was in the queue, and no more.
        runner.answers.set()
        wait_until(lambda: len(answered) == 81)
        assert set(answered) == {"flood 0", "other 0"}
        assert answered.index("other 0") <= 32 + 16, "its turn comes before the other's line is at its end"
        queue = front.front.resolve("m").queue
        assert (queue.load.of_principals, queue.turns.waiting()) == ({}, {})


def _registry_of(front: Front) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FrontMetrics(front))
    return registry


@pytest.fixture
def front(redis_server: RedisServer) -> Iterator[FrontThread]:
    options = ModelOptions(batching=BatchingOptions(max_batch_size=1, max_enqueued_batches=1))
    with FrontThread(redis_server.url, replica_state(version(options=asdict(options)))) as running:
        yield running


def held_back(redis_server: RedisServer) -> FakeRunner:
    runner = FakeRunner(redis_server.url, row_sums)
    runner.answers.clear()
    return runner


def submit(front: FrontThread, codes: list[tuple[int, str]]) -> bytes:
    return front.call(lambda: submit_here(front, lambda reply: codes.append((reply.error_code, reply.error_message))))


def submit_here(front: FrontThread, on_reply: OnReply) -> bytes:
    request = queue_pb2.PredictionRequest()
    request.inputs.add(name="x", dtype="<f4", shape=[1, 2], data=np.array([[1, 2]], np.float32).tobytes())
    core = front.front
    return core.submit(core.resolve("m"), request, on_reply)


@pytest.mark.covers("srv-batch-inter")
def test_a_full_batch_queue_is_refused_as_tensorflow_serving_refuses_it(
    front: FrontThread, redis_server: RedisServer
) -> None:
    codes: list[tuple[int, str]] = []
    with held_back(redis_server) as runner:
        submit(front, codes)
        submit(front, codes)
        answer = predict(front, [[1, 2]])
        assert (answer.status_code, answer.json()) == (503, {"error": BATCHES_FULL})
        assert front.front.admission.refusals["m", "batches full"] == 1
        runner.answers.set()
        wait_until(lambda: [code for code, _ in codes] == [0, 0])


def test_while_requests_are_refused_the_next_ones_are_not_even_parsed(
    front: FrontThread, redis_server: RedisServer
) -> None:
    def post(body: bytes) -> int:
        return plain_http.post(front.url + "/v1/models/m:predict", content=body, timeout=60).status_code

    assert post(b"no JSON") == 400
    codes: list[tuple[int, str]] = []
    with held_back(redis_server):
        submit(front, codes)
        submit(front, codes)
        assert predict(front, [[1, 2]]).status_code == 503
        assert post(b"no JSON") == 503
        wait_until(lambda: front.call(lambda: front.front._pressure_timer is None))
        assert post(b"no JSON") == 400, "the pressure is over as far as the front knows"


def test_the_bound_holds_for_what_other_fronts_enqueued_too(
    front: FrontThread, redis_server: RedisServer, asker: Asker
) -> None:
    with held_back(redis_server):
        asker.enqueue(*(request(name, {"x": np.ones((1, 2), "<f4")}) for name in (b"a", b"b")))
        answer = predict(front, [[1, 2]])
        assert (answer.status_code, answer.json()) == (503, {"error": BATCHES_FULL})


def test_a_request_whose_client_left_is_not_run(redis_server: RedisServer, asker: Asker) -> None:
    runs: list[object] = []

    def note(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        runs.append(inputs["x"].tolist())
        return row_sums(inputs, request)

    with FrontThread(redis_server.url, replica_state(version())) as front, FakeRunner(redis_server.url, note) as runner:
        runner.answers.clear()
        codes: list[tuple[int, str]] = []
        submit(front, codes)
        wait_until(lambda: asker.pending_at("replica/m/3/1") == 1)  # the runner holds this one
        for seconds in (0.2, 0.3):
            with pytest.raises(httpx.ReadTimeout):
                plain_http.post(front.url + "/v1/models/m:predict", json={"instances": [[5, 5]]}, timeout=seconds)
        wait_until(lambda: front.front.cancelling.counts["m"] == 2)
        assert asker.queue_length() == 1
        assert (front.front.open_count, front.front.resolve("m").queue.load.open_count) == (1, 1)
        runner.answers.set()
        wait_until(lambda: codes == [(0, "")])
    assert runs == [[[1.0, 2.0]]]


def test_a_grpc_client_that_cancels_takes_its_request_off_the_queue(redis_server: RedisServer, asker: Asker) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front:
        FakeRunner(redis_server.url, row_sums).renew()
        with grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel:
            call = predict_stub(channel).future(predict_request([1, 2]), timeout=60)
            wait_until(lambda: asker.queue_length() == 1)
            call.cancel()
            wait_until(lambda: front.front.cancelling.counts["m"] == 1)
        assert (asker.queue_length(), front.front.open_count) == (0, 0)


def test_a_request_that_is_forgotten_while_it_is_written_is_cancelled_when_it_lies_in_the_queue(
    redis_server: RedisServer,
) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front:
        runner = FakeRunner(redis_server.url, row_sums)
        runner.renew()  # it counts as serving and takes nothing
        request = queue_pb2.PredictionRequest()
        core = front.front

        def submit_and_leave() -> None:
            core.forget(core.submit(core.resolve("m"), request, lambda reply: None))

        front.call(submit_and_leave)
        wait_until(lambda: core.cancelling.counts["m"] == 1)
        assert Asker(redis_server.url, "m").queue_length() == 0


def test_an_expired_request_leaves_the_queue_unrun(redis_server: RedisServer) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front:
        FakeRunner(redis_server.url, row_sums).renew()
        assert predict(front, [[1, 2]], headers={"X-Request-Timeout-Ms": "50"}).status_code == 504
        wait_until(lambda: front.front.cancelling.counts["m"] == 1)
        assert Asker(redis_server.url, "m").queue_length() == 0


@pytest.mark.covers("srv-monitoring")
def test_depths_of_queues_are_sampled(redis_server: RedisServer) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front, held_back(redis_server):
        codes: list[tuple[int, str]] = []
        submit(front, codes)
        queue = front.front.resolve("m").queue
        assert queue.key == queue_key("m", "alias/production")
        wait_until(lambda: queue.depth == 1)
        buckets = {
            sample.labels["le"]: sample.value
            for family in FrontMetrics(front.front).collect()
            for sample in family.samples
            if sample.name == "headrace_serving_queue_depth_bucket" and sample.labels["target"] == "alias/production"
        }
        assert 0 <= buckets["0"] < buckets["1"] == buckets["+Inf"], "ticks that saw one request, beside those without"
