"""A blocking connection to Redis on hiredis, for runners and managers: many commands in one write, replies in order.

redis-py spends more per command than a small model does; a runner's loop needs no more than this.
"""

import contextlib
import socket
import time
from collections.abc import Sequence

import hiredis

from common.errors import Unavailable
from common.redis_url import NOT_HERE, RedisUrl

Argument = bytes | str | int | float
_RECEIVE_BYTES = 256 * 1024


class RedisRefused(Exception):
    """Redis answered a command with an error; `code` is its first word (NOSCRIPT, NOGROUP, ...)."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.partition(" ")[0]


class BlockingRedis:
    """A connection. Not thread-safe. After Unavailable it is closed; the next command opens it again."""

    def __init__(self, url: str, *, key: bytes = b"", timeout_seconds: float = 5.0) -> None:
        """Does not connect.

        Args:
            url: of the form in common/redis_url.py.
            key: in a cluster, whose master is connected to; all keys of all commands have its hash tag.

        Raises:
            InvalidInput: the URL is of another kind.
        """
        self._url = RedisUrl.parse(url)
        self._key = key
        self._shown = f"Redis at {self._url.shown}"
        self._timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader()

    def connect(self) -> None:
        """Opens the connection anew; raises Unavailable."""
        self.close()
        self._reader = hiredis.Reader(notEnoughData=_MISSING)
        try:
            self._socket = _open(self._url.located(self._key), self._timeout_seconds)
            if login := self._url.login():
                self.call("AUTH", *login)
            if self._url.database:
                self.call("SELECT", self._url.database)
        except (OSError, RedisRefused) as error:
            raise self._lost(error) from error

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def call(self, *command: Argument) -> object:
        """Sends a command and waits for its answer; raises RedisRefused or Unavailable."""
        answer = self.exchange([command])[0]
        if isinstance(answer, RedisRefused):
            raise answer
        return answer

    def demand(self, *command: Argument) -> object:
        """Like call, where a refusal can only mean that Redis is not itself: it raises Unavailable then too."""
        try:
            return self.call(*command)
        except RedisRefused as error:
            raise Unavailable(f"{self._shown} refused {command[0]!s}: {error}") from error

    def exchange(self, commands: Sequence[Sequence[Argument]], *, timeout_seconds: float | None = None) -> list[object]:
        """Sends the commands in a single write; returns their answers in order, refusals as RedisRefused values.

        Args:
            timeout_seconds: how long all the answers may take.

        Raises:
            Unavailable: no connection, or it broke; nobody knows then which commands were done.
        """
        if self._socket is None:
            self.connect()
        assert self._socket is not None
        deadline = time.monotonic() + (timeout_seconds or self._timeout_seconds)
        answers: list[object] = []
        try:
            self._socket.settimeout(self._timeout_seconds)
            self._socket.sendall(b"".join(hiredis.pack_command(tuple(command)) for command in commands))
            while len(answers) < len(commands):
                answer = self._reader.gets()
                if answer is _MISSING:
                    self._receive(deadline)
                    continue
                answers.append(_refusal(str(answer)) if isinstance(answer, hiredis.ReplyError) else answer)
        except (OSError, hiredis.ProtocolError) as error:
            raise self._lost(error) from error
        return answers

    def _receive(self, deadline: float) -> None:
        assert self._socket is not None
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left_seconds)
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("it closed the connection")
        self._reader.feed(data)

    def _lost(self, error: Exception) -> Unavailable:
        self.close()
        return Unavailable(f"{self._shown} is away: {error}")


def _refusal(message: str) -> RedisRefused:
    refused = RedisRefused(message)
    if refused.code in NOT_HERE:
        raise ConnectionError(message)
    return refused


_MISSING = object()
"""The reader's answer while a reply is not whole; None is a reply of its own."""


def _open(url: RedisUrl, timeout_seconds: float) -> socket.socket:
    if url.path:
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(timeout_seconds)
        opened.connect(url.path)
        return opened
    opened = socket.create_connection((url.host, url.port), timeout=timeout_seconds)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = url.context()
    return context.wrap_socket(opened, server_hostname=url.host) if context else opened
