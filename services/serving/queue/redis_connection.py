"""A thin Redis connection on the event loop: bytes out, replies in order, one callback each; no pool, no retry.

redis-py's asyncio client (8.1, with hiredis) took ten times as much CPU per command, which is the whole budget of a
prediction.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import hiredis

from common.errors import Unavailable
from common.redis_url import NOT_HERE, RedisUrl

Reply = object
"""bytes, int, None, a list of replies, or a hiredis.ReplyError."""
OnReply = Callable[[Reply], None]
Argument = bytes | str | int
_CONNECT_TIMEOUT_SECONDS = 2.0


def pack(*arguments: Argument) -> bytes:
    packed: bytes = hiredis.pack_command(arguments)
    return packed


class RedisConnection(asyncio.Protocol):
    """A connection. `on_lost` is called once when it ends, after which nothing is sent and no callback comes."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._reader = hiredis.Reader()
        self._callbacks: deque[OnReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._heard_at = time.monotonic()
        self.is_open = False

    def send(self, commands: bytes, *callbacks: OnReply, now: bool = False) -> None:
        """Writes packed commands, a callback per command. On a lost connection nothing happens.

        Args:
            now: do not leave the system call to the end of this turn of the loop, as uvloop does.
        """
        if not self.is_open or self._transport is None:
            return
        if not self._callbacks:
            self._heard_at = time.monotonic()
        self._callbacks.extend(callbacks)
        written = self._write_now(self._transport, commands) if now else 0
        if written < len(commands):
            self._transport.write(commands[written:])

    def _write_now(self, transport: asyncio.Transport, commands: bytes) -> int:
        """Returns how many bytes went out; the transport takes care of the others, and of a connection that is lost."""
        if self._descriptor < 0 or transport.is_closing() or transport.get_write_buffer_size():
            return 0
        try:
            return os.write(self._descriptor, commands)
        except OSError:
            return 0

    async def execute(self, *arguments: Argument, timeout_seconds: float = _CONNECT_TIMEOUT_SECONDS) -> Reply:
        """Sends a command and waits for its reply. Raises Unavailable: the connection is lost, no reply came in time,
        or Redis answered with an error."""
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answer(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        if not self.is_open:
            raise Unavailable("the connection to Redis is lost")
        self.send(pack(*arguments), answer)
        try:
            reply = await asyncio.wait_for(answered, timeout_seconds)
        except TimeoutError as error:
            raise Unavailable(f"Redis did not answer {arguments[0]!r} within {timeout_seconds:g} s") from error
        if isinstance(reply, hiredis.ReplyError):
            raise Unavailable(f"Redis answered {arguments[0]!r} with an error: {reply}")
        return reply

    def silent_seconds(self) -> float:
        """For how long a command has waited without anything arriving; 0 when none waits."""
        return time.monotonic() - self._heard_at if self._callbacks else 0.0

    def close(self) -> None:
        """Ends the connection at once; `on_lost` follows."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not asyncio's subclasses
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._descriptor = -1 if is_tls else transport.get_extra_info("socket").fileno()
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if not self._callbacks:  # an answer without a command
                    self.close()
                    return
                self._callbacks.popleft()(reply)
        except hiredis.ProtocolError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._callbacks.clear()
            self._on_lost()


def is_elsewhere(reply: Reply) -> bool:
    """Whether a node of a cluster answers that the key is not here, or not for now."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).partition(" ")[0] in NOT_HERE


async def connect(url: str, on_lost: Callable[[], None], *, key: bytes = b"") -> RedisConnection:
    """Connects, authenticates and selects the database of the URL.

    Args:
        url: of the form in common/redis_url.py.
        key: in a cluster, whose master is connected to.

    Raises:
        InvalidInput: the URL is of another form.
        Unavailable: Redis cannot be reached or does not let us in.
    """
    where = RedisUrl.parse(url)
    if where.fails_over:
        where = await asyncio.to_thread(where.located, key)
    loop = asyncio.get_running_loop()

    def protocol() -> RedisConnection:
        return RedisConnection(on_lost)

    if where.path:
        opened = loop.create_unix_connection(protocol, where.path)
    else:
        opened = loop.create_connection(protocol, where.host, where.port, ssl=where.context())
    try:
        connection = (await asyncio.wait_for(opened, _CONNECT_TIMEOUT_SECONDS))[1]
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"cannot reach Redis at {where.shown}: {error}") from error
    if login := where.login():
        await connection.execute("AUTH", *login)
    if where.database:
        await connection.execute("SELECT", str(where.database))
    return connection
