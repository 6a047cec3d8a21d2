"""gRPC doors under clients that open calls and say nothing, watch, read nothing, or send halves of large messages."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.errors import Overloaded
from common.process import rpc_waits
from common.process.health import Health
from common.process.rpc import WAIT_BOUNDS, ErrorInterceptor, start_server
from common.process.rpc_aio import AioErrorInterceptor
from common.process.rpc_waits import WaitBounds, Waits, received_bytes
from testing.waiting import wait_until

_BOUNDS = replace(WAIT_BOUNDS, seconds=600.0, max_waits=4, max_bytes=2_000_000, max_message_bytes=1_500_000)
_TIMEOUT_SECONDS = 60.0
_ENDED = {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""By a server of threads, of asyncio."""
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


def _echo(request: bytes, context: Any) -> bytes:
    return request[:100]


async def _echo_later(request: bytes, context: Any) -> bytes:
    return request[:100]


def _repeat(request: bytes, context: Any) -> Iterator[bytes]:
    while True:
        yield bytes(100_000)


def _handlers(echo: Any, repeat: Any = None) -> Any:
    found: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    if repeat is not None:
        found["Repeat"] = grpc.unary_stream_rpc_method_handler(repeat)
    return grpc.method_handlers_generic_handler("test", found)


@contextmanager
def _sync_server(bounds: WaitBounds) -> Iterator[int]:
    server = grpc.server(
        ThreadPoolExecutor(max_workers=1 + 2 * bounds.max_waits), interceptors=[ErrorInterceptor(bounds)]
    )
    server.add_generic_rpc_handlers((_handlers(_echo, _repeat),))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait(_TIMEOUT_SECONDS)


@contextmanager
def _aio_server(bounds: WaitBounds) -> Iterator[int]:
    """In a thread of its own."""
    ports: list[int] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        server = grpc.aio.server(
            interceptors=[AioErrorInterceptor(bounds)], maximum_concurrent_rpcs=4 * bounds.max_waits
        )
        server.add_generic_rpc_handlers((_handlers(_echo_later),))
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        ready.set()
        await asyncio.to_thread(stop.wait, 120)
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(_TIMEOUT_SECONDS)
    yield ports[0]
    stop.set()
    thread.join(_TIMEOUT_SECONDS)


def _silent(channel: grpc.Channel, until: threading.Event, method: str = "/test/Echo") -> Any:
    """A call that is never sent its request."""

    def nothing() -> Iterator[bytes]:
        until.wait(_TIMEOUT_SECONDS)
        yield from ()

    opened: Any = channel.stream_unary(method)
    return opened.future(nothing())


def _watch(channel: grpc.Channel) -> Any:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status
    return watch


@pytest.mark.parametrize("serve", [_sync_server, _aio_server], ids=["threads", "asyncio"])
def test_calls_that_only_wait_keep_nobody_out(serve: Any) -> None:
    """Silent ones give way to those that came later, and so do watches of health."""
    until = threading.Event()
    with serve(_BOUNDS) as port, grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        silent = [_silent(channel, until) for _ in range(_BOUNDS.max_waits)]
        watches = [_watch(channel) for _ in range(_BOUNDS.max_waits)]
        echo: Any = channel.unary_unary("/test/Echo")
        assert echo(b"a", timeout=_TIMEOUT_SECONDS, wait_for_ready=True) == b"a"
        wait_until(lambda: sum(call.done() for call in silent + watches) >= _BOUNDS.max_waits, "half of them to end")
        until.set()
        for watch in watches:
            watch.cancel()


def test_clients_that_read_nothing_of_an_endless_answer_keep_no_thread() -> None:
    with _sync_server(_BOUNDS) as port, grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        repeat: Any = channel.unary_stream("/test/Repeat")
        unread = [repeat(b"") for _ in range(3 * _BOUNDS.max_waits)]
        echo: Any = channel.unary_unary("/test/Echo")
        assert echo(b"a", timeout=_TIMEOUT_SECONDS) == b"a"
        for call in unread:
            call.cancel()


class _Valve:
    """Between a client and a server; lets only so many bytes of the client through until it is opened."""

    def __init__(self, port: int, limit: int) -> None:
        self._limit, self._passed = limit, 0
        self._open = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server = socket.create_connection(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.full = threading.Event()
        """Set when no more is let through."""
        threading.Thread(target=self._run, daemon=True).start()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        self._server.close()
        self._listening.close()

    def _run(self) -> None:
        with suppress(OSError):
            client, _ = self._listening.accept()
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()
            while part := client.recv(16_384):
                self._passed += len(part)
                if self._passed > self._limit:
                    self.full.set()
                    self._open.wait(_TIMEOUT_SECONDS)
                self._server.sendall(part)

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError):
            while part := self._server.recv(65536):
                client.sendall(part)


