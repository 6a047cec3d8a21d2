"""A Redis that fails over: every connection finds the new master, and what a front has accepted is answered."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from common.errors import InvalidInput, Unavailable
from common.redis_url import RedisUrl
from services.serving.queue.blocking_redis import BlockingRedis
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.keys import queue_key
from testing.processes import free_port
from testing.redis_sentinel import Watched, watched_redis
from testing.waiting import wait_until


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watched_redis(tmp_path) as found:
        yield found


def _predict(front: FrontThread, number: int) -> object:
    body = {"instances": [[1, number]]}
    return front.post(body).json()


def test_what_was_accepted_before_a_failover_is_answered_by_the_new_master(watched: Watched) -> None:
    blocking = BlockingRedis(watched.url)
    blocking.demand("SET", "kept", "1")
    assert blocking.demand("WAIT", 1, 10_000) == 1  # The replica has it.
    FakeRunner(watched.master.url, row_sums).renew()  # It counts as a runner, and takes nothing.
    with FrontThread(watched.url, replica_state(version())) as front, ThreadPoolExecutor(4) as pool:
        accepted = [pool.submit(_predict, front, number) for number in range(4)]
        with redis.Redis.from_url(watched.master.url) as client:
            wait_until(lambda: client.xlen(queue_key("m", "alias/production")) == 4)
        watched.master.kill()
        with redis.Redis.from_url(watched.replica.url) as client:
            wait_until(lambda: client.info("replication")["role"] == "master")
        with FakeRunner(watched.replica.url, row_sums):
            answers = [done.result() for done in accepted]
    assert answers == [{"predictions": [1.0 + number]} for number in range(4)]
    with pytest.raises(Unavailable):
        blocking.call("GET", "kept")  # the connection to the old master
    assert blocking.call("GET", "kept") == b"1"


def test_without_a_sentinel_that_knows_the_master_nothing_is_connected(watched: Watched) -> None:
    with pytest.raises(Unavailable, match="knows no master other"):
        BlockingRedis(watched.url.replace("sentinel_master=headrace", "sentinel_master=other")).connect()
    url = f"redis://127.0.0.1:{free_port()}/0?sentinel_master=headrace"
    with pytest.raises(Unavailable, match="no Sentinel names the master headrace"):
        BlockingRedis(url).connect()
    with pytest.raises(InvalidInput, match="sentinels needs sentinel_master"):
        RedisUrl.parse("redis://h:26379/0?sentinels=h2:26379")
