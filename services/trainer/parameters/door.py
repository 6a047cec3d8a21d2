"""How processes of other trainers come to an asynchronous round: they dial a port of its chief and say its secret.

    hello    36 bytes: the secret's SHA-256, then, big-endian in 2 bytes each and with a sign, the rank and whom it is
             meant for: -1 the chief, else the number of a parameter server
    answer   none: who is not admitted finds the connection closed

A connection meant for a parameter server is handed on to its process.
"""

import hashlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from types import TracebackType

from services.trainer.parameters.server import ParameterServer

COMING_SECONDS = 30.0
"""How long a round waits at its start for those that belong to its team, and they for its chief."""
CHIEF = -1
_HELLO = struct.Struct(">32shh")
_HELLO_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_BACKLOG = 128


class Door:
    """The chief's side; listens from its making until it is closed.

    Args:
        address: host:port under which the others know it; on a host that is not the loopback it listens on all
            interfaces.
    """

    def __init__(self, address: str, secret: str) -> None:
        host, _, port = address.rpartition(":")
        self._secret = _digest(secret)
        if host in ("127.0.0.1", "localhost"):
            self._listener = socket.create_server((host, int(port)), backlog=_BACKLOG)
            return
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._listener = socket.create_server(
            ("", int(port)), family=family, backlog=_BACKLOG, dualstack_ipv6=socket.has_dualstack_ipv6()
        )

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def admitted(
        self, ranks: Collection[int], to_servers: Sequence[socket.socket], *, seconds: float = COMING_SECONDS
    ) -> dict[int, socket.socket]:
        """Waits for so long until all of these have come; the chief's connections to those that have, by rank.

        Args:
            to_servers: where each server waits for what is handed to it (`serve_handed`).
        """
        wanted = {(rank, to) for rank in ranks for to in range(CHIEF, len(to_servers))}
        found = dict[int, socket.socket]()
        deadline = time.monotonic() + seconds
        while wanted and (left := deadline - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                break
            hello = self._heard(connection)
            if hello not in wanted:
                connection.close()
                continue
            wanted.discard(hello)
            rank, to = hello
            if to == CHIEF:
                found[rank] = connection
                continue
            with connection, suppress(OSError):  # a server that has died is seen by the coordinator
                socket.send_fds(to_servers[to], [b"c"], [connection.fileno()])
        for rank in {rank for rank, _ in wanted} & found.keys():
            found.pop(rank).close()
        return found

    def _heard(self, connection: socket.socket) -> tuple[int, int] | None:
        """Rank and whom it wants; None where it does not know the secret in time."""
        received, deadline = b"", time.monotonic() + _HELLO_SECONDS
        while len(received) < _HELLO.size:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                part = connection.recv(_HELLO.size - len(received))
            except OSError:
                return None
            if not part:
                return None
            received += part
        digest, rank, to = _HELLO.unpack(received)
        if not hmac.compare_digest(digest, self._secret):
            return None
        _keep_alive(connection)
        connection.settimeout(None)
        return int(rank), int(to)


def dialled(address: str, secret: str, *, rank: int, servers: int) -> list[socket.socket]:
    """Connections to the chief and to each server, in this order. Raises OSError: the chief cannot be reached in
    time."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + COMING_SECONDS
    found = list[socket.socket]()
    for to in range(CHIEF, servers):
        while True:
            try:
                connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_HELLO_SECONDS)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        _keep_alive(connection)
        connection.settimeout(None)
        connection.sendall(_HELLO.pack(_digest(secret), rank, to))
        found.append(connection)
    return found


def serve_handed(server: ParameterServer, handed: socket.socket) -> None:
    """Has the server answer what a door hands to it, each connection in a thread, until the door's side is closed."""
    while True:
        word, files, *_ = socket.recv_fds(handed, 1, 1)
        if not word:
            return
        for number in files:
            threading.Thread(target=server.serve, args=(socket.socket(fileno=number),), daemon=True).start()


def _keep_alive(connection: socket.socket) -> None:
    """A peer whose machine is gone is given up after some 15 s."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
