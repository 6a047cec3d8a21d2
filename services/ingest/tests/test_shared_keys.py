"""Two replicas of ingest over one log: a request with a key is taken once, whoever gets it and whatever is killed."""

import asyncio
import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from common.errors import Conflict, Unavailable
from common.eventlog.segment_log import SegmentLog
from services.ingest.once.keys import Answer, Refusal, RequestKey
from services.ingest.once.shared_keys import SharedKeys, SharedWindow
from services.ingest.tests.conftest import event, ids_in, records_of
from services.ingest.tests.processes import Process, register
from testing import plain_http
from testing.processes import free_port
from testing.redis_cluster import RedisCluster
from testing.redis_sentinel import watched_redis
from testing.redis_server import RedisServer
from testing.registry_server import RegistryServer
from testing.secure_redis import secure_redis
from testing.waiting import wait_until


class Replica(Process):
    def __init__(self, directory: Path, **settings: object) -> None:
        """steer: the folder that steers its log, see slow_log.py."""
        self.steer = directory / "steer"
        self.steer.mkdir(parents=True)
        super().__init__(directory, "services.ingest.tests.slow_log:main", slow_log_dir=self.steer, **settings)

    def ask(self, key: str, *ids: int) -> tuple[int, Any]:
        """(status, answer)."""
        return self.send(map(event, ids), key=key)[:2]

    def send_beside(self, key: str, *ids: int) -> "tuple[threading.Thread, list[tuple[int, Any]]]":
        found: list[tuple[int, Any]] = []

        def send() -> None:
            try:
                found.append(self.ask(key, *ids))
            except (OSError, http.client.HTTPException):
                found.append((0, None))

        thread = threading.Thread(target=send)
        thread.start()
        return thread, found

    def hold(self, where: str) -> None:
        (self.steer / f"hold-{where}").touch()

    def go_on(self) -> None:
        for path in self.steer.iterdir():
            path.unlink()

    def wait_until_held(self) -> None:
        wait_until((self.steer / "appending").exists, "the append waits")

    def start(self) -> None:
        super().start()
        self.wait_ready()


