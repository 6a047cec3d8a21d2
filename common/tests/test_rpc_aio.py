"""The asyncio gRPC server: errors become statuses, health follows readiness, reflection lists the services."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import Conflict, Overloaded
from common.process.health import Health
from common.process.rpc import WAIT_BOUNDS
from common.process.rpc_aio import AioErrorInterceptor, open_aio_channel, start_aio_server
from common.process.rpc_client import MAX_MESSAGE_BYTES
from common.process.rpc_waits import WaitBounds
from protos import ingest_pb2, ingest_pb2_grpc

_SERVICE = "headrace.IngestService"
_TIMEOUT_SECONDS = 60.0


class _Servicer(ingest_pb2_grpc.IngestServiceServicer):
    async def Append(self, request: ingest_pb2.AppendRequest, context: Any) -> ingest_pb2.AppendResponse:  # noqa: N802
        if request.stream == "busy":
            raise Overloaded("the intake is full")
        if request.stream == "broken":
            raise KeyError("a fault of ours")
        return ingest_pb2.AppendResponse(accepted=len(request.examples))

    async def AppendStream(  # noqa: N802
        self, requests: AsyncIterator[ingest_pb2.AppendRequest], context: Any
    ) -> ingest_pb2.AppendResponse:
        async for _ in requests:
            raise Conflict("taken with another body")
        return ingest_pb2.AppendResponse()


@asynccontextmanager
async def _server(health: Health, **bounds: Any) -> AsyncIterator[int]:
    """Its port; `bounds` of start_aio_server."""
    server, port = await start_aio_server(
        "127.0.0.1:0",
        lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(_Servicer(), server),
        service_names=(_SERVICE,), service_health=health, **({"max_concurrent_calls": 100} | bounds),
    )  # fmt: skip
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def _channel(health: Health, **bounds: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with _server(health, **bounds) as port, open_aio_channel(f"127.0.0.1:{port}") as channel:
        yield channel


async def _status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await asyncio.wait_for(call, _TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def test_each_error_becomes_its_status_with_its_sentence() -> None:
    async def run() -> None:
        async with _channel(Health()) as channel:
            stub = ingest_pb2_grpc.IngestServiceStub(channel)
            request = ingest_pb2.AppendRequest
            assert await _status_of(stub.Append(request(stream="flights"))) == (grpc.StatusCode.OK, "")
            code, details = await _status_of(stub.Append(request(stream="busy")))
            assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the intake is full")
            code, details = await _status_of(stub.AppendStream(iter([request()])))
            assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "taken with another body")
            code, details = await _status_of(stub.Append(request(stream="broken")))
            assert code == grpc.StatusCode.INTERNAL
            assert "KeyError" in details

    asyncio.run(run())


def test_a_compressed_message_is_refused_before_it_is_inflated() -> None:
    """gRPC would inflate it whole before it looks at its size."""

    async def run() -> None:
        async with _channel(Health()) as channel:
            call: Any = channel.unary_unary(f"/{_SERVICE}/Append")
            found = await _status_of(call(bytes(1 << 20), compression=grpc.Compression.Gzip))
            assert found == (grpc.StatusCode.UNIMPLEMENTED, "Compression algorithm 'gzip' is disabled.")

    asyncio.run(run())


def _send_too_much(port: int) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/Append")
        return call.future(bytes(MAX_MESSAGE_BYTES + 1), timeout=_TIMEOUT_SECONDS).code()


def test_a_call_that_has_ended_by_itself_is_nothing_to_log(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC refuses a message that is too large; its call is over before its handler hears that nothing came."""

    async def run() -> None:
        async with _server(Health()) as port:
            for _ in range(3):
                assert await asyncio.to_thread(_send_too_much, port) is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(run())
    assert not caplog.records


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_garbage_collection")
@pytest.mark.parametrize("stream", ["flights", "busy"])
def test_a_call_that_has_ended_leaves_its_place_on_the_connection_at_once(stream: str) -> None:
    """Serving's collector comes by rarely: what waited for it used up the connection's streams, and every call after
    the 1,024th was refused."""

    async def run() -> None:
        async with _channel(Health(), options=[("grpc.max_concurrent_streams", 5)]) as channel:
            stub = ingest_pb2_grpc.IngestServiceStub(channel)
            request = ingest_pb2.AppendRequest(stream=stream)
            statuses = [await _status_of(stub.Append(request)) for _ in range(20)]
            statuses += [await _status_of(stub.AppendStream(iter([request, request]))) for _ in range(20)]
            refused = [status for status in statuses if status[0] is grpc.StatusCode.UNAVAILABLE]
            assert refused == []

    asyncio.run(run())


