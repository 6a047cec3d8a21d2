"""gRPC, sync side: the server, and the status codes of the six errors."""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.access.access import Credentials
from common.access.client_names import names_of_call
from common.access.guard import ANYBODY, NO_GUARD, OPEN, Guard, Rule, bearer_of, fields_of
from common.access.principal import Principal
from common.access.shares import Shares
from common.errors import HeadraceError, InvalidInput, PermissionDenied, Unavailable
from common.process.health import Health
from common.process.rpc_client import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, look_seldom
from common.process.rpc_connections import keep_room
from common.process.rpc_waits import WaitBounds, Waits
from common.process.tls import Tls
from common.process.tracing import OFF, REQUEST_ID, TRACEPARENT, Span, Tracing

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
KEPT_CONNECTIONS = MAX_CONNECTIONS * 3 // 4
"""Past it silent connections are dropped, so that there is room for new connections (rpc_connections.py)."""
SERVER_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),
    # A call takes 10 kB before anybody has looked at it, of a client that reads nothing for as long as it stays.
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    # Identity only: gRPC inflates a compressed message whole before it looks at its size; 1 MB may be 1 GB.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # A peer that vanished without a word holds its connection and its calls no longer than this.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings are not counted: past the count gRPC keeps 2.7 kB of every ping until a client reads its answer, as
    # long as that sends. Uncounted, it reads no further once 10,000 answers wait for a client that takes none.
    ("grpc.http2.max_ping_strikes", 0),
]
"""Of every gRPC door: what one connection, and all together, may hold."""
HEALTH_WATCH = f"/{health.SERVICE_NAME}/Watch"
COMMON_RPC_RULES: Mapping[str, Rule] = {
    **{f"{health.SERVICE_NAME}/{method}": OPEN for method in ("Check", "Watch", "List")},
    f"{reflection.SERVICE_NAME}/ServerReflectionInfo": ANYBODY,
}
"""Of the methods that every gRPC door has."""
_MAX_WAITS = 32
_MAX_CALLS = 2048
_MAX_STREAMS = 128
"""Of one connection: each takes a thread."""
WAIT_BOUNDS = WaitBounds(
    seconds=20.0, max_waits=_MAX_WAITS, max_bytes=8 * MAX_MESSAGE_BYTES, max_message_bytes=MAX_MESSAGE_BYTES
)
_MAX_DETAILS_BYTES = 6_000
"""On the wire. Past 8 KiB of metadata a client may see RESOURCE_EXHAUSTED in place of the error."""


def details_of(message: str) -> str:
    """The message as far as a status can carry it; half surrogate pairs become question marks."""
    if message.isascii() and 3 * len(message) <= _MAX_DETAILS_BYTES:
        return message
    encoded = message.encode(errors="replace")
    size = 0
    for end, byte in enumerate(encoded):
        # gRPC percent-encodes everything else.
        size += 1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3
        if size > _MAX_DETAILS_BYTES:
            return encoded[:end].decode(errors="ignore") + " …"
    return encoded.decode()


def status_of(error: HeadraceError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc]


def _abort(context: grpc.ServicerContext, error: Exception, method: str) -> NoReturn:
    if isinstance(error, HeadraceError):
        context.abort(status_of(error), details_of(error.message))
    logger.error("unexpected error", exc_info=error, extra={"method": method})
    sentence = f"{method} failed unexpectedly: {type(error).__name__}: {error}"
    context.abort(grpc.StatusCode.INTERNAL, details_of(sentence))
    raise AssertionError("abort returned")


def _messages(waits: Waits, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """The messages of a call as they come; the call is cancelled when the next one takes too long."""
    while True:
        wait = waits.begin(context.peer(), context.cancel, is_read=True)
        try:
            message = next(requests, None)
            wait.read_bytes = len(message or b"")
        finally:
            waits.finish(wait)
        if message is None:
            return
        yield message


class ErrorInterceptor(grpc.ServerInterceptor):
    """The one place where an error of ours becomes a gRPC status, and where calls are held against the rules."""

    def __init__(
        self,
        bounds: WaitBounds = WAIT_BOUNDS,
        tracing: Tracing = OFF,
        guard: Guard = NO_GUARD,
        shares: Shares | None = None,
    ) -> None:
        self._waits, self._tracing, self._guard, self._shares = Waits(bounds), tracing, guard, shares

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        visit = None
        if self._guard.is_on:
            visit = Visit(self._guard, method, details.invocation_metadata, self._shares)
        behaviour = _on_parsed(handler, method, self._waits, visit)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _streaming(behaviour, method, self._waits, visit), response_serializer=handler.response_serializer
            )
        call = _unary(behaviour, method, visit)
        return grpc.stream_unary_rpc_method_handler(
            _traced(call, method, self._tracing) if self._tracing.is_on else call,
            response_serializer=handler.response_serializer,
        )


