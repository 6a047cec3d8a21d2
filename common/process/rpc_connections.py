"""Connections of a gRPC door that say nothing give way to those that come: gRPC closes newcomers past its bound.

A client that is closed so connects again with its next call. The kernel knows for how long a connection has been silent
(tcp(7), TCP_INFO); pings count as speech. Where one address has most connections, they are its own that give way.
"""

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

_TCP_INFO_BYTES, _SILENT_AT = 56, 52
_DESCRIPTORS = Path("/proc/self/fd")
_LOOK_SECONDS, _FEW_SECONDS, _QUIET_SECONDS = 0.2, 1.0, 4.0
"""Between two looks; while there are few connections, an eighth of the most; while no more of them come."""
_MOST_TIME_LOOKING = 0.05


def keep_room(port: int, most: int, is_running: Callable[[], bool]) -> None:
    """Closes connections to the port whenever more than `most` are open, in a thread that ends with the server."""
    threading.Thread(target=_look, args=(port, most, is_running), name="rpc-connections", daemon=True).start()


def _look(port: int, most: int, is_running: Callable[[], bool]) -> None:
    count, few = most, _FEW_SECONDS
    while is_running():
        began, before, count = time.monotonic(), count, most
        with contextlib.suppress(OSError):  # No file is left to look with.
            if (count := sum(1 for _ in _DESCRIPTORS.iterdir())) > most:
                _close_silent(port, most)
        few = _FEW_SECONDS if count > before else min(2 * few, _QUIET_SECONDS)
        pause = few if count < most // 8 else _LOOK_SECONDS
        time.sleep(max(pause, (time.monotonic() - began) / _MOST_TIME_LOOKING))


def connections() -> Iterator[tuple[int, socket.socket]]:
    """The TCP connections of this process by descriptor, each as a copy of its socket that lasts until the next
    look."""
    for path in list(_DESCRIPTORS.iterdir()):
        descriptor = int(path.name)
        with contextlib.suppress(OSError):  # Closed meanwhile, or no connection.
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with _copy(descriptor) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    yield descriptor, connection


def _copy(descriptor: int) -> socket.socket:
    """Raises OSError, and leaves nothing open, for what is no socket."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _close_silent(port: int, most: int) -> None:
    by_address: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for descriptor, connection in connections():
        with contextlib.suppress(OSError):
            if connection.getsockname()[1] == port:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (silent_ms,) = struct.unpack_from("I", info, _SILENT_AT)
                by_address[connection.getpeername()[0]].append((silent_ms, descriptor))
    silent = {address: sorted(found) for address, found in by_address.items()}
    surplus = sum(map(len, silent.values())) - most
    closed = {max(silent.values(), key=len).pop()[1] for _ in range(surplus)}
    for descriptor, connection in connections() if closed else ():
        with contextlib.suppress(OSError):
            if descriptor in closed and connection.getsockname()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
