"""gRPC, asyncio side: a server in the running loop, with the error table, health and reflection of rpc.py."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.process.health import Health
from common.process.rpc import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    begin_traced,
    behaviour_of,
    details_of,
    parser_of,
    status_of,
)
from common.process.tracing import Span, Tracing

logger = logging.getLogger(__name__)
_SILENCE_SECONDS = 60.0
"""Longer than at the sync servers, where a silent call holds a thread: here it holds a coroutine."""
_MAX_CALLS = 16_384
"""Of one server at once; a silent one takes some ten kilobytes."""


async def _abort(context: Any, error: Exception, method: str) -> NoReturn:
    if isinstance(error, HeadraceError):
        status, what = status_of(error), error.message
    else:
        logger.error("unexpected error", exc_info=error, extra={"method": method})
        status, what = grpc.StatusCode.INTERNAL, f"{method} failed unexpectedly: {type(error).__name__}: {error}"
    try:
        await context.abort(status, details_of(what))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None  # The call has ended meanwhile; gRPC would log a traceback for each.
    raise AssertionError("abort returned")


class AioErrorInterceptor(grpc.aio.ServerInterceptor):
    """The one place where an error of ours becomes a gRPC status.

    Args:
        silence_seconds: how long a client may take for the next message before its call is ended.
    """

    def __init__(self, silence_seconds: float = _SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        is_generator = inspect.isasyncgenfunction(behaviour_of(handler))
        wrap = _streaming if is_generator else _unary
        behaviour = wrap(_on_parsed(handler, method, self._silence_seconds, is_generator=is_generator), method)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(behaviour, response_serializer=handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(behaviour, response_serializer=handler.response_serializer)


def _on_parsed(handler: Any, method: str, silence_seconds: float, *, is_generator: bool) -> Callable[..., Any]:
    """Takes serialized requests as a stream, also where there is one only: so its wait has an end.

    Messages are read from the context. The iterator that gRPC offers is a cycle of references until it is exhausted:
    its call counts among the streams of its connection until the garbage collector comes by.
    """
    behaviour = behaviour_of(handler)
    messages = _reader(parser_of(handler, method), method, silence_seconds)

    async def only(context: Any) -> Any:
        async with aclosing(messages(context)) as arriving:
            async for message in arriving:
                return message
        raise InvalidInput(f"{method} was called without a request")

    async def answer(context: Any) -> Any:
        if not handler.request_streaming:
            return await behaviour(await only(context), context)
        async with aclosing(messages(context)) as arriving:
            return await behaviour(arriving, context)

    async def answers(context: Any) -> AsyncIterator[Any]:
        async with aclosing(messages(context)) as arriving:
            request = arriving if handler.request_streaming else await only(context)
            async for found in behaviour(request, context):
                yield found

    return answers if is_generator else answer


def _reader(
    parse: Callable[[bytes], Any], method: str, silence_seconds: float
) -> Callable[[Any], AsyncGenerator[Any, None]]:
    async def messages(context: Any) -> AsyncGenerator[Any, None]:
        while True:
            try:
                async with asyncio.timeout(silence_seconds):
                    serialized = await context.read()
            except TimeoutError as error:
                raise Unavailable(f"{method} was ended: its client sent nothing for {silence_seconds:g} s") from error
            if serialized is grpc.aio.EOF:
                return
            yield parse(serialized)

    return messages


def _freed(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Without the frames it came through: they hold the call, and the call holds the error, as above."""
    error.__context__ = None
    return error.with_traceback(None)


def _unary(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    """Also for a streamed response written with context.write, as grpc's own health service does."""

    async def guarded(context: Any) -> Any:
        try:
            return await behaviour(context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)

    async def call(requests: Any, context: Any) -> Any:
        try:
            return await guarded(context)
        except grpc.aio.AbortError as error:
            del requests, context
            raise _freed(error) from None

    return call


def _streaming(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def guarded(context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour(context):
                yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)

    async def call(requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in guarded(context):
                yield answer
        except grpc.aio.AbortError as error:
            del requests, context
            raise _freed(error) from None

    return call


@contextmanager
def traced_call(tracing: Tracing, method: str, context: Any) -> Iterator[Span | None]:
    """The span of a call, where it is traced."""
    span = begin_traced(tracing, method, context.invocation_metadata()) if tracing.is_on else None
    error = "the call was not answered"
    try:
        yield span
        error = ""
    except HeadraceError as raised:
        error = raised.message
        raise
    finally:
        if span is not None:
            span.end(error)


async def start_aio_server(
    address: str,
    add_services: Callable[[grpc.aio.Server], None],
    *,
    service_names: tuple[str, ...],
    service_health: Health,
    credentials: grpc.ServerCredentials | None = None,
    socket_path: str = "",
    options: Sequence[tuple[str, str | int]] = (),
    max_concurrent_calls: int = _MAX_CALLS,
) -> tuple[grpc.aio.Server, int]:
    """Starts a server in the running loop, with health and reflection; returns it and the port it listens on.

    Handlers are coroutines, or async generators where the response is a stream. `service_health` may change in any
    thread; gRPC health follows.

    Args:
        address: "host:port"; port 0 takes a free one.
        service_names: fully qualified names, for health and reflection.
        credentials: of TLS; None: plain text.
        socket_path: a Unix socket to listen on as well, in plain text.
        options: of the gRPC server, over those that every service has.
        max_concurrent_calls: calls beyond it are refused with RESOURCE_EXHAUSTED.

    Raises:
        Unavailable: the address cannot be bound.
    """
    merged = dict([*SERVER_OPTIONS, *options])
    server = grpc.aio.server(
        interceptors=[AioErrorInterceptor()],
        options=list(merged.items()),
        maximum_concurrent_rpcs=max_concurrent_calls,
    )
    add_services(server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        if socket_path:
            server.add_insecure_port(f"unix:{socket_path}")
    except RuntimeError as error:
        where = f"{address} or {socket_path}" if socket_path else address
        raise Unavailable(f"cannot listen on {where}: {error}") from error
    await server.start()
    _follow_health(service_health, servicer, ("", *service_names))
    return server, int(port)


def _follow_health(service_health: Health, servicer: Any, names: tuple[str, ...]) -> None:
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def publish() -> None:
        status = health_pb2.HealthCheckResponse
        now = status.SERVING if service_health.is_ready() else status.NOT_SERVING
        for name in names:
            await servicer.set(name, now)

    def start_publish() -> None:
        task = loop.create_task(publish())
        running.add(task)
        task.add_done_callback(running.discard)

    def follow(ready: bool) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(start_publish)

    service_health.listen(follow)


def open_aio_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
