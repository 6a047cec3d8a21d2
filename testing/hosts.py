"""Hosts made of network namespaces: each has its own address on a switch, and a cable that can be pulled. Needs
root and iproute2. Files and memory are shared by all: a host here is a machine as far as the network shows it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SECONDS = 20


class Network:
    """A switch, in a separate namespace, so that this machine's packet filters see nothing of what hosts send each
    other; this process reaches it as the host with the last number 1.

    Args:
        subnet: the first three numbers of its addresses.
    """

    def __init__(self, subnet: str) -> None:
        self._subnet = subnet
        self._tag = f"hr{os.getpid() % 100_000}"
        self._switch = f"{self._tag}s"
        self._cable = f"{self._tag}c"
        self._hosts: list[str] = []
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        self.address = self._plug_in(self._cable, number=1, host=None)

    def add_host(self) -> "Host":
        number = len(self._hosts) + 2
        name = f"{self._tag}h{number}"
        _ip("netns", "add", name)
        self._hosts.append(name)
        _ip("-n", name, "link", "set", "lo", "up")
        return Host(name, self._plug_in("cable", number=number, host=name), self._switch)

    def close(self) -> None:
        """Takes hosts, cables and the switch away. A namespace goes when its last process has ended."""
        _ip("link", "delete", self._cable)
        for name in [*self._hosts, self._switch]:
            _ip("netns", "delete", name)

    def _plug_in(self, cable: str, *, number: int, host: str | None) -> str:
        """The address at the end of a new cable between a host (None: this process's namespace) and the switch, where
        its other end has the host's name."""
        there, port, address = ("-n", host) if host else (), host or "here", f"{self._subnet}.{number}"
        _ip(*there, "link", "add", cable, "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
        _ip(*there, "address", "add", f"{address}/24", "dev", cable)
        _ip(*there, "link", "set", cable, "up")
        return address


class Host:
    """Attributes:
    address: of its end of the cable.
    """

    def __init__(self, name: str, address: str, switch: str) -> None:
        self.address = address
        self._name, self._switch = name, switch

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """The process of the command on this host: `ip` becomes it."""
        with log.open("ab") as file:
            whole = ["ip", "netns", "exec", self._name, *command]
            return subprocess.Popen(whole, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def pull_cable(self) -> None:
        """Nothing reaches it or leaves it, and no connection is closed: so looks a host that lost its power."""
        _ip("-n", self._switch, "link", "set", self._name, "down")

    def plug_cable(self) -> None:
        _ip("-n", self._switch, "link", "set", self._name, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=_SECONDS)
