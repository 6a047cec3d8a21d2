"""gRPC, asyncio side: a server in the running loop, with the error table, health and reflection of rpc.py."""

import asyncio
import inspect
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.access.guard import NO_GUARD, Guard
from common.access.shares import Shares
from common.errors import HeadraceError, InvalidInput, Unavailable
from common.process.health import Health
from common.process.rpc import (
    HEALTH_WATCH,
    KEPT_CONNECTIONS,
    SERVER_OPTIONS,
    Visit,
    begin_traced,
    behaviour_of,
    details_of,
    parser_of,
    status_of,
)
from common.process.rpc_client import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from common.process.rpc_connections import keep_room
from common.process.rpc_waits import Wait, WaitBounds, Waits
from common.process.tls import Tls
from common.process.tracing import Span, Tracing

logger = logging.getLogger(__name__)
_SILENCE_SECONDS = 60.0
"""Longer than at the sync servers, where a silent call holds a thread: here it holds a coroutine."""
_MAX_CALLS = 16_384
"""Of one server at once; a silent one takes some ten kilobytes."""


def bounds_of(max_calls: int, max_bytes: int, options: Mapping[str, str | int]) -> WaitBounds:
    """Of a server with these options; half of its calls may wait for their clients."""
    return WaitBounds(
        seconds=_SILENCE_SECONDS,
        max_waits=max(1, max_calls // 2),
        max_bytes=max_bytes,
        max_message_bytes=int(options["grpc.max_receive_message_length"]),
    )


async def _abort(context: Any, error: Exception, method: str) -> NoReturn:
    if isinstance(error, HeadraceError):
        status, sentence = status_of(error), error.message
    else:
        logger.error("unexpected error", exc_info=error, extra={"method": method})
        status, sentence = grpc.StatusCode.INTERNAL, f"{method} failed unexpectedly: {type(error).__name__}: {error}"
    try:
        await context.abort(status, details_of(sentence))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None  # The call has ended meanwhile; gRPC would log a traceback for each.
    raise AssertionError("abort returned")


class AioErrorInterceptor(grpc.aio.ServerInterceptor):
    """The one place where an error of ours becomes a gRPC status, and where calls are held against the rules."""

    def __init__(self, bounds: WaitBounds, guard: Guard = NO_GUARD, shares: Shares | None = None) -> None:
        self._waits, self._guard, self._shares = Waits(bounds), guard, shares

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        is_generator = inspect.isasyncgenfunction(behaviour_of(handler))
        wrap = _streaming if is_generator else _unary
        visit = None
        if self._guard.is_on:
            visit = Visit(self._guard, method, details.invocation_metadata, self._shares)
        behaviour = wrap(_on_parsed(handler, method, self._waits, visit, is_generator=is_generator), method, visit)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(behaviour, response_serializer=handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(behaviour, response_serializer=handler.response_serializer)


def _on_parsed(
    handler: Any, method: str, waits: Waits, visit: Visit | None, *, is_generator: bool
) -> Callable[..., Any]:
    """Takes serialized requests as a stream, also where there is one only: so its wait has an end.

    Messages are read from the context. The iterator that gRPC offers is a cycle of references until it is exhausted:
    its call counts among the streams of its connection until the garbage collector comes by.
    """
    behaviour = behaviour_of(handler)
    parse = parser_of(handler, method, visit)
    go_on = visit.go_on if visit else _nothing

    async def messages(context: Any) -> AsyncGenerator[Any, None]:
        while (serialized := await _read(waits, context)) is not grpc.aio.EOF:
            yield parse(serialized)

    async def only(context: Any) -> bytes:
        serialized = await _read(waits, context)
        if serialized is grpc.aio.EOF:
            raise InvalidInput(f"{method} was called without a request")
        return bytes(serialized)

    async def answer(context: Any) -> Any:
        await _begin(visit, context)
        if handler.request_streaming:
            async with aclosing(messages(context)) as arriving:
                return await behaviour(arriving, context)
        serialized = await only(context)
        with waits.held(len(serialized)):
            answered = behaviour(parse(serialized), context)
            if method != HEALTH_WATCH:
                return await answered
            async with _Waiting(waits, context, is_read=False, lasts=True):
                return await answered

    async def answers(context: Any) -> AsyncIterator[Any]:
        await _begin(visit, context)
        async with aclosing(messages(context)) as arriving:
            request = arriving if handler.request_streaming else parse(await only(context))
            async for found in behaviour(request, context):
                go_on()
                async with _Waiting(waits, context, is_read=False):
                    yield found

    return answers if is_generator else answer


async def _begin(visit: Visit | None, context: Any) -> None:
    if visit is None:
        return
    visit.look(context)
    if visit.needs_time():
        await asyncio.to_thread(visit.prepare)
    visit.begin()


def _nothing() -> None:
    """Where requests need no credentials."""


async def _read(waits: Waits, context: Any) -> Any:
    """The next message's bytes, or grpc.aio.EOF."""
    async with _Waiting(waits, context, is_read=True) as wait:
        serialized = await context.read()
        if serialized is not grpc.aio.EOF:
            wait.read_bytes = len(serialized)
        return serialized


class _Waiting:
    """Around what waits for the client. Raises what the wait was ended with."""

    def __init__(self, waits: Waits, context: Any, *, is_read: bool, lasts: bool = False) -> None:
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._timer = asyncio.timeout(None)
        self._wait = waits.begin(context.peer(), self._end, is_read=is_read, lasts=lasts)

    def _end(self) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._expire)

    def _expire(self) -> None:
        with suppress(RuntimeError):  # The wait is over.
            self._timer.reschedule(self._loop.time())

    async def __aenter__(self) -> Wait:
        await self._timer.__aenter__()
        return self._wait

    async def __aexit__(self, *raised: Any) -> None:
        self._waits.finish(self._wait)
        try:
            await self._timer.__aexit__(*raised)
        except TimeoutError as error:
            ended = self._wait.ended
            assert ended is not None
            raise type(ended)(ended.message) from error


def _freed(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Without the frames it came through: they hold the call, and the call holds the error, as above."""
    error.__context__ = None
    return error.with_traceback(None)


def _unary(behaviour: Callable[..., Any], method: str, visit: Visit | None) -> Callable[..., Any]:
    """Also for a streamed response written with context.write, as grpc's own health service does."""

    async def guarded(context: Any) -> Any:
        try:
            return await behaviour(context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)
        finally:
            if visit:
                visit.end()

    async def call(requests: Any, context: Any) -> Any:
        try:
            return await guarded(context)
        except grpc.aio.AbortError as error:
            del requests, context
            raise _freed(error) from None

    return call


def _streaming(behaviour: Callable[..., Any], method: str, visit: Visit | None) -> Callable[..., Any]:
    async def guarded(context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour(context):
                yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error, method)
        finally:
            if visit:
                visit.end()

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
    tls: Tls | None = None,
    socket_path: str = "",
    options: Sequence[tuple[str, str | int]] = (),
    max_concurrent_calls: int = _MAX_CALLS,
    max_messages_bytes: int = 8 * MAX_MESSAGE_BYTES,
    guard: Guard = NO_GUARD,
    shares_of: Callable[[int], Shares] | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Starts a server in the running loop, with health and reflection; returns it and the port it listens on.

    Handlers are coroutines, or async generators where the response is a stream. `service_health` may change in any
    thread; gRPC health follows.

    Args:
        address: "host:port"; port 0 takes a free port.
        service_names: fully qualified names, for health and reflection.
        tls: None: plain text.
        socket_path: a Unix socket to listen on as well, in plain text.
        options: of the gRPC server, over those that every service has.
        max_concurrent_calls: calls beyond it are refused with RESOURCE_EXHAUSTED.
        max_messages_bytes: of all messages that arrive or are being answered.
        guard: who may make which call.
        shares_of: a principal's share of this many calls at once; None: all of them.

    Raises:
        Unavailable: the address cannot be bound.
    """
    merged = dict([*SERVER_OPTIONS, *options])
    bounds = bounds_of(max_concurrent_calls, max_messages_bytes, merged)
    shares = shares_of(max_concurrent_calls) if shares_of else None
    server = grpc.aio.server(
        interceptors=[AioErrorInterceptor(bounds, guard, shares)],
        options=list(merged.items()),
        maximum_concurrent_rpcs=max_concurrent_calls,
    )
    add_services(server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_secure_port(address, tls.server_credentials()) if tls else server.add_insecure_port(address)
        if socket_path:
            server.add_insecure_port(f"unix:{socket_path}")
    except RuntimeError as error:
        where = f"{address} or {socket_path}" if socket_path else address
        raise Unavailable(f"cannot listen on {where}: {error}") from error
    await server.start()
    alive = weakref.ref(server)
    keep_room(port, KEPT_CONNECTIONS, lambda: alive() is not None)
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
