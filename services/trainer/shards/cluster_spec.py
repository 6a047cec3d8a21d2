"""Which processes compute a round, and which of them this one is. Imports no TensorFlow: control uses it too."""

import json
import random
import socket
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from common.errors import Unavailable

_FIRST_PORT, _MOST_TRIED = 10_000, 1000


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
    """Ports that nobody listens on; TensorFlow's servers bind them a moment later.

    They lie below those that the system gives to outgoing connections: one of these could take a port meanwhile. Raises
    Unavailable: there are not so many."""
    choices = random.SystemRandom().sample(range(_FIRST_PORT, _end_of_ports()), k=_MOST_TRIED)
    found = list(islice(filter(_is_free, choices), count))
    if len(found) < count:
        raise Unavailable(f"{count} free ports are needed, and of {_MOST_TRIED} from {_FIRST_PORT} on {len(found)} are")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # as TensorFlow will: on all interfaces
        except OSError:
            return False
    return True


def _end_of_ports() -> int:
    """The first port of outgoing connections; where these leave next to none, the end of all ports."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768
    return first if first >= _FIRST_PORT + _MOST_TRIED else 65_536