@contextmanager
def _half_sent(port: int, limit: int, size: int = 1_200_000) -> Iterator[tuple[Any, _Valve]]:
    """A message of `size` bytes of which `limit` come through."""
    with closing(_Valve(port, limit)) as valve, grpc.insecure_channel(valve.address, options=_OPTIONS) as channel:
        echo: Any = channel.unary_unary("/test/Echo")
        call = echo.future(bytes(size), timeout=_TIMEOUT_SECONDS)
        yield call, valve
        call.cancel()


@pytest.mark.parametrize("serve", [_sync_server, _aio_server], ids=["threads", "asyncio"])
def test_messages_that_arrive_together_have_a_bound_and_who_sends_most_goes(serve: Any) -> None:
    """Counted as they come: slow clients that were sent little of are kept, whatever they announced.

    What comes before a call is read, 64 KiB of each, is not counted. Whatever of it there is, the large one is the
    largest by far when all together become too much.
    """
    bounds = replace(_BOUNDS, max_waits=64, max_bytes=1_200_000)
    with (
        serve(bounds) as port,
        _half_sent(port, 150_000, 300_000) as (small, kept),
        _half_sent(port, 150_000) as (other, _),
        _half_sent(port, 200_000) as (third, _),
    ):
        assert kept.full.wait(_TIMEOUT_SECONDS)
        with _half_sent(port, 1_100_000) as (large, _):
            assert large.exception(timeout=_TIMEOUT_SECONDS).code() in _ENDED
        assert [call.done() for call in (small, other, third)] == [False] * 3
        kept.open()
        assert small.result(timeout=_TIMEOUT_SECONDS) == bytes(100)


@pytest.mark.parametrize("serve", [_sync_server, _aio_server], ids=["threads", "asyncio"])
def test_a_message_of_more_than_is_taken_is_ended_while_it_comes(serve: Any) -> None:
    """gRPC itself refuses it once it is there whole."""
    size = 2 * _BOUNDS.max_bytes
    with serve(_BOUNDS) as port, _half_sent(port, size - 100_000, size) as (endless, valve):
        assert valve.full.wait(_TIMEOUT_SECONDS)
        assert endless.exception(timeout=_TIMEOUT_SECONDS).code() in _ENDED


def test_messages_that_are_being_answered_count_too() -> None:
    waits = Waits(_BOUNDS)
    with waits.held(1_500_000):
        with pytest.raises(Overloaded, match="more than 2000000 bytes"), waits.held(1_000_000):
            raise AssertionError("there was no room for it")
        with waits.held(100):
            pass
    with waits.held(2_000_000):
        pass


def test_waits_are_looked_at_again_after_there_were_none() -> None:
    waits = Waits(replace(_BOUNDS, seconds=0.01))
    others = set(threading.enumerate())
    for _ in range(3):
        ended = threading.Event()
        wait = waits.begin("", ended.set, is_read=True)
        assert ended.wait(_TIMEOUT_SECONDS)
        waits.finish(wait)
        wait_until(lambda: all(thread.name != "waits" for thread in set(threading.enumerate()) - others), "it is idle")


def test_a_call_that_begins_while_is_looked_is_not_taken_for_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(replace(_BOUNDS, max_bytes=1_000, look_seconds=0.01))
    ended, begun, looks = threading.Event(), list[Any](), list[None]()

    def received() -> dict[str, int]:
        looks.append(None)
        if len(looks) == 1:
            begun.append(waits.begin("new", ended.set, is_read=True))
            return {"old": 10}
        return {"old": 10, "new": 10}

    monkeypatch.setattr(rpc_waits, "received_bytes", received)
    begun.append(waits.begin("old", ended.set, is_read=True))
    wait_until(lambda: len(looks) >= 3, "it was looked at again")
    assert not ended.is_set()
    for wait in begun:
        waits.finish(wait)


def _loopbacks() -> list[tuple[str, str]]:
    """(address, gRPC's name of it); not every machine has one of IPv6."""
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return [("127.0.0.1", "ipv4:127.0.0.1"), ("::1", "ipv6:%5B::1%5D")]
    return [("127.0.0.1", "ipv4:127.0.0.1")]


@pytest.mark.parametrize(("address", "family"), _loopbacks())
def test_what_a_connection_was_sent_is_known_by_grpcs_name_of_it(address: str, family: str) -> None:
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=kind) as listening, socket.socket(kind) as client:
        client.connect(listening.getsockname()[:2])
        with listening.accept()[0] as server:
            client.sendall(b"12345")
            assert server.recv(5, socket.MSG_WAITALL) == b"12345"
            port = client.getsockname()[1]
            assert received_bytes()[f"{family}:{port}"] == 5


def test_a_server_with_two_threads_answers_beside_five_hundred_silent_calls() -> None:
    health_of_it = Health()
    server, port = start_server(
        "127.0.0.1:0", lambda server: None, service_names=(), service_health=health_of_it, max_workers=2
    )
    until = threading.Event()
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) for _ in range(5)]
    check = "/grpc.health.v1.Health/Check"
    silent = [_silent(channel, until, check) for channel in channels for _ in range(100)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS).status
    until.set()
    for call in silent:
        call.cancel()
    for channel in channels:
        channel.close()
    server.stop(None).wait(_TIMEOUT_SECONDS)