class Visit:
    """One call as its door's guard sees it: let in by its metadata, checked by each of its messages, looked at again
    while it lasts, and counted among its principal's until `end`."""

    def __init__(self, guard: Guard, method: str, metadata: Any, shares: Shares | None) -> None:
        self._guard, self._action, self._metadata = guard, method.removeprefix("/"), metadata
        self._shares, self._holder = shares, ""
        self._principal: Principal | None = None
        self._shown: Credentials = ""
        self._generation = -1
        self._newest: Any = None
        """The message that was checked last."""

    def look(self, context: Any) -> None:
        """Reads what the call shows: a token, or else its connection's certificate. Raises Unauthenticated."""
        self._shown = bearer_of(self._metadata) or names_of_call(context.auth_context()) or ""

    def prepare(self) -> None:
        """Fetches what `begin` needs; not in an event loop. Raises Unavailable, Unauthenticated."""
        if self.needs_time():
            self._guard.access.prepare(self._shown)

    def needs_time(self) -> bool:
        return bool(self._shown) and self._guard.access.needs_time(self._shown)

    def begin(self) -> None:
        """Before anything is read. Raises Unauthenticated, PermissionDenied, Overloaded."""
        access = self._guard.access
        self._generation = access.generation
        self._principal = self._guard.let_in(self._action, lambda: access.principal_of(self._shown))
        if self._shares is not None and not self._holder and self._principal.is_identified:
            self._shares.take(self._principal.name)
            self._holder = self._principal.name

    def end(self) -> None:
        """The call is over, or was never begun."""
        if self._shares is not None and self._holder:
            self._shares.give(self._holder)
            self._holder = ""

    def checked(self, message: Any) -> Any:
        """The message. Raises PermissionDenied where it names what is not the caller's."""
        if self._guard.access.has_changed(self._generation, self._principal):
            self.begin()
        assert self._principal is not None
        self._guard.check(self._action, self._principal, fields_of(message))
        self._newest = message
        return message

    def go_on(self) -> None:
        """Raises Unauthenticated once the credentials count no more, PermissionDenied once they have no such role."""
        if self._guard.access.has_changed(self._generation, self._principal):
            self.checked(self._newest)

    def is_left_to_the_door(self) -> bool:
        """Whether the door reads the messages and calls the guard itself."""
        return self._guard.rules[self._action].is_checked_by_door


def parser_of(handler: Any, method: str, visit: Visit | None) -> Callable[[bytes], Any]:
    """Parses a request's message; gRPC itself would answer INTERNAL, as if the fault were ours.

    The parser raises InvalidInput when the bytes are not the message, PermissionDenied when it names what is not the
    caller's.
    """
    deserialize = handler.request_deserializer

    def parse(serialized: bytes) -> Any:
        if deserialize is None:
            if visit and not visit.is_left_to_the_door():
                raise PermissionDenied(f"{method} is answered before its message is read, so it is refused")
            return serialized
        try:
            message = deserialize(serialized)
            return visit.checked(message) if visit else message
        except DecodeError as error:
            raise InvalidInput(
                f"{method} was sent {len(serialized)} bytes that are not its request; protos/ says what is"
            ) from error

    return parse


