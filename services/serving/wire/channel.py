"""Messages between the processes of a replica: lines of JSON over a Unix socket pair."""

import contextlib
import select
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

Message = Mapping[str, Any]
_RECEIVE_BYTES = 64 * 1024
_MOST_FDS = 16
_SEND_TIMEOUT_SECONDS = 5.0
_FLUSH_MILLISECONDS = 20
"""For a side that reads, but not as fast as a long line is written."""


class ChannelClosed(Exception):
    """The other side is gone."""


class JsonChannel:
    """An end of a socket pair. A thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.settimeout(_SEND_TIMEOUT_SECONDS)
        self._partial = b""
        self._unsent = b""
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, *, fds: Iterable[int] = ()) -> None:
        """Sends a message, with copies of open files; raises ChannelClosed."""
        self.send_line(orjson.dumps(message) + b"\n", fds=fds)

    def send_line(self, line: bytes, *, fds: Iterable[int] = ()) -> None:
        """Sends an encoded line, line end included; raises ChannelClosed, also when nobody reads for 5 s."""
        try:
            sent = socket.send_fds(self._socket, [line], list(fds))
            if sent < len(line):  # Sending nothing would fail where the line has had its effect: the peer has left.
                self._socket.sendall(line[sent:])
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def offer_line(self, line: bytes) -> None:
        """As send_line, but waits for nobody: the rest without room is sent by `flush`, which must
        have returned that nothing of another line is left."""
        self._unsent = line
        self.flush()

    def flush(self) -> bool:
        """Whether everything offered is sent now; waits some milliseconds at most. Raises ChannelClosed."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        try:
            while self._unsent and poll.poll(_FLUSH_MILLISECONDS):
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return not self._unsent

    def receive(self) -> list[dict[str, Any]]:
        """The messages that are there; call when the socket is readable. Raises ChannelClosed at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, _MOST_FDS)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        self._fds.extend(fds)
        if not data:
            raise ChannelClosed("end of file")
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [orjson.loads(line) for line in lines]

    def take_fd(self) -> int:
        """The next open file that came with a message, in the order of sending."""
        return self._fds.pop(0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
