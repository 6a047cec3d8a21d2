"""Which processes compute a round, and which of them this one is. Imports no TensorFlow: control uses it too."""

import json
import socket
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ClusterSpec:
    """Attributes:
    addresses: host:port of every worker, the chief first.
    rank: of this process among them.
    """

    addresses: tuple[str, ...]
    rank: int

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def of_rank(self, rank: int) -> "ClusterSpec":
        return replace(self, rank=rank)

    def to_json(self) -> str:
        """As TensorFlow reads it; every process is a worker, the first of them leads."""
        task = {"type": "worker", "index": self.rank}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def on_this_machine(count: int) -> ClusterSpec:
    """A cluster of so many processes on free ports of the loopback, seen from the first."""
    return ClusterSpec(tuple(f"127.0.0.1:{port}" for port in free_ports(count)), rank=0)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; TensorFlow's servers bind them a moment later."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))  # as TensorFlow will: on all interfaces
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
