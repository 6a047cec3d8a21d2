"""uvicorn's HTTP protocol with a short way for predictions: from the parsed body straight to the queue, and from the
answer straight to the socket, without an ASGI scope, a task or a request object.

The short way takes the plain case only: POST to a predict route over HTTP/1.1 with a Content-Length within the limit.
Anything else (chunked or compressed bodies, Expect, other routes, other methods) goes through uvicorn and FastAPI,
where the same prediction is an ordinary route. Both ways share uvicorn's order of pipelined requests.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from common.access.access import Access
from common.access.guard import NO_GUARD, called
from common.access.principal import Principal, act_as
from common.errors import Overloaded, Unauthenticated
from common.process.http_door import Door, HttpBounds, RefusedByDoor
from common.process.http_protocol import BODY, CERTIFICATE, CONNECTION, HEAD, NONE, BoundedHttpProtocol
from common.process.tracing import TRACEPARENT
from services.serving.doors.rest_predict import (
    INTERNAL_ERROR,
    VERSION_HEADER,
    Abandon,
    ModelPath,
    RestPredict,
    error_body,
    predict_path,
)
from services.serving.doors.roles import PREDICTS
from services.serving.front.journal import MAX_TAG_BYTES, REQUEST_ID_HEADER, log_fields
from services.serving.front.prediction_keys import PREDICTION_KEY, joined
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger(__name__)

TIMEOUT_HEADER = b"x-request-timeout-ms"
_TRACEPARENT = TRACEPARENT.encode()
URL_KEY = "headrace.url"
"""Of an ASGI scope: the URL as it came, with the parts that uvicorn drops (a fragment, an empty query)."""
_ORDINARY_HEADERS = frozenset(
    {
        b"expect", b"transfer-encoding", b"content-encoding", b"upgrade", b"connection", b"origin", b"sec-fetch-site",
    }
)  # fmt: skip
"""A request with any of these headers goes the ordinary way, unless it is `Connection: keep-alive`."""
_MAX_CACHED_PATHS = 4096
_BAD_REQUEST = 400
TIMEOUT_DIGITS = 9
"""Milliseconds of eleven days."""
_VERSION_LINE = VERSION_HEADER.encode() + b": %d\r\n"


class _NoEvent:
    """Stands in for the asyncio.Event through which uvicorn wakes a request's task: here there is none."""

    def set(self) -> None:
        """Nobody waits."""


@dataclass(slots=True, eq=False)
class _Prediction:
    """A request on the short way. Has the attributes of uvicorn's RequestResponseCycle that the protocol touches."""

    protocol: "PredictProtocol"
    path: ModelPath
    timeout_seconds: float | None
    tag: bytes
    traceparent: bytes
    principal: Principal | None
    keys: bytes
    body: bytes | bytearray = b""
    has_body: bool = False
    is_its_turn: bool = False
    keep_alive: bool = True
    more_body: bool = True
    disconnected: bool = False
    response_complete: bool = False
    abandon: Abandon | None = None
    message_event: ClassVar = _NoEvent()

    def start_if_ready(self) -> None:
        if not (self.has_body and self.is_its_turn):
            return
        self.protocol.current = self
        if self.principal is not None:
            act_as(self.principal)
        body, self.body = bytes(self.body), b""
        try:
            self.abandon = self.protocol.predict.start(
                self.path,
                body,
                self.answer,
                timeout_seconds=self.timeout_seconds,
                tag=self.tag,
                traceparent=self.traceparent,
                keys=self.keys,
            )
        except Exception:
            logger.exception("a prediction failed unexpectedly", extra=log_fields(self.tag, self.path.model))
            self.answer(500, INTERNAL_ERROR, 0)

    def answer(self, status: int, body: bytes, version: int) -> None:
        if self.response_complete or self.disconnected:
            return
        self.response_complete = True
        self.protocol.write_answer(status, body, version, keep_alive=self.keep_alive, tag=self.tag)


