"""Connections of a gRPC door that say nothing give way to those that come: gRPC closes newcomers past its bound.

A client that is closed so connects again with its next call. The kernel knows for how long a connection has been silent
(tcp(7), TCP_INFO); pings count as speech. Where one address has most connections, they are its own that give way.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_TCP_INFO_BYTES, _SILENT_AT = 56, 52
_DESCRIPTORS = Path("/proc/self/fd")
_LOOK_SECONDS = 0.2
_MOST_TIME_LOOKING = 0.05


def keep_room(port: int, most: int, is_running: Callable[[], bool]) -> None:
    """Closes connections to the port whenever more than `most` are open, in a thread that ends with the server."""
    threading.Thread(target=_look, args=(port, most, is_running), name="rpc-connections", daemon=True).start()


def _look(port: int, most: int, is_running: Callable[[], bool]) -> None:
    while is_running():
        began = time.monotonic()
        if sum(1 for _ in _DESCRIPTORS.iterdir()) > most:
            _close_silent(port, most)
        time.sleep(max(_LOOK_SECONDS, (time.monotonic() - began) / _MOST_TIME_LOOKING))


def _close_silent(port: int, most: int) -> None:
    by_address: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for path in list(_DESCRIPTORS.iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (silent_ms,) = struct.unpack_from("I", info, _SILENT_AT)
                by_address[connection.getpeername()[0]].append((silent_ms, int(path.name)))
    count = sum(map(len, by_address.values()))
    for silent in by_address.values():
        silent.sort()
    for _ in range(count - most):
        _, descriptor = max(by_address.values(), key=len).pop()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getsockname()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
