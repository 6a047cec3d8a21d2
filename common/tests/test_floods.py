"""Floods of HTTP/2 frames at gRPC's doors: others are answered, and nothing is kept of a flood."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.process.health import Health
from common.process.memory import anonymous_mb
from common.process.rpc import start_server
from common.process.rpc_aio import start_aio_server
from common.process.rpc_client import open_channel
from testing.http2_floods import BEYOND_KERNEL_BYTES, FLOODS, flood

_MOST_MB = 150
"""Of memory: gRPC keeps 110 at most, however long the headers of a call go on."""
_IS_STOPPED = {"pings", "settings"}
"""A door owes an answer to each of their frames."""
Door = Callable[[], AbstractContextManager[int]]


@contextmanager
def _with_threads() -> Iterator[int]:
    server, port = start_server("127.0.0.1:0", lambda server: None, service_names=(), service_health=Health())
    yield port
    server.stop(None)


@contextmanager
def _with_a_loop() -> Iterator[int]:
    loop, ports = asyncio.new_event_loop(), list[int]()
    stop = asyncio.Event()
    listens = threading.Event()

    async def serve() -> None:
        server, port = await start_aio_server(
            "127.0.0.1:0", lambda server: None, service_names=(), service_health=Health()
        )
        ports.append(port)
        listens.set()
        await stop.wait()
        await server.stop(None)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert listens.wait(60)
    yield ports[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)


@pytest.mark.parametrize("door", [_with_threads, _with_a_loop])
def test_memory_and_other_calls_during_floods(door: Door) -> None:
    asked = health_pb2.HealthCheckRequest()
    with door() as port, open_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(asked, timeout=60, wait_for_ready=True)
        for name in FLOODS:
            before = anonymous_mb(os.getpid())
            ends = list[str]()
            most = {"most_bytes": BEYOND_KERNEL_BYTES} if name in _IS_STOPPED else {}
            client = threading.Thread(target=lambda: ends.append(flood(port, name, **most)), daemon=True)  # noqa: B023 - used at once
            client.start()
            answered = 0
            while client.is_alive() or not answered:
                assert check(asked, timeout=60), name
                answered += 1
                client.join(0.02)
            assert anonymous_mb(os.getpid()) - before < _MOST_MB, name
            assert ends[0] in ({"stopped", "closed"} if name in _IS_STOPPED else {"stopped", "closed", "taken"}), name