class PredictProtocol(BoundedHttpProtocol):
    """Made for a front by `protocol_for`."""

    predict: RestPredict
    max_body_bytes: int
    access: Access
    _paths: dict[bytes, ModelPath]
    _admitted: dict[tuple[bytes | tuple[str, ...], str], tuple[int, Principal]]
    """The principal that was let through to a model, with the generation of the access file."""
    _headers_from: object = None
    _headers_text = b""
    extra_headers: Mapping[str, str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.current: _Prediction | None = None
        self._idle_since: float | None = None
        self._is_stalled = False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        current = self.current
        if current is not None and not current.response_complete:
            current.disconnected = True
            if current.abandon is not None:
                current.abandon()
        for waiting, _ in self.pipeline:
            waiting.disconnected = True
        self.pipeline.clear()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        # The scope is only built when the request turns out to go the ordinary way.
        self.begin_message()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._timeout_seconds: float | None = None
        self._tag = self._traceparent = self._authorization = self._keys = b""
        self._is_plain = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage != HEAD:  # Behind a chunked body; nobody reads these.
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self._content_length = int(value) if value.isdigit() else -1
        elif name == b"host":
            self.take_host(value)
        elif name in _ORDINARY_HEADERS:
            self._is_plain &= name == b"connection" and value.lower() == b"keep-alive"
            self.expect_100_continue |= name == b"expect" and value.lower() == b"100-continue"
            self.note_header(name, value)
        elif name == TIMEOUT_HEADER:
            self.note_header(name, value)
            is_number = value.isdigit() and len(value) <= TIMEOUT_DIGITS
            self._is_plain &= is_number
            self._timeout_seconds = int(value) / 1000 if is_number else None
        elif name == REQUEST_ID_HEADER and len(value) <= MAX_TAG_BYTES:
            self._tag = value
        elif name == _TRACEPARENT:
            self._traceparent = value
        elif name == PREDICTION_KEY:
            self._keys = joined((self._keys, value) if self._keys else (value,))
        elif name == b"authorization":
            if self._authorization:
                raise RefusedByDoor(_BAD_REQUEST, "the request has two authorization headers")
            self._authorization = value

    def on_headers_complete(self) -> None:
        self.check_head()
        path = self._plain_prediction()
        principal = self._principal(path.model) if path is not None and self.access.is_on else None
        if path is None or (principal is None and self.access.is_on):
            self._begin_ordinary_message()
            super().on_headers_complete()
            return
        self.stage = BODY
        waits_for = self.cycle
        tag = self._tag or self.predict.tags.new()
        prediction = _Prediction(self, path, self._timeout_seconds, tag, self._traceparent, principal, self._keys)
        self.cycle = prediction  # type: ignore[assignment]  # quacks like uvicorn's cycle
        if waits_for is None or waits_for.response_complete:
            prediction.is_its_turn = True
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((prediction, self.app))  # type: ignore[arg-type]  # quacks like uvicorn's cycle

    def _principal(self, model: str) -> Principal | None:
        """The principal; None where it may not, and is answered on the ordinary way."""
        shown = self._authorization or self.certificate
        known = self._admitted.get((shown, model))
        try:
            if known is not None and not self.access.has_changed(*known):
                principal = known[1]
                if principal.name is not self.owner:
                    self.belong(principal.name)
                return principal
            return self._found(shown, model)
        except (Overloaded, Unauthenticated):
            return None

    def _found(self, shown: bytes | tuple[str, ...], model: str) -> Principal | None:
        """As `_principal`, looked up anew. Raises Overloaded, Unauthenticated."""
        credentials = shown.decode("latin-1") if isinstance(shown, bytes) else shown
        generation = self.access.generation
        if self.access.needs_time(credentials):
            return None
        principal = self.access.principal_of(credentials)
        if not PREDICTS.admits(principal, called(model)):
            return None
        self.belong(principal.name)
        if len(self._admitted) >= _MAX_CACHED_PATHS:
            self._admitted.clear()
        self._admitted[shown, model] = generation, principal
        return principal

    def _plain_prediction(self) -> ModelPath | None:
        if not self._is_plain or not 0 <= self._content_length <= self.max_body_bytes:
            return None
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return None
        path = self._paths.get(self.url)
        if path is None:
            try:
                path = predict_path(self.url)
            except RequestFailed:
                return None
            if path is not None:
                if len(self._paths) >= _MAX_CACHED_PATHS:
                    self._paths.clear()
                self._paths[self.url] = path
        return path

    def _begin_ordinary_message(self) -> None:
        """uvicorn's step at the first byte of a message, with the bytes read since."""
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expect
        self.scope[URL_KEY] = url  # type: ignore[literal-required]  # a key of our own
        self.scope[CERTIFICATE] = self.certificate  # type: ignore[literal-required]  # as above
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # as above
        self.headers.extend(headers)

    def on_body(self, body: bytes) -> None:
        prediction: Any = self.cycle
        if prediction.__class__ is not _Prediction:
            super().on_body(body)
            return
        if len(body) != self._content_length:
            self.hold(len(body))
        if prediction.body:
            if prediction.body.__class__ is bytes:
                prediction.body = bytearray(prediction.body)
            prediction.body += body
        else:
            prediction.body = body

    def on_message_complete(self) -> None:
        prediction: Any = self.cycle
        if prediction.__class__ is not _Prediction:
            super().on_message_complete()
            return
        if self.stage != BODY:
            return
        self.stage = NONE
        prediction.has_body = True
        prediction.start_if_ready()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """The turn of a pipelined request has come."""
        if cycle.__class__ is not _Prediction:
            super()._start_asgi_task(cycle, app)
            return
        cycle.is_its_turn = True
        cycle.start_if_ready()

    def write_answer(self, status: int, body: bytes, version: int, *, keep_alive: bool, tag: bytes) -> None:
        """Writes a whole response and lets the next request of the connection begin."""
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(
            b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n%b"
            % (
                STATUS_LINE[status],
                self._default_headers(),
                len(body),
                tag,
                _VERSION_LINE % version if version else b"",
                b"" if keep_alive else b"connection: close\r\n",
                body,
            )
        )
        if keep_alive and self.flow.write_paused:
            self._is_stalled = True
            self.flow.pause_reading()
        elif keep_alive:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1
            transport.close()

    def resume_writing(self) -> None:
        """The client has read its answer; the next request may begin."""
        super().resume_writing()
        if self._is_stalled:
            self._is_stalled = False
            self.on_response_complete()

    def on_response_complete(self) -> None:
        self.note_answered()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self.door.begin_in_turn(self)
            return
        self._idle_since = self.heard_at
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _unset_keepalive_if_required(self) -> None:
        # One timer per connection that looks at the clock, in place of uvicorn's new timer per request.
        self._idle_since = None

    def timeout_keep_alive_handler(self) -> None:
        idle = 0.0 if self._idle_since is None else self.loop.time() - self._idle_since
        if idle >= self.timeout_keep_alive:
            self.timeout_keep_alive_task = None
            if not self.transport.is_closing():
                self.transport.close()
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive - idle, self.timeout_keep_alive_handler
        )

    def _default_headers(self) -> bytes:
        """uvicorn's Date header, of which it makes a new list every second, and those of this server."""
        headers = self.server_state.default_headers
        cls = type(self)
        if cls._headers_from is not headers:
            cls._headers_from = headers
            extra = [(name.encode(), value.encode()) for name, value in cls.extra_headers.items()]
            cls._headers_text = b"".join(b"%b: %b\r\n" % header for header in (*headers, *extra))
        return cls._headers_text


def protocol_for(
    predict: RestPredict,
    *,
    max_body_bytes: int,
    bounds: HttpBounds | None = None,
    extra_headers: Mapping[str, str] | None = None,
    access: Access = NO_GUARD.access,
) -> type[asyncio.Protocol]:
    """The class for uvicorn.Config(http=...); `extra_headers` go with every answer of the short way."""
    bound = {
        "door": Door(replace(bounds or HttpBounds(), error_body=lambda _, message: error_body(message))),
        "predict": predict,
        "max_body_bytes": max_body_bytes,
        "extra_headers": extra_headers or {},
        "access": access,
        "_paths": {},
        "_admitted": {},
    }
    return type("BoundPredictProtocol", (PredictProtocol,), bound)
