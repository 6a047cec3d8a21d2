"""A Redis behind TLS that knows a user with a password. The TLS is Python's: not every build of Redis speaks it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.access.authority import AUTHORITY, CERTIFICATE, KEY, issue_missing
from common.process.tls import Tls, TlsFiles
from testing.redis_server import RedisServer

PASSWORD = "s3cret:of/Redis"
_PART_BYTES = 65_536


@contextmanager
def secure_redis(directory: Path) -> Iterator[str]:
    """host:port/db?option of rediss://; `password` in the directory holds that of the user reader."""
    issue_missing(directory, ["redis"], hosts=["127.0.0.1"], days=1)
    (directory / "password").write_text(PASSWORD + "\n")
    server = RedisServer(directory / "data", arguments=("--user", "reader", "on", f">{PASSWORD}", "~*", "&*", "+@all"))
    server.start()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        listening = asyncio.run_coroutine_threadsafe(_listen(directory, server.socket_path), loop).result(60)
        port = listening.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}/1?ssl_ca_certs={directory / AUTHORITY}"
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
        server.stop()


async def _listen(directory: Path, behind: Path) -> asyncio.Server:
    """A server of TLS on loopback."""
    folder = directory / "redis"
    tls = Tls.of(TlsFiles(str(folder / CERTIFICATE), str(folder / KEY)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(behind))
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls.server_context())


async def _end(listening: asyncio.Server) -> None:
    """With its connections: a task that a later test's collector destroys fails that test."""
    listening.close()
    open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in open_tasks:
        task.cancel()
    await asyncio.gather(*open_tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PART_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
