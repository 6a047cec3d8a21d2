"""gRPC, a client's side: its channel, and the errors that its calls come back as."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import grpc
from grpc import _common
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # the stubs leave it out

from common.errors import KINDS, HeadraceError, Unavailable
from common.process.tls import Tls
from common.process.tracing import TRACEPARENT

_ERROR_OF: dict[grpc.StatusCode, type[HeadraceError]] = {
    **{grpc.StatusCode[kind.grpc]: kind for kind in KINDS},
    **dict.fromkeys((grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED), Unavailable),
}
Authorization = Callable[[], str]
"""The value of the header of this name, as it is now."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A window of a chunk of a file. gRPC's own grows by probes, pings after each message, which cost an idle platform
    # as many wake-ups as all that it has to say.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024 * 1024),
]
"""Of both ends."""
_LOOK_SECONDS = 2.0
"""As gRPC has it under gevent; else its queues look 5 times a second, and who reads a stream 10 times. A call may take
that long to notice Ctrl-C."""


@contextmanager
def errors_from_status(action: str) -> Iterator[None]:
    """Turns a failed call into one of the six; `action` begins the sentence when the server was not reached."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_status(error, action) from error


def error_from_status(error: grpc.RpcError, action: str) -> HeadraceError:
    """The error that the server raised, or Unavailable when there was no answer."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else str(error)) or code.name
    known = _ERROR_OF.get(code)
    if known is None:
        return Unavailable(f"{action} failed with {code.name}: {details}")
    if known is Unavailable:
        return Unavailable(f"{action}: {details}")
    return known(details)


class _WithMetadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Sends a traceparent with every call, and who makes it."""

    def __init__(self, traceparent: str, authorization: Authorization | None) -> None:
        self._fixed = ((TRACEPARENT, traceparent),) if traceparent else ()
        self._authorization = authorization

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        shown = (("authorization", self._authorization()),) if self._authorization else ()
        metadata = (*(details.metadata or ()), *self._fixed, *shown)
        return continuation(_CallDetails(details.method, details.timeout, metadata, details.credentials), request)

    # One behaviour for four kinds of calls, whose types differ.
    intercept_unary_stream = intercept_unary_unary  # type: ignore[assignment]  # see above
    intercept_stream_unary = intercept_unary_unary  # type: ignore[assignment]  # see above
    intercept_stream_stream = intercept_unary_unary  # type: ignore[assignment]  # see above


class _CallDetails(NamedTuple):
    """What grpc.ClientCallDetails says of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None = None
    compression: Any = None


def open_channel(
    address: str, *, traceparent: str = "", authorization: Authorization | None = None, tls: Tls | None = None
) -> grpc.Channel:
    """Args:
    traceparent: of the span on whose behalf all calls are made.
    authorization: the header's value, asked for with each call.
    tls: None: plain text.
    """
    look_seldom()
    channel = (
        grpc.secure_channel(address, tls.channel_credentials(), options=CHANNEL_OPTIONS)
        if tls
        else grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    )
    if not traceparent and authorization is None:
        return channel
    return grpc.intercept_channel(channel, _WithMetadata(traceparent, authorization))


class RenewedChannel:
    """A channel that is opened anew once the files of its certificates have changed. Calls that have begun stay with
    the channel before it, which ends with the last of them."""

    def __init__(self, connect: Callable[[], grpc.Channel], tls: Tls | None) -> None:
        self._connect, self._tls = connect, tls
        self._lock = threading.Lock()
        self._taken, self._channel = self._generation(), connect()

    def stub(self, kind: Callable[[grpc.Channel], Any]) -> Any:
        """A stub of the channel that is the newest at a call."""
        return _RenewedStub(self, kind)

    def newest(self) -> grpc.Channel:
        if self._tls is None:
            return self._channel
        self._tls.refresh()
        with self._lock:
            if self._taken != self._tls.generation:
                self._taken, self._channel = self._generation(), self._connect()
            return self._channel

    def close(self) -> None:
        self._channel.close()

    def _generation(self) -> int:
        return self._tls.generation if self._tls else 0


class _RenewedStub:
    def __init__(self, channel: RenewedChannel, kind: Callable[[grpc.Channel], Any]) -> None:
        self._channel, self._kind = channel, kind
        first = channel.newest()
        self._made: tuple[grpc.Channel, Any] = (first, kind(first))
        """The channel and its stub; one value, since several threads call. Not made at the first call: for a channel
        that is closed by then gRPC 1.80 ends the process (SIGSEGV)."""

    def __getattr__(self, method: str) -> Any:
        newest = self._channel.newest()
        of, stub = self._made
        if newest is not of:
            stub = self._kind(newest)
            self._made = newest, stub
        return getattr(stub, method)


@cache
def look_seldom() -> None:
    """Has gRPC look for signals seldom from now on, in all waits of this process: each channel and server wakes for it,
    also where nothing comes. A gRPC without these variables keeps to its own periods.

    That of the queues is exported to other modules of Cython, which take it from `__pyx_capi__`, and not to Python.
    """
    _common.MAXIMUM_WAIT_TIMEOUT = _LOOK_SECONDS
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    with suppress(AttributeError, KeyError, ValueError):
        exported = cygrpc.__pyx_capi__["g_interrupt_check_period_ms"]
        ctypes.c_int.from_address(pointer_of(exported, b"int")).value = int(1000 * _LOOK_SECONDS)
