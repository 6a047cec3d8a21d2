"""A Redis Cluster of processes on loopback: three masters, each with a third of the slots, and a replica of each where
a test fails one over."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from testing.processes import free_port_with
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_MASTERS = 3
_BUS = 10_000
"""So far above a node's port is the port on which nodes talk to each other."""
_OPTIONS = (
    "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
    "--cluster-replica-validity-factor", "0",
)  # fmt: skip
_THE_MODEL = b"{m}"


class RedisCluster:
    """What a test does to one Redis it does to the master that has the keys of model m."""

    def __init__(self, directory: Path, *, has_replicas: bool = False) -> None:
        names = [f"master-{number}" for number in range(_MASTERS)]
        others = [f"replica-{number}" for number in range(_MASTERS * has_replicas)]
        nodes = [RedisServer(directory / name, free_port_with(_BUS), arguments=_OPTIONS) for name in (*names, *others)]
        self.masters, self.replicas = nodes[:_MASTERS], nodes[_MASTERS:]
        """As at the start: the first have the first slots."""
        self._is_joined = False

    @property
    def url(self) -> str:
        first, *others = self.masters
        return f"{first.url}?cluster_nodes={','.join(f'127.0.0.1:{node.port}' for node in others)}"

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return self.master_of(_THE_MODEL).process

    def client(self) -> Any:
        return self.master_of(_THE_MODEL).client()

    def start(self) -> None:
        for node in self._nodes:
            if not node.is_up():
                node.start()
        if not self._is_joined:
            self._join()
            self._is_joined = True
        wait_until(lambda: all(map(self._is_whole, self._nodes)), "the cluster is whole")

    def is_up(self) -> bool:
        return all(node.is_up() for node in self._nodes)

    def kill(self) -> None:
        self.master_of(_THE_MODEL).kill()

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()

    def forget_stored(self) -> None:
        self.master_of(_THE_MODEL).forget_stored()

    def flush(self) -> None:
        for node in self.masters:
            node.flush()

    def master_of(self, key: bytes) -> RedisServer:
        return self.masters[_owner(key_slot(key))]

    def replica_of(self, key: bytes) -> RedisServer:
        return self.replicas[_owner(key_slot(key))]

    @property
    def _nodes(self) -> list[RedisServer]:
        return [*self.masters, *self.replicas]

    def _join(self) -> None:
        for number, node in enumerate(self._nodes):
            with node.client() as client:
                client.cluster("SET-CONFIG-EPOCH", number + 1)
                if node in self.masters:
                    client.cluster("ADDSLOTS", *(s for s in range(REDIS_CLUSTER_HASH_SLOTS) if _owner(s) == number))
                client.cluster("MEET", "127.0.0.1", self.masters[0].port)
        for master, replica in zip(self.masters, self.replicas, strict=False):
            with master.client() as client, replica.client() as follows:
                name = client.cluster("MYID").decode()
                wait_until(partial(_knows, follows, name), "the nodes have met")
                follows.cluster("REPLICATE", name)

    def _is_whole(self, node: RedisServer) -> bool:
        with node.client() as client:
            if client.cluster("INFO")["cluster_state"] != "ok" or len(client.cluster("NODES")) != len(self._nodes):
                return False
            replication = client.info("replication")
        return bool(replication.get("master_link_status", "up") == "up")


def _knows(node: Any, name: str) -> bool:
    return name in str(node.cluster("NODES"))


def _owner(slot: int) -> int:
    return slot * _MASTERS // REDIS_CLUSTER_HASH_SLOTS


@contextmanager
def a_redis(directory: Path) -> Iterator[RedisServer | RedisCluster]:
    """A Redis, or, where HEADRACE_TEST_REDIS_CLUSTER is set, a cluster."""
    server = RedisCluster(directory) if os.environ.get("HEADRACE_TEST_REDIS_CLUSTER") else RedisServer(directory)
    server.start()
    yield server
    server.stop()
