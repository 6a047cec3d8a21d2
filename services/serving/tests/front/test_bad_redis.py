"""A Redis that is slow, full, somebody else's or none: requests are refused in words, until it is itself again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import Unavailable
from services.serving.queue.blocking_redis import BlockingRedis
from services.serving.queue.runner_queue import RunnerQueue, make_group
from services.serving.queue.scripts import RENEW
from services.serving.tests.support.distorted_redis import DistortedRedis
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.keys import queue_key, serving_key
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_QUEUE = queue_key("m", "alias/production")


def predict(front: FrontThread) -> httpx.Response:
    return front.post({"instances": [[1, 2]]})


def is_refused(front: FrontThread, *words: str) -> bool:
    """In /readyz, in what the replica reports, and to who asks."""
    shown = front.health.conditions()["queue"]
    if front.health.is_ready() or not all(word in shown for word in words):
        return False
    assert all(word in "; ".join(front.front.queue_clients.faults) for word in words)
    answer = predict(front)
    assert answer.status_code == 503, answer.text
    assert "Redis" in answer.json()["error"]
    return True


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client() as connected:
        yield connected
        connected.config_set("maxmemory", 0)


@pytest.fixture
def distorted(redis_server: RedisServer, tmp_path: Path) -> Iterator[DistortedRedis]:
    with DistortedRedis(redis_server.socket_path, tmp_path) as between:
        yield between


def test_a_full_redis_refuses_new_requests_and_still_answers_those_that_it_took(
    redis_server: RedisServer, client: Any
) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version()), timeout_seconds=60) as front,
        FakeRunner(redis_server.url, row_sums, expiry_milliseconds=120_000) as runner,
        ThreadPoolExecutor(1) as pool,
    ):
        runner.answers.clear()
        taken = pool.submit(predict, front)
        wait_until(lambda: client.xlen(_QUEUE) == 1)
        client.config_set("maxmemory", 1)
        wait_until(lambda: is_refused(front, "takes no writes", "OOM"))
        runner.answers.set()
        assert taken.result().json() == {"predictions": [3.0]}
        make_group(BlockingRedis(redis_server.url), _QUEUE)  # as a runner does that connects again
        client.config_set("maxmemory", 0)
        wait_until(front.health.is_ready)
        assert predict(front).json() == {"predictions": [3.0]}
        assert front.health.conditions()["queue"] == "ok"


def test_a_queue_whose_key_is_of_another_type_is_named_and_the_other_queues_are_served(
    redis_server: RedisServer, client: Any
) -> None:
    with FrontThread(redis_server.url, replica_state(version())) as front:
        keys = front.call(lambda: {route.queue.key for route in front.front.routing.routes.values()})
        assert len(keys) > 1
        client.mset(dict.fromkeys(keys, "somebody else's"))
        client.eval(RENEW.text, 1, serving_key("m", "alias/production"), "r", 600_000)
        wait_until(lambda: is_refused(front, _QUEUE.decode(), "WRONGTYPE"))
        client.delete(*(keys - {_QUEUE}))
        wait_until(front.health.is_ready)
        assert front.health.conditions()["queue"].startswith(f"ok, but Redis has no queue under {_QUEUE.decode()}")
        assert "WRONGTYPE" in predict(front).json()["error"]
        client.delete(_QUEUE)
        wait_until(lambda: front.health.conditions()["queue"] == "ok")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: b"+OK\r\n" * answer.count(b"\r\n"), "answered SCRIPT LOAD with b'OK'"),
        (lambda answer: b":7\r\n", "answered SCRIPT LOAD with 7"),
        (lambda answer: b"HTTP/1.1 400 Bad Request\r\n\r\n", "Redis is away"),
        (lambda answer: b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
    ],
    ids=["OK to everything", "7 to everything", "another protocol", "loading"],
)
def test_what_answers_nonsense_counts_as_away_until_it_is_a_redis_again(
    redis_server: RedisServer, distorted: DistortedRedis, change: Callable[[bytes], bytes], words: str
) -> None:
    queue = RunnerQueue(distorted.url, model="m", runner_id="r")
    queue.connect()
    with FrontThread(distorted.url, replica_state(version())) as front, FakeRunner(redis_server.url, row_sums):
        distorted.change = change
        wait_until(lambda: is_refused(front, words))
        for act in (lambda: queue.exchange([], ["alias/production"], count=1, block_milliseconds=0), queue.connect):
            with pytest.raises(Unavailable):
                act()
        distorted.be_itself()
        wait_until(front.health.is_ready)
        assert predict(front).json() == {"predictions": [3.0]}
    queue.connect()
    queue.close()


def test_a_redis_that_answers_after_seconds_counts_as_away_until_it_is_quick_again(
    redis_server: RedisServer, distorted: DistortedRedis
) -> None:
    with FrontThread(distorted.url, replica_state(version())) as front, FakeRunner(redis_server.url, row_sums):
        assert predict(front).status_code == 200
        distorted.delay_seconds = 6.0
        wait_until(lambda: is_refused(front, "did not answer"))
        distorted.be_itself()
        wait_until(front.health.is_ready)
        assert predict(front).json() == {"predictions": [3.0]}