def test_health_follows_readiness_from_any_thread() -> None:
    async def run() -> None:
        health = Health("log")
        async with _channel(health) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=_SERVICE))

            async def wait_for(status: int) -> None:
                while (await asyncio.wait_for(watch.read(), _TIMEOUT_SECONDS)).status != status:
                    pass

            await wait_for(health_pb2.HealthCheckResponse.NOT_SERVING)
            await asyncio.to_thread(health.satisfy, "log")
            await wait_for(health_pb2.HealthCheckResponse.SERVING)
            await asyncio.to_thread(health.stop)
            await wait_for(health_pb2.HealthCheckResponse.NOT_SERVING)
            watch.cancel()

    asyncio.run(run())


def test_reflection_names_the_service() -> None:
    async def run() -> None:
        async with _channel(Health()) as channel:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            answer = await asyncio.wait_for(call.read(), _TIMEOUT_SECONDS)
            assert _SERVICE in {service.name for service in answer.list_services_response.service}
            call.cancel()

    asyncio.run(run())


def test_bytes_that_are_no_message_are_the_callers_fault() -> None:
    async def statuses() -> list[tuple[grpc.StatusCode, str]]:
        async with _channel(Health()) as channel:
            unary: Any = channel.unary_unary(f"/{_SERVICE}/Append")
            stream: Any = channel.stream_unary(f"/{_SERVICE}/AppendStream")
            return [await _status_of(unary(b"\xff\xff")), await _status_of(stream(iter([b"\xff\xff"])))]

    for code, words in asyncio.run(statuses()):
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words.startswith(f"/{_SERVICE}/Append")
        assert "was sent 2 bytes that are not its request" in words


def test_a_call_whose_client_falls_silent_is_ended_with_a_sentence() -> None:
    async def count(requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"%d" % len([request async for request in requests])

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def repeat(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        yield request

    handlers: dict[str, Any] = {
        "Count": grpc.stream_unary_rpc_method_handler(count),
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
    }

    @asynccontextmanager
    async def connected(bounds: WaitBounds) -> AsyncIterator[grpc.aio.Channel]:
        server = grpc.aio.server(interceptors=[AioErrorInterceptor(bounds)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        await server.stop(None)

    async def run() -> None:
        async with connected(replace(WAIT_BOUNDS, seconds=0.1)) as channel:
            # A client that may send several messages has none to send: Echo and Repeat wait for their only one too.
            for method, first in (("Count", []), ("Count", [b"x"]), ("Echo", []), ("Repeat", [])):
                call: Any = channel.stream_unary(f"/test/{method}")()
                for message in first:
                    await call.write(message)
                silent = "the call was ended: its client sent nothing for 0.1 s"
                assert await _status_of(call) == (grpc.StatusCode.UNAVAILABLE, silent)
        async with connected(WAIT_BOUNDS) as channel:
            echo_many: Any = channel.stream_unary("/test/Echo")
            unasked = await _status_of(echo_many(iter([])))
            assert unasked == (grpc.StatusCode.INVALID_ARGUMENT, "/test/Echo was called without a request")
            counted: Any = channel.stream_unary("/test/Count")
            assert await counted(iter([b"a", b"b"])) == b"2"
            echoed: Any = channel.unary_unary("/test/Echo")
            assert await echoed(b"a") == b"a"
            repeated: Any = channel.unary_stream("/test/Repeat")
            assert [answer async for answer in repeated(b"a")] == [b"a", b"a"]

    asyncio.run(run())


def test_calls_beyond_the_most_at_once_are_refused() -> None:
    async def run() -> None:
        async with _channel(Health(), max_concurrent_calls=1) as channel:
            waiting: Any = ingest_pb2_grpc.IngestServiceStub(channel).AppendStream()
            await asyncio.wait_for(waiting.wait_for_connection(), _TIMEOUT_SECONDS)
            watch = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            code, _ = await _status_of(watch)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            waiting.cancel()

    asyncio.run(run())
