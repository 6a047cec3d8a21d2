"""The queue's one-step operations, on a real Redis."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from protos import queue_pb2
from services.serving.queue import scripts as queue_scripts
from services.serving.queue.async_redis import Places
from services.serving.queue.async_scripts import SUBMIT
from services.serving.wire import keys as queue_keys
from testing.redis_server import RedisServer

_QUEUE = queue_keys.queue_key("m", "alias/production")
_SERVING = queue_keys.serving_key("m", "alias/production")
_FINISHING = queue_keys.finishing_key("m", "alias/production")
_REPLIES, _OTHERS = (queue_keys.replies_key(front, "m") for front in ("one", "two"))
_GROUP = queue_keys.CONSUMER_GROUP


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client() as connected:
        connected.xgroup_create(_QUEUE, _GROUP, id="0", mkstream=True)
        yield connected


def run(client: Any, script: queue_scripts.Script, keys: Sequence[bytes | str], *arguments: Any) -> Any:
    return client.eval(script.text, len(keys), *keys, *arguments)


def enqueue(client: Any, limit: int, *requests: bytes) -> int:
    return int(run(client, queue_scripts.ENQUEUE, [_QUEUE, _SERVING], limit, *requests)[0])


def serve(client: Any, runner: str, milliseconds: int = 60_000) -> None:
    run(client, queue_scripts.RENEW, [_SERVING], runner, milliseconds)


def take(client: Any, runner: str) -> list[tuple[bytes, bytes]]:
    found = client.xreadgroup(_GROUP, runner, {_QUEUE: ">"}, count=100)
    return [(key, fields[queue_keys.REQUEST_FIELD]) for key, fields in found[0][1]] if found else []


def test_the_name_of_each_script_is_the_one_redis_gives_it(client: Any) -> None:
    for script in queue_scripts.ALL:
        assert client.script_load(script.text).encode() == script.sha


def test_requests_are_taken_in_order_while_there_is_room(client: Any) -> None:
    serve(client, "r")
    assert enqueue(client, 3, b"a", b"b") == 2
    assert enqueue(client, 3, b"c", b"d") == 1
    assert enqueue(client, 3, b"e") == 0
    assert [value for _, value in take(client, "r")] == [b"a", b"b", b"c"]


def test_running_requests_count_until_they_are_answered(client: Any) -> None:
    serve(client, "r")
    enqueue(client, 1, b"a")
    ((key, _),) = take(client, "r")
    assert enqueue(client, 1, b"b") == 0
    run(client, queue_scripts.COMPLETE, [_QUEUE, _REPLIES], _GROUP, 60_000, 1, key, b"answer")
    assert client.lrange(_REPLIES, 0, -1) == [b"answer"]
    assert 0 < client.pttl(_REPLIES) <= 60_000
    assert enqueue(client, 1, b"b") == 1


def test_nothing_is_enqueued_where_nobody_serves(client: Any) -> None:
    assert enqueue(client, 3, b"a") == -1
    serve(client, "r", milliseconds=-1)
    assert enqueue(client, 3, b"a") == -1
    assert client.xlen(_QUEUE) == 0
    assert run(client, queue_scripts.SILENT, [_SERVING, _FINISHING]) == [[b"r"], [b"r"]]
    run(client, queue_scripts.FINISH, [_FINISHING], "r", 60_000)
    assert run(client, queue_scripts.SILENT, [_SERVING, _FINISHING]) == [[], [b"r", b"r"]]


def test_a_batch_is_answered_to_several_fronts_in_one_step(client: Any) -> None:
    serve(client, "r")
    enqueue(client, 9, b"a", b"b", b"c")
    keys = [key for key, _ in take(client, "r")]
    run(client, queue_scripts.COMPLETE, [_QUEUE, _REPLIES, _OTHERS], _GROUP, 60_000, 2, *keys[:2], b"1", b"2")
    assert (client.lrange(_REPLIES, 0, -1), client.lrange(_OTHERS, 0, -1)) == ([b"1"], [b"2"])
    assert client.xlen(_QUEUE) == 1
    assert client.xpending(_QUEUE, _GROUP)["pending"] == 1


def test_what_a_dead_runner_held_is_put_back_once_however_often_it_is_tried(client: Any) -> None:
    serve(client, "dead")
    enqueue(client, 9, b"a", b"b")
    (first, _), (second, _) = take(client, "dead")
    again = [_GROUP, "dead", first, b"a+", second, b"b+"]
    assert run(client, queue_scripts.REQUEUE, [_QUEUE], *again) == 2
    assert run(client, queue_scripts.REQUEUE, [_QUEUE], *again) == 0
    assert client.xinfo_consumers(_QUEUE, _GROUP) == []
    assert [value for _, value in take(client, "alive")] == [b"a+", b"b+"]


def test_a_runner_is_not_forgotten_while_something_is_pending_at_it(client: Any) -> None:
    serve(client, "dead")
    enqueue(client, 9, b"a", b"b")
    (first, _), _ = take(client, "dead")
    assert run(client, queue_scripts.REQUEUE, [_QUEUE], _GROUP, "dead", first, b"a+") == 1
    assert [consumer["pending"] for consumer in client.xinfo_consumers(_QUEUE, _GROUP)] == [1]


def test_an_asynchronous_prediction_that_is_submitted_twice_is_in_the_queue_once(client: Any) -> None:
    serve(client, "r")
    places = Places("m")
    kept = [places.prefix + "id", places.index, *map(places.of_all, ("bytes", "open", "request:id", "lines"))]
    arguments = (9, named(b"id"), "id", b"{}", 60_000, 9, 10_000, places.prefix, "", 1, "32 32")
    for _ in range(2):
        assert run(client, SUBMIT, [_QUEUE, _SERVING, *kept], *arguments) == 1
    assert (client.xlen(_QUEUE), client.llen(kept[0]), client.zcard(places.index)) == (1, 1, 1)


def test_a_write_tells_between_which_entries_it_lies(client: Any) -> None:
    serve(client, "r")
    taken, first, last, runners = run(client, queue_scripts.ENQUEUE, [_QUEUE, _SERVING], 9, b"a", b"b", b"c")
    enqueue(client, 9, b"d")
    assert (taken, runners, [fields[b"r"] for _, fields in client.xrange(_QUEUE, first, last)]) == (
        3,
        1,
        [b"a", b"b", b"c"],
    )


def named(request_id: bytes) -> bytes:
    return queue_pb2.PredictionRequest(request_id=request_id, signature="s").SerializeToString()


def test_what_no_runner_has_taken_can_be_cancelled_and_nothing_else(client: Any) -> None:
    serve(client, "r")
    span = run(client, queue_scripts.ENQUEUE, [_QUEUE, _SERVING], 9, named(b"taken"))[1:3]
    take(client, "r")
    other = run(client, queue_scripts.ENQUEUE, [_QUEUE, _SERVING], 9, named(b"one"), named(b"two"), b"garbage")[1:3]
    assert run(client, queue_scripts.CANCEL, [_QUEUE], _GROUP, *span, b"taken", b"one") == 0
    assert run(client, queue_scripts.CANCEL, [_QUEUE], _GROUP, *other, b"two", b"nobody") == 1
    assert run(client, queue_scripts.CANCEL, [_QUEUE], _GROUP, *other, b"two") == 0
    assert [value for _, value in take(client, "r")] == [named(b"one"), b"garbage"]


def test_requests_can_be_cancelled_before_the_first_runner_came(client: Any) -> None:
    client.xgroup_destroy(_QUEUE, _GROUP)
    serve(client, "r")
    span = run(client, queue_scripts.ENQUEUE, [_QUEUE, _SERVING], 9, named(b"a"))[1:3]
    assert run(client, queue_scripts.CANCEL, [_QUEUE], _GROUP, *span, b"a") == 1
