"""What one principal may hold of a door: its connections and its calls, while others find room."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.access.guard import ANYBODY, Guard
from common.access.shares import Shares
from common.errors import Overloaded
from common.process.health import Health
from common.process.http_door import HttpBounds
from common.process.rpc import start_server
from common.process.rpc_aio import start_aio_server
from common.process.web import COMMON_RULES, WebServer, bind, create_app
from testing.walking import access_in, bearer

_SECONDS = 60.0
_WAIT = "test.Doors/Wait"


def test_a_principal_has_eight_ninths_of_a_door_at_most_and_no_more_than_the_setting_says() -> None:
    alone = Shares("call", limit=90, most=1000, setting="MOST")
    for _ in range(80):
        alone.take("ann")
    with pytest.raises(Overloaded, match="ann has 80 calls open here, and others need room, too; try again"):
        alone.take("ann")
    alone.take("bob")
    alone.give("ann")
    alone.give("ann")
    alone.take("ann")
    bounded = Shares("call", limit=90, most=1, setting="MOST")
    bounded.take("ann")
    bounded.take("bob")
    with pytest.raises(Overloaded, match="ann has 1 call open here, and MOST is 1; try again"):
        bounded.take("ann")


@contextmanager
def _door(folder: Path, goes_on: threading.Event) -> Iterator[int]:
    """An HTTP door with two connections for a principal; /wait is answered when it goes on."""
    rules = {**COMMON_RULES, "GET /wait": ANYBODY, "GET /now": ANYBODY}
    app = create_app("test", Health("core"), guard=Guard(access_in(folder), rules))

    @app.get("/wait")
    def wait() -> bool:
        return goes_on.wait(_SECONDS)

    @app.get("/now")
    def now() -> bool:
        return True

    server = WebServer(app, bind("127.0.0.1", 0), HttpBounds(is_loopback=True, of_principal=2))
    server.start()
    try:
        yield server.port
    finally:
        goes_on.set()
        server.stop()


def _ask(connection: socket.socket, path: str, name: str) -> None:
    token = bearer(name)["authorization"]
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n".encode())


def _answered(connection: socket.socket) -> bytes:
    """The status and what came with it; b"" where the door has closed."""
    return connection.recv(65536)


def test_an_idle_connection_gives_way_to_a_newer_one_of_its_principal_and_busy_ones_keep_theirs(tmp_path: Path) -> None:
    goes_on = threading.Event()
    with _door(tmp_path, goes_on) as port, ExitStack() as stack:

        def opened() -> socket.socket:
            found = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
            return stack.enter_context(closing(found))

        first, second, third, other = opened(), opened(), opened(), opened()
        for connection in (first, second, third):
            _ask(connection, "/now", "predictor")
            assert b" 200 " in _answered(connection)
        assert _answered(first) == b"", "the one that was idle for longest"
        for connection in (second, third):
            _ask(connection, "/wait", "predictor")
        _ask(other, "/now", "viewer")
        assert b" 200 " in _answered(other)
        _ask(other, "/now", "predictor")
        refused = _answered(other)
        assert b" 429 " in refused
        assert b"predictor has 2 connections open here, and MAX_CONNECTIONS_PER_PRINCIPAL is 2" in refused
        goes_on.set()
        assert b" 200 " in _answered(second)
        _ask(other, "/now", "predictor")
        assert b" 200 " in _answered(other)


def _handler(call: Callable[..., Any]) -> Any:
    methods = {"Wait": grpc.unary_stream_rpc_method_handler(call, lambda data: data, lambda data: data)}
    return grpc.method_handlers_generic_handler("test.Doors", methods)


def _shares(limit: int) -> Shares:
    return Shares("call", limit=limit, most=1, setting="MOST")


def _guard(folder: Path) -> Guard:
    return Guard(access_in(folder), {_WAIT: ANYBODY})


def _check_calls(port: int, goes_on: Callable[[], object]) -> None:
    def call(channel: grpc.Channel, name: str) -> Any:
        made: Any = channel.unary_stream(f"/{_WAIT}")
        return made(b"", timeout=_SECONDS, metadata=tuple(bearer(name).items()))

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        lasting = call(channel, "predictor")
        assert next(lasting) == b"begun"
        with pytest.raises(grpc.RpcError, match="predictor has 1 call open here, and MOST is 1") as refused:
            next(call(channel, "predictor"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert next(call(channel, "viewer")) == b"begun"
        goes_on()
        assert next(lasting, None) is None
        assert next(call(channel, "predictor")) == b"begun"


def test_calls_of_a_principal_are_bounded_and_a_place_is_free_when_a_stream_ends(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"begun"
        goes_on.wait(_SECONDS)

    server, port = start_server(
        "127.0.0.1:0", lambda server: server.add_generic_rpc_handlers((_handler(wait),)), service_names=(),
        service_health=Health("core"), guard=_guard(tmp_path), shares_of=_shares,
    )  # fmt: skip
    _check_calls(port, goes_on.set)
    server.stop(None).wait(_SECONDS)


def test_so_are_those_of_a_door_in_an_event_loop(tmp_path: Path) -> None:
    async def run() -> None:
        goes_on, loop = asyncio.Event(), asyncio.get_running_loop()

        async def wait(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b"begun"
            await asyncio.wait_for(goes_on.wait(), _SECONDS)

        server, port = await start_aio_server(
            "127.0.0.1:0", lambda server: server.add_generic_rpc_handlers((_handler(wait),)), service_names=(),
            service_health=Health("core"), guard=_guard(tmp_path), shares_of=_shares,
        )  # fmt: skip
        with ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, _check_calls, port, lambda: loop.call_soon_threadsafe(goes_on.set))
        await server.stop(None)

    asyncio.run(run())
