"""Are the ports free, and if not, who has them?"""

import errno
import random
import socket
from collections.abc import Callable, Collection, Mapping

from common.errors import Conflict
from headrace.places import GRPC_PORT_OF, HOST, HTTP_PORT_OF, REPLICA_PORT_STEP

_OFFSETS = range(1_000, 24_000, 20)
_TRIES = 50
_START_TRIES = 5


class PortsTaken(Conflict):
    """Another process listens where the platform would."""


def check_free(name_of: Mapping[int, str]) -> None:
    """`name_of` is {port: who wants it}. Raises PortsTaken: with each port that is taken, and its holder where the
    system tells."""
    taken = [port for port in name_of if not _is_free(port)]
    if taken:
        holders = "; ".join(f"{port} ({name_of[port]}) is held by {_holder(port)}" for port in taken)
        raise PortsTaken(f"port {holders}; stop it, or move all ports with --port-offset N")


def find_free_offset(replica_count: int, trainer_count: int = 1, *, also: Collection[int] = ()) -> int:
    """A random offset at which every port of a platform is free, so that platforms started at once rarely meet.

    Args:
        also: ports that must be free at the offset besides.

    Raises:
        Conflict: none was found.
    """
    for offset in random.sample(_OFFSETS, _TRIES):
        wanted = [*HTTP_PORT_OF.values(), *GRPC_PORT_OF.values(), *also]
        for service, count in (("serving", replica_count), ("trainer", trainer_count)):
            for ports in (HTTP_PORT_OF, GRPC_PORT_OF):
                wanted += [ports[service] + REPLICA_PORT_STEP * index for index in range(count)]
        if all(_is_free(port + offset) for port in wanted):
            return offset
    raise Conflict("no free ports were found for a platform on this machine")


def start_at_free_offset(start: Callable[[int], None], find: Callable[[], int]) -> None:
    """Starts a platform at an offset that find() gives, and anew where another process took a port meanwhile. Raises
    PortsTaken: each of five offsets was lost."""
    for tries_left in reversed(range(_START_TRIES)):
        try:
            start(find())
        except PortsTaken:
            if not tries_left:
                raise
        else:
            return


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True


def _holder(port: int) -> str:
    import psutil  # only when something is wrong; costs tens of milliseconds

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid}, {command[:80]}"
    except psutil.Error:
        pass
    return "a process of another user"
