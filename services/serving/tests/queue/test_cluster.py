"""A Redis Cluster of three masters: a model's keys are at one of them, whose end holds up no other model."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis.crc import key_slot

from common.errors import InvalidInput, Unavailable
from common.redis_url import RedisUrl
from protos import queue_pb2
from services.serving.batching.groups import Answer
from services.serving.front.async_predictions import AsyncLimits
from services.serving.queue.async_redis import Places
from services.serving.queue.recovery import Recovery
from services.serving.queue.runner_queue import RunnerQueue, completions
from services.serving.queue.scripts import COMPLETE
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.keys import CONSUMER_GROUP, DEFAULT_TARGET, queue_key, replies_key
from services.serving.wire.prediction import read_tensor
from testing import plain_http
from testing.processes import free_port
from testing.redis_cluster import RedisCluster
from testing.rows import each_row
from testing.waiting import wait_until

_STATE = replica_state(version(), replace(version(), model="n"), n={"production": 3})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    running = RedisCluster(tmp_path_factory.mktemp("cluster"))
    running.start()
    assert running.master_of(b"{m}") is not running.master_of(b"{n}")
    yield running
    running.stop()


def _predict(front: FrontThread, number: int, model: str = "m") -> object:
    body = {"instances": [[1, number]]}
    return front.post(body, f"/v1/models/{model}:predict").json()


def test_a_step_over_two_slots_is_refused_and_a_models_keys_are_in_one(cluster: RedisCluster) -> None:
    queue, arguments = queue_key("m", DEFAULT_TARGET), (CONSUMER_GROUP, 60_000, 0, b"answer")
    with cluster.client() as client:
        with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
            client.eval(COMPLETE.text, 2, queue, replies_key("front"), *arguments)
        assert client.eval(COMPLETE.text, 2, queue, replies_key("front", "m"), *arguments) == 0
        assert client.lpop(replies_key("front", "m")) == b"answer"
    places = Places("m")
    assert Places.of(places.new_id()) == places
    kept = (places.index, places.of_all("lines"), f"{places.prefix}{places.new_id()}")
    assert {key_slot(key.encode()) for key in kept} == {key_slot(queue)}


def test_a_runner_answers_at_its_models_master_and_passes_over_lists_that_are_elsewhere(cluster: RedisCluster) -> None:
    asker, runner = Asker(cluster.url, "n"), RunnerQueue(cluster.url, model="n", runner_id="dead")
    runner.connect()
    asker.enqueue(request(b"one", {"x": np.ones(1, "<f4")}), request(b"two", {"x": np.ones(1, "<f4")}))
    held = runner.exchange([], [DEFAULT_TARGET], count=8, block_milliseconds=1000)
    assert [taken.request.request_id for taken in held] == [b"one", b"two"]
    assert Recovery(cluster.url, model="n").recover("n", [DEFAULT_TARGET], "dead") == 2
    taken = runner.exchange([], [DEFAULT_TARGET], count=8, block_milliseconds=1000)
    taken[1].request.reply_to = "headrace:replies:elsewhere"
    answers = [Answer(one, queue_pb2.PredictionReply(request_id=one.request.request_id, version=7)) for one in taken]
    runner.exchange(completions(answers), [], count=1, block_milliseconds=0)
    assert [reply.version for reply in asker.wait_for(b"one")] == [7]
    assert asker.queue_length() == 0
    with cluster.master_of(b"{n}").client() as client:
        assert client.exists(queue_key("n", DEFAULT_TARGET))
    runner.close()


def test_a_model_that_comes_is_asked_before_it_has_connections_and_loses_them_when_it_goes(
    cluster: RedisCluster,
) -> None:
    with (
        FrontThread(cluster.url, replica_state(version())) as front,
        FakeRunner(cluster.url, row_sums, name="n"),
        cluster.master_of(b"{n}").client() as client,
    ):
        before = len(client.client_list())

        async def ask_at_once() -> queue_pb2.PredictionReply:
            front.front.update(_STATE)
            answered = asyncio.get_running_loop().create_future()
            asked = request(b"", {"x": np.array([[1, 2]], "<f4")})
            front.front.submit(front.front.resolve("n"), asked, answered.set_result)
            reply: queue_pb2.PredictionReply = await asyncio.wait_for(answered, 60)
            return reply

        assert read_tensor(front.run(ask_at_once()).outputs[0]).tolist() == [3.0]
        assert len(client.client_list()) == before + 2
        front.call(lambda: front.front.update(replica_state(version())))
        wait_until(lambda: len(client.client_list()) == before)


@each_row("limits", [AsyncLimits(count=5), AsyncLimits(total_bytes=1500)])
def test_asynchronous_predictions_of_models_at_several_masters_have_one_bound(
    cluster: RedisCluster, limits: AsyncLimits
) -> None:
    cluster.flush()
    with (
        FrontThread(cluster.url, _STATE, async_limits=limits) as front,
        FakeRunner(cluster.url, row_sums) as runner,
        FakeRunner(cluster.url, row_sums, name="n") as runner_of_n,
        FrontThread(cluster.url, _STATE, async_limits=limits) as other,
    ):
        for one in (runner, runner_of_n):
            one.answers.clear()

        def submitted(at: FrontThread, model: str) -> Any:
            url = f"{at.url}/v1/models/{model}:predictAsync"
            return plain_http.post(url, json={"instances": [[1, 2]]}, timeout=60)

        def held(at: FrontThread) -> Any:
            found = plain_http.get(f"{at.url}/headrace/status", timeout=60).json()["async_predictions"]
            return found["count"], found["bytes"]

        kept: list[str] = []
        for model in "mmn" * 20:
            answer = submitted(front, model)
            if answer.status_code != 202:
                break
            kept.append(answer.json()["id"])
        assert answer.status_code == 429
        assert 3 <= len(kept) <= limits.count
        assert held(front)[1] <= limits.total_bytes
        wait_until(lambda: held(other)[0] == len(kept), "another front has heard of both models")
        assert [submitted(other, model).status_code for model in "nm"] == [429, 429]
        for prediction in kept[:2]:  # of model m
            assert plain_http.delete(f"{front.url}/v1/predictions/{prediction}", timeout=60).status_code == 200
        wait_until(lambda: submitted(other, "n").status_code == 202, "there is room for the other model")
        for one in (runner, runner_of_n):
            one.answers.set()


def test_clients_follow_a_slot_that_moves_to_another_master(cluster: RedisCluster) -> None:
    old, new, slot = cluster.master_of(b"{n}"), cluster.master_of(b"{m}"), key_slot(b"{n}")
    asker = Asker(cluster.url, "n")
    with (
        FrontThread(cluster.url, _STATE) as front,
        FakeRunner(cluster.url, row_sums, name="n"),
        old.client() as source,
        new.client() as target,
    ):
        assert _predict(front, 2, "n") == {"predictions": [3.0]}
        asker.queue_length()
        names = {node: client.cluster("MYID").decode() for node, client in (("old", source), ("new", target))}
        target.cluster("SETSLOT", slot, "IMPORTING", names["old"])
        source.cluster("SETSLOT", slot, "MIGRATING", names["new"])
        while keys := source.cluster("GETKEYSINSLOT", slot, 100):
            source.execute_command("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
        for node in cluster.masters:
            with node.client() as client:
                client.cluster("SETSLOT", slot, "NODE", names["new"])
        with FakeRunner(cluster.url, row_sums, name="n") as moved:
            wait_until(lambda: _predict(front, 3, "n") == {"predictions": [4.0]})
            assert moved.batch_sizes, "the front has gone where the slot went"
        with pytest.raises(Unavailable, match="MOVED"):
            asker.queue_length()
        assert asker.queue_length() == 0


def test_a_master_that_dies_holds_up_its_models_alone_and_its_replica_has_what_was_accepted(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path, has_replicas=True)
    cluster.start()
    master, replica = cluster.master_of(b"{m}"), cluster.replica_of(b"{m}")
    FakeRunner(cluster.url, row_sums).renew()  # It counts as a runner, and takes nothing.
    with (
        FrontThread(cluster.url, _STATE) as front,
        FakeRunner(cluster.url, row_sums, name="n"),
        ThreadPoolExecutor(4) as pool,
    ):
        assert front.health.conditions()["queue"] == "ok, a Redis Cluster"
        accepted = [pool.submit(_predict, front, number) for number in range(4)]
        asked = front.post({"instances": [[1, 9]]}, "/v1/models/m:predictAsync").json()
        with master.client() as client:
            wait_until(lambda: client.xlen(queue_key("m", DEFAULT_TARGET)) == 5)
            client.wait(1, 10_000)
        master.kill()
        wait_until(lambda: "(model m)" in front.health.conditions()["queue"], "the model's master is known to be away")
        assert front.health.is_ready()
        assert _predict(front, 5, "n") == {"predictions": [6.0]}
        with replica.client() as client:
            wait_until(lambda: client.info("replication")["role"] == "master")
        with FakeRunner(replica.url, row_sums):
            answers = [done.result() for done in accepted]
            later = plain_http.get(f"{front.url}/v1/predictions/{asked['id']}?wait_seconds=60", timeout=90).json()
            wait_until(lambda: front.health.conditions()["queue"] == "ok, a Redis Cluster")
            status = plain_http.get(f"{front.url}/headrace/status", timeout=60).json()
    assert answers == [{"predictions": [1.0 + number]} for number in range(4)]
    assert later == {"predictions": [10.0], "version": 3}
    assert (status["redis"], status["async_predictions"]["count"]) == ("cluster", 1)
    cluster.stop()


@each_row(
    ("url", "words"),
    [
        ("redis://h/1?cluster_nodes=", "database 0 only"), ("redis://h?cluster_nodes=a:b", "host:port,host:port"),
        ("redis://h?cluster_nodes=&sentinel_master=x", "no Sentinels"),
        ("unix:///path?cluster_nodes=", "unknown option cluster_nodes"),
    ],
)  # fmt: skip
def test_a_url_that_makes_no_sense_is_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        RedisUrl.parse(url)


def test_without_a_node_that_answers_nothing_is_connected() -> None:
    url = f"redis://127.0.0.1:{free_port()}?cluster_nodes=127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match="no node names the master of"):
        RedisUrl.parse(url).located(b"{m}")