def _on_parsed(handler: Any, method: str, waits: Waits, visit: Visit | None) -> Callable[..., Any]:
    """Takes serialized requests as a stream, also where there is one only: so its wait has an end."""
    behaviour, parse = behaviour_of(handler), parser_of(handler, method, visit)

    def on_stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        if visit:
            visit.look(context)
            visit.prepare()
            visit.begin()
        return behaviour(map(parse, _messages(waits, requests, context)), context)

    def on_message(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        if visit:
            visit.look(context)
            visit.prepare()
            visit.begin()
        serialized = next(_messages(waits, requests, context), None)
        if serialized is None:
            raise InvalidInput(f"{method} was called without a request")
        with waits.held(len(serialized)):
            return behaviour(parse(serialized), context)

    return on_stream if handler.request_streaming else on_message


def behaviour_of(handler: Any) -> Callable[..., Any]:
    """The function behind a handler; one of its four places is set."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _unary(behaviour: Callable[..., Any], method: str, visit: Visit | None) -> Callable[..., Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behaviour(request, context)
        except Exception as error:
            if not context.is_active() or getattr(context, "code", lambda: None)() is not None:
                raise
            _abort(context, error, method)
        finally:
            if visit:
                visit.end()

    return call


def _traced(call: Callable[..., Any], method: str, tracing: Tracing) -> Callable[..., Any]:
    """With a span for each call that is part of a trace; those that are not are our services' own, and begin none."""

    def traced(request: Any, context: grpc.ServicerContext) -> Any:
        metadata = context.invocation_metadata()
        if not any(key == TRACEPARENT for key, _ in metadata):
            return call(request, context)
        span = begin_traced(tracing, method.rpartition("/")[2], metadata)
        error = "the call failed"
        try:
            answer = call(request, context)
            error = ""
        finally:
            if span is not None:
                span.end(error)
        return answer

    return traced


def begin_traced(tracing: Tracing, method: str, metadata: Any) -> Span | None:
    """A server's span for a call with this metadata, where it is traced."""
    given = {key: value for key, value in metadata or () if key in (TRACEPARENT, "x-request-id")}
    span = tracing.start(
        method, str(given.get(TRACEPARENT, "")), kind="server", attributes={"rpc.system": "grpc", "rpc.method": method}
    )
    if span is not None:
        span.set({REQUEST_ID: str(given.get("x-request-id") or span.trace_id)})
    return span


def _streaming(behaviour: Callable[..., Any], method: str, waits: Waits, visit: Visit | None) -> Callable[..., Any]:
    """What the client does not take waits, too; and so does all of a watch of health, which any number may open."""

    def sent(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for message in behaviour(request, context):
            if visit:
                visit.go_on()
            wait = waits.begin(context.peer(), context.cancel, is_read=False)
            try:
                yield message
            finally:
                waits.finish(wait)

    def watched(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        wait = waits.begin(context.peer(), context.cancel, is_read=False, lasts=True)
        try:
            yield from behaviour(request, context)
        finally:
            waits.finish(wait)

    answers = watched if method == HEALTH_WATCH else sent

    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from answers(request, context)
        except Exception as error:
            if not context.is_active() or getattr(context, "code", lambda: None)() is not None:
                raise
            _abort(context, error, method)
        finally:
            if visit:
                visit.end()

    return call


def start_server(
    address: str,
    add_services: Callable[[grpc.Server], None],
    *,
    service_names: tuple[str, ...],
    service_health: Health,
    max_workers: int = 32,
    tracing: Tracing = OFF,
    guard: Guard = NO_GUARD,
    shares_of: Callable[[int], Shares] | None = None,
    tls: Tls | None = None,
) -> tuple[grpc.Server, int]:
    """Starts a server with health and reflection; returns it and the port it listens on.

    Args:
        address: "host:port"; port 0 takes a free port.
        service_names: fully qualified names, for health and reflection.
        max_workers: threads of calls that are being answered; calls that wait for their client have further threads.
        guard: who may make which call.
        shares_of: a principal's share of this many calls at once; None: all of them.
        tls: None: plain text.

    Raises:
        Unavailable: the address cannot be bound.
    """
    look_seldom()
    threads = max_workers + 2 * _MAX_WAITS
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=threads, thread_name_prefix="grpc"),
        interceptors=[ErrorInterceptor(tracing=tracing, guard=guard, shares=shares_of(threads) if shares_of else None)],
        # As a mapping: of two options of one name gRPC takes the first.
        options=list((dict(SERVER_OPTIONS) | {"grpc.max_concurrent_streams": _MAX_STREAMS}).items()),
        maximum_concurrent_rpcs=_MAX_CALLS,
    )
    add_services(server)
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_secure_port(address, tls.server_credentials()) if tls else server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {address}: {error}") from error
    server.start()
    alive = weakref.ref(server)
    keep_room(port, KEPT_CONNECTIONS, lambda: alive() is not None)

    def follow(ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", *service_names):
            servicer.set(name, status.SERVING if ready else status.NOT_SERVING)

    service_health.listen(follow)
    return server, int(port)
