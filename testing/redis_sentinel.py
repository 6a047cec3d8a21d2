"""A Redis, its replica and a Sentinel, which makes the replica the master half a second after the Redis fell silent."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from testing.processes import free_port
from testing.redis_server import RedisServer, redis_binary
from testing.waiting import wait_until

_CONFIGURATION = """
port {port}
bind 127.0.0.1
sentinel monitor headrace 127.0.0.1 {master} 1
sentinel down-after-milliseconds headrace 500
sentinel failover-timeout headrace 5000
"""


@dataclass(frozen=True)
class Watched:
    url: str
    """That leads to the master, by way of the Sentinel."""
    master: RedisServer
    replica: RedisServer


@contextmanager
def watched_redis(directory: Path) -> Iterator[Watched]:
    master = RedisServer(directory / "master", port=free_port())
    master.start()
    follows = ("--replicaof", "127.0.0.1", str(master.port))
    replica = RedisServer(directory / "replica", port=free_port(), arguments=follows)
    replica.start()
    with redis.Redis.from_url(replica.url) as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
    port = free_port()
    configuration = directory / "sentinel.conf"
    configuration.write_text(_CONFIGURATION.format(port=port, master=master.port))
    sentinel = subprocess.Popen(
        [redis_binary(), str(configuration), "--sentinel"], cwd=directory, stdout=subprocess.DEVNULL
    )
    try:
        with redis.Redis(port=port) as client:
            wait_until(lambda: _knows_replica(client), "the Sentinel knows the replica")
        # The first address has no listener, as a Sentinel that died would have none.
        nobody = free_port()
        yield Watched(
            f"redis://127.0.0.1:{nobody}/0?sentinel_master=headrace&sentinels=127.0.0.1:{port}", master, replica
        )
    finally:
        sentinel.terminate()
        sentinel.wait(timeout=60)
        master.stop()
        replica.stop()


def _knows_replica(sentinel: "redis.Redis") -> bool:
    try:
        found = sentinel.sentinel_slaves("headrace")
    except redis.RedisError:
        return False
    return any(replica.get("master-link-status") == "ok" for replica in found)
