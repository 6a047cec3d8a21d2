"""Ports and processes of this machine, for tests."""

import random
import socket
from pathlib import Path

_FIRST_PORT, _LAST_PORT = 15_000, 32_000
"""Below Linux's ephemeral ports: those are given to outgoing connections, also while a server that is to come back is
down."""
_CHANCE = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """That many different ports, none of which this process was given before."""
    found: list[int] = []
    while len(found) < count:
        port = _CHANCE.randrange(_FIRST_PORT, _LAST_PORT)
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(port)
    return found


def free_port_with(offset: int) -> int:
    """A free port, with another free port as far above it."""
    while True:
        port = free_port()
        if port + offset <= _LAST_PORT and _is_free(port + offset):
            _given.add(port + offset)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_running(pid: int) -> bool:
    """False once it has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Of the process, or of the fork for which a client of a warm Python stands."""
    pid = behind(pid)
    return [int(child) for child in _read(Path(f"/proc/{pid}/task/{pid}/children")).split()]


def family_of(pid: int) -> list[int]:
    """The process, all that it has started, and the forks for which clients of a warm Python among them stand."""
    return [pid, *({behind(pid)} - {pid}), *(member for child in children_of(pid) for member in family_of(child))]


def behind(pid: int) -> int:
    """The fork for which a client of a warm Python stands (testing/warm_python/server.py); else the process itself."""
    those = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if _read(path) == f"for {pid}\n"]
    parents = {int(path.name): _read(path / "stat").rpartition(")")[2].split()[1:2] for path in those}
    return next((fork for fork, parent in parents.items() if parent and int(parent[0]) not in parents), pid)


def _read(path: Path) -> str:
    """Empty where the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