class Platform:
    """A registry, Redis, and two replicas over one segment log; started once for the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = RegistryServer(directory / "registry")
        self.redis = RedisServer(directory, port=free_port(), appendfsync="always")
        settings: dict[str, object] = {
            "registry_address": self.registry.address, "event_log": f"segments:{directory}/log",
            "redis_url": self.redis.url, "key_claim_seconds": 6, "append_timeout_seconds": 5, "key_wait_seconds": 15,
        }  # fmt: skip
        self.replicas = [Replica(directory / f"replica-{number}", **settings) for number in range(2)]

    def start(self) -> None:
        self.redis.start()
        self.registry.start()
        register(self.registry)
        for replica in self.replicas:
            replica.start()

    def stop(self) -> None:
        for replica in self.replicas:
            replica.kill()
        self.registry.kill()
        self.redis.kill()

    def times_in_log(self, number: int) -> int:
        with closing(SegmentLog(self.directory / "log")) as log:
            return ids_in(records_of(log)).count(number)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    made = Platform(tmp_path_factory.mktemp("shared-keys"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def replicas(platform: Platform) -> Iterator[tuple[Replica, Replica]]:
    first, second = platform.replicas
    yield first, second
    for replica in platform.replicas:
        replica.go_on()


def test_two_replicas_given_the_same_request_at_once_append_it_once(
    platform: Platform, replicas: tuple[Replica, Replica]
) -> None:
    first, second = replicas
    first.hold("before")
    winner, won = first.send_beside("at once", 1, 2)
    first.wait_until_held()
    loser, lost = second.send_beside("at once", 1, 2)
    first.go_on()
    for thread in (winner, loser):
        thread.join(60)
    assert (won[0][0], won[0][1]["duplicate"]) == (200, False)
    assert lost == [(200, won[0][1] | {"duplicate": True})], "the loser gives the winner's answer"
    assert platform.times_in_log(1) == 1
    assert second.ask("at once", 1, 3)[0] == 409, "the key is of another body"
    assert second.get("/v1/streams/flights")[1]["keys"]["shared"] is True


def test_a_replica_killed_between_claim_and_append_leaves_the_key_to_the_other(
    platform: Platform, replicas: tuple[Replica, Replica]
) -> None:
    first, second = replicas
    first.hold("before")
    thread, _ = first.send_beside("before", 11)
    first.wait_until_held()
    first.kill()
    thread.join(60)
    first.go_on()
    status, answer = second.ask("before", 11)
    assert (status, answer["duplicate"]) == (200, False)
    first.start()
    assert first.ask("before", 11) == (200, answer | {"duplicate": True})
    assert platform.times_in_log(11) == 1


def test_a_replica_killed_between_append_and_note_is_answered_for_by_the_log(
    platform: Platform, replicas: tuple[Replica, Replica]
) -> None:
    first, second = replicas
    first.hold("after")
    thread, _ = first.send_beside("after", 21)
    first.wait_until_held()
    first.kill()
    thread.join(60)
    first.go_on()
    first.start()  # its claim ends when it has announced itself; the other replica need not wait for the time
    status, answer = second.ask("after", 21)
    assert (status, answer["duplicate"], answer["accepted"]) == (200, True, 1)
    assert platform.times_in_log(21) == 1


def test_a_log_that_goes_away_within_an_append_is_answered_at_once_and_the_key_is_held_until_it_is_known(
    platform: Platform, replicas: tuple[Replica, Replica]
) -> None:
    """The append goes on all the while, so neither replica may begin a second one."""
    first, second = replicas
    first.hold("before")
    thread, found = first.send_beside("away", 31)
    first.wait_until_held()
    (first.steer / "away").touch()
    thread.join(60)
    assert found[0][0] == 503
    assert first.ask("", 32)[0] == 503, "who comes now is refused before anything is tried"
    claims = [
        key for key in _redis(platform).scan_iter("{ingest}:key:*") if _redis(platform).hget(key, "state") == b"claimed"
    ]
    assert len(claims) == 1
    first.go_on()
    status, answer = second.ask("away", 31)
    assert (status, answer["duplicate"]) == (200, True)
    wait_until(lambda: first.ask("", 33)[0] == 200, "the first replica takes events again")
    assert (platform.times_in_log(31), platform.times_in_log(32)) == (1, 0)


def test_without_redis_requests_with_a_key_are_refused_and_others_are_not(
    platform: Platform, replicas: tuple[Replica, Replica]
) -> None:
    first, second = replicas
    answer = first.ask("restart", 41)[1]
    platform.redis.kill()
    status, refusal = second.ask("restart", 41)
    assert (status, "idempotency key" in refusal["error"]["message"]) == (503, True)
    counted = plain_http.get(f"http://127.0.0.1:{second.port}/metrics", timeout=60).text
    assert 'headrace_ingest_shared_keys_total{outcome="unavailable"}' in counted
    assert second.ask("", 42)[0] == 200
    assert first.ask("restart", 41) == (200, answer | {"duplicate": True}), "it remembers its own"
    platform.redis.start()
    wait_until(lambda: second.ask("restart", 41) == (200, answer | {"duplicate": True}), "the key is known again")
    for key in _redis(platform).scan_iter("{ingest}:key:*"):
        _redis(platform).delete(key)
    assert second.ask("restart", 41)[1]["duplicate"] is True, "what Redis has lost the log knows"
    assert platform.times_in_log(41) == 1


def test_the_window_is_bounded_by_number_and_time(platform: Platform) -> None:
    window = SharedWindow(window_seconds=100.0, window_count=3, claim_seconds=50.0, wait_seconds=0.0)
    answer = Answer(2, (Refusal(1, "no"),), {0: 7})

    async def fill() -> list[Answer | None]:
        keys = SharedKeys(platform.redis.url, window, holder="unit", incarnation=1)
        requests = [RequestKey.of(f"bounded {number}", b"body") for number in range(5)]
        for request in requests:
            assert await keys.claim("unit", request) is None
            await keys.keep("unit", request, answer)
        with pytest.raises(Conflict):
            await keys.claim("unit", RequestKey.of("bounded 4", b"another body"))
        found = [await keys.claim("unit", request) for request in requests]
        await keys.close()
        return found

    server = _redis(platform)
    server.delete("{ingest}:done")
    known = Answer(2, (Refusal(1, "no"),), {0: 7}, duplicate=True)
    assert asyncio.run(fill()) == [None, None, known, known, known]
    assert server.zcard("{ingest}:done") == 3
    name = "{ingest}:key:unit:" + RequestKey.of("bounded 4", b"").key_digest.hex()
    assert 0 < server.pttl(name) <= 100_000


def test_keys_of_one_millisecond_leave_the_window_in_their_order(platform: Platform) -> None:
    """Of many keys in a row several are done within one millisecond."""
    window = SharedWindow(window_seconds=100.0, window_count=1, claim_seconds=50.0, wait_seconds=0.0)

    async def fill() -> list[bytes]:
        keys, left = SharedKeys(platform.redis.url, window, holder="unit", incarnation=1), []
        for number in range(300):
            request = RequestKey.of(f"ordered {number}", b"body")
            await keys.claim("unit", request)
            await keys.keep("unit", request, Answer(1, (), {0: number}))
            left += server.zrange("{ingest}:done", 0, -1)
        await keys.close()
        return left

    server = _redis(platform)
    server.config_set("appendfsync", "no")
    expected = [RequestKey.of(f"ordered {number}", b"").key_digest.hex() for number in range(300)]
    left = asyncio.run(fill())
    server.config_set("appendfsync", "always")
    assert [name.decode().rpartition(":")[2] for name in left] == expected


def _redis(platform: Platform) -> Any:
    return redis_py.Redis.from_url(platform.redis.url)


def test_replicas_share_keys_in_a_redis_cluster(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path)
    cluster.start()
    window, request = SharedWindow(60.0, 100, 60.0, 0.0), RequestKey(b"a", b"b")

    async def claim_both() -> Answer | None:
        first, second = (SharedKeys(cluster.url, window, holder=name, incarnation=1) for name in ("one", "two"))
        try:
            assert await first.claim("flights", request) is None
            with pytest.raises(Unavailable, match="replica one has the same idempotency key"):
                await second.claim("flights", request)
            await first.keep("flights", request, Answer(2, (), {0: 7}))
            return await second.claim("flights", request)
        finally:
            await first.close()
            await second.close()

    assert asyncio.run(claim_both()) == Answer(2, (), {0: 7}, duplicate=True)
    with cluster.master_of(b"{ingest}").client() as master:
        assert master.keys("{ingest}:key:flights:*")
    cluster.stop()


def test_keys_are_shared_over_tls_with_a_password_from_a_file(tmp_path: Path) -> None:
    async def claim(url: str) -> Answer | None:
        keys = SharedKeys(url, SharedWindow(60.0, 100, 60.0, 1.0), holder="one", incarnation=1)
        try:
            return await keys.claim("flights", RequestKey(b"a", b"b"))
        finally:
            await keys.close()

    with secure_redis(tmp_path) as place:
        assert asyncio.run(claim(f"rediss://reader@{place}&password_file={tmp_path / 'password'}")) is None
        for url in (
            f"rediss://reader:wrong@{place}",
            f"rediss://{place.partition('?')[0]}",
            f"redis://{place.partition('?')[0]}",
        ):
            with pytest.raises(Unavailable):
                asyncio.run(claim(url))
    with watched_redis(tmp_path) as watched:
        assert asyncio.run(claim(watched.url)) is None
        with redis_py.Redis.from_url(watched.master.url) as master:
            assert master.keys(), "at the master that the Sentinel names"
