"""HTTP/1.1 as all doors speak it: uvicorn's protocol, with a bound on everything that a client can make it hold.

Bounded are the URL and the headers, the time for a head, for a body and for reading an answer, and the requests of a
connection that wait for their turn; what connections and bodies take together is the door's (http_door.py).
"""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from common.access.client_names import names_of_socket
from common.process.http_door import REFUSED, REQUEST_TIMEOUT, Door, HttpBounds, RefusedByDoor

MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
_BODY_BYTES_PER_SECOND = 16 * 1024
_MOST_THROWN_AWAY_BYTES = 16 * 1024 * 1024
_PART_BYTES = 4 * 1024
"""Parsed in one go, where it is not all one body."""
_MOST_WAITING = 16
"""Requests of a connection behind the one at work; what comes after them is left unparsed, and then unread."""
CERTIFICATE = "headrace.certificate"
"""Of an ASGI scope: the names in the client's certificate."""
CONNECTION = "headrace.connection"
"""Of an ASGI scope: the BoundedHttpProtocol."""
NONE, HEAD, BODY = 0, 1, 2
"""What of a message has come: nothing or all of it, a part of its head, its head."""
SAFE_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_ONLY_ONCE = frozenset(
    {
        b"authorization", b"origin", b"sec-fetch-site", b"content-type", b"content-encoding", b"idempotency-key",
        b"x-request-timeout-ms",
    }
)  # fmt: skip
"""Headers that may not be repeated: readers could take different values. The parser refuses a second Content-Length."""
_URI_TOO_LONG, _HEAD_TOO_LARGE = 414, 431


class _Flow(FlowControl):
    """uvicorn reads on whenever an application asks for its body: not while parsed requests are waiting."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def let_go(self) -> None:
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """Made for one door by `protocol_of`."""

    door: Door
    flow: _Flow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.certificate: tuple[str, ...] = ()
        """Names in the client's."""
        self.owner = ""
        self.held_bytes = 0
        self.heard_at = 0.0
        self.stage = NONE
        self._open_since = 0.0
        self._head_bytes = 0
        """Of those reads alone that began within the head."""
        self._first_bytes = 0
        """Of the read in which the head began; other messages may be in it."""
        self._beside_body_bytes = 0
        """Trailers and chunk extensions since the last byte of the body: the parser keeps a trailer until its end."""
        self._is_more_body = False
        self._seen: set[bytes] = set()
        self._is_old_head = False
        self._body_bytes = 0
        self._content_length = -1
        self._unparsed = b""
        self._chunk_bytes = 0
        self._answered_any = False
        self._unread_since = 0.0
        self._origin = self._site = b""
        self._host = b""
        self._upgrades = False
        self._is_refused = False
        self._may_throw_away: int | None = None
        """Bytes after a refusal that closes only behind answers which are still to come."""

    # Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.address = self.client[0] if self.client else ""
        self.certificate = names_of_socket(transport.get_extra_info("ssl_object"))
        self.heard_at = self._open_since = self.loop.time()
        if not self.door.admit(self):
            self._is_refused = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leave(self)
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        self.pipeline.clear()
        self._unparsed = b""
        if self.scope is not None:
            self.scope.pop(CONNECTION, None)  # type: ignore[misc]  # A cycle would keep both until the collector comes.
        super().connection_lost(exc)

    def belong(self, principal: str) -> None:
        """To who asks. Raises Overloaded: the principal has its share of the door's connections."""
        if principal != self.owner:
            self.door.own(self, principal)

    def drop(self) -> None:
        """Another connection needs the room."""
        self.door.leave(self)
        self.transport.abort()

    def waits_since(self) -> tuple[int | None, float]:
        """(0, since when) in the middle of a message or before the first, (1, …) between two; (None, 0) at work."""
        if self.stage:
            return 0, self._open_since
        if self._is_at_work():
            return None, 0.0
        return (1, self.heard_at) if self._answered_any else (0, self._open_since)

    def is_silent_in_body(self) -> bool:
        return self.stage == BODY and self.loop.time() - self.heard_at >= self.door.bounds.times.dropped_after

    def look_at_time(self) -> None:
        """Called at intervals: ends what takes too long."""
        now, times = self.loop.time(), self.door.bounds.times
        if self._unread_since and now - self._unread_since > times.unread:
            self.transport.abort()
        elif self.flow.is_held:
            self.heard_at = now
            self._open_since += times.look
        elif self.stage == BODY:
            self._look_at_body(now)
        elif self._is_at_work() or now - self._open_since <= times.head:
            return
        elif self.stage == HEAD:
            self.refuse(REQUEST_TIMEOUT, f"the head of the request did not come within {times.head:g} s")
        elif not self._answered_any:
            self.transport.close()

    def _look_at_body(self, now: float) -> None:
        times = self.door.bounds.times
        if self.flow.read_paused:  # It is we who do not read.
            self.heard_at = now
            self._open_since += times.look
            return
        longest = times.body + self._body_bytes / _BODY_BYTES_PER_SECOND
        if now - self.heard_at > times.silence or now - self._open_since > longest:
            self.refuse(REQUEST_TIMEOUT, "the body of the request came too slowly")

    # Bytes

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if len(data) <= _PART_BYTES and len(self.pipeline) < _MOST_WAITING and not (self._unparsed or self._is_refused):
            self._parse(data)
            return
        self._unparsed += data
        self._parse_unparsed()

    def _parse_unparsed(self) -> None:
        """Part by part, until enough requests wait: a connection would otherwise hold as many as fit into a read."""
        data, at = self._unparsed, 0
        while at < len(data) and len(self.pipeline) < _MOST_WAITING and not self._is_refused:
            of_body = self._content_length - self._body_bytes if self.stage == BODY else 0
            size = max(_PART_BYTES, of_body)
            self._parse(data[at : at + size])
            at += size
        self._unparsed = data[at:]
        if self._is_refused:
            self._throw_away(len(self._unparsed))
            self._unparsed = b""
        elif self._unparsed:
            self.flow.hold()
        if self.flow.is_held and not self._unparsed:
            self.flow.let_go()

    def begin_next(self) -> None:
        """The turn of the request that waits longest has come."""
        if not self.pipeline or self.transport.is_closing():
            return
        cycle, app = self.pipeline.pop()
        if self._unparsed:
            self._parse_unparsed()
        self._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse_for(error)
        if self.stage:
            self._note_open(len(data))

    def _throw_away(self, size: int) -> None:
        if self._may_throw_away is not None:
            self._may_throw_away -= size
            if self._may_throw_away < 0:
                self.transport.abort()

    def _note_open(self, size: int) -> None:
        """The message is not complete; `size` bytes have come."""
        self.heard_at = self.loop.time()
        if not self._open_since:
            self._open_since = self.heard_at
        if self.stage == HEAD:
            self._head_bytes += size if self._is_old_head else 0
            self._is_old_head = True
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(_HEAD_TOO_LARGE, f"the head of the request has more than {MAX_HEAD_BYTES} bytes")
        elif self._is_more_body:
            self._is_more_body, self._beside_body_bytes = False, 0
        else:
            self._beside_body_bytes += size
            if self._beside_body_bytes > MAX_HEAD_BYTES:
                self.refuse(_HEAD_TOO_LARGE, f"more than {MAX_HEAD_BYTES} bytes came that are no part of the body")

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(cause, RefusedByDoor):
            self.refuse(cause.status, cause.message)
        else:
            self.refuse(400, f"this is not HTTP/1.1: {error}")

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Upgrades are not offered (RFC 9110, 7.8): the same request without the wish, so that its body is a body."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if not self._upgrades or method == b"CONNECT":
            self.refuse(400, "CONNECT is not taken here")
            return
        hop = (b"upgrade", b"connection", b"http2-settings")
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in hop]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version.encode(), b"".join(lines))
        self.parser = httptools.HttpRequestParser(self)
        self._upgrades = False
        self._parse(head + rest)

    def refuse(self, status: int, message: str) -> None:
        """Answers and closes; behind requests that are not answered yet it only closes."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        REFUSED.labels(str(status)).inc()
        in_order = self.stage != BODY
        if self.pipeline or (in_order and self._has_open_cycle()):
            newest: Any = self.pipeline[0][0] if self.pipeline else self.cycle
            newest.keep_alive = False
            self._may_throw_away = _MOST_THROWN_AWAY_BYTES
            return
        cycle: Any = self.cycle
        if self.stage == BODY and cycle is not None:
            cycle.disconnected = True
            if getattr(cycle, "response_started", False):
                self.transport.close()
                return
        self.stage = NONE
        self.flow.resume_reading()
        body = self.door.bounds.error_body(status, message)
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status], len(body), body)
        )
        if cycle is not None:
            cycle.message_event.set()
        self.door.release(self)
        self.loop.call_later(self.door.bounds.times.linger, self.transport.close)

    def _is_at_work(self) -> bool:
        """Whether it is for us to do something."""
        return not self.stage and self._has_open_cycle()

    def _has_open_cycle(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # The parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CERTIFICATE] = self.certificate  # type: ignore[literal-required]  # a key of our own
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # as above
        self.begin_message()

    def begin_message(self) -> None:
        """Forgets the headers of the message before."""
        self.stage, self._open_since, self._head_bytes, self._body_bytes = HEAD, 0.0, 0, 0
        self._content_length = -1
        self._first_bytes = self._chunk_bytes
        self._beside_body_bytes = 0
        self._seen = set()
        self._origin = self._site = self._host = b""
        self._upgrades = self._is_old_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage != HEAD:  # Behind a chunked body; they are not read.
            return
        name = name.lower()
        if name == b"host":
            self.take_host(value)
        else:
            self.note_header(name, value)
        super().on_header(name, value)

    def note_header(self, name: bytes, value: bytes) -> None:
        """Keeps what the door has to look at when the head is complete; `name` is in lower case."""
        if name in _ONLY_ONCE:
            if name in self._seen:
                raise RefusedByDoor(400, f"the request has two {name.decode()} headers")
            self._seen.add(name)
        if name == b"origin":
            self._origin = value
        elif name == b"sec-fetch-site":
            self._site = value.lower()
        elif name == b"upgrade":
            self._upgrades = True
        elif name == b"content-length" and value.isdigit():
            self._content_length = int(value)
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or self.parser.get_http_version() != "1.1"):
            shown = value[:100].decode(errors="replace")
            raise RefusedByDoor(400, f"Transfer-Encoding is {shown!r}, expected chunked, and HTTP/1.1")

    def take_host(self, value: bytes) -> None:
        """Raises RefusedByDoor for a name that is not ours, and for a second name."""
        if self._host:
            raise RefusedByDoor(400, "the request has two Host headers")
        self._host = value
        if value not in self.door.hosts:
            self.door.check_host(value)

    def check_head(self) -> None:
        """Raises RefusedByDoor when the head is too large, or does not name us."""
        if not self._host and self.parser.get_http_version() == "1.1":
            raise RefusedByDoor(400, "a request of HTTP/1.1 has a Host header")
        if not self.url.startswith(b"/"):
            _, separator, rest = self.url.partition(b"://")
            if separator:  # The name in the URL counts, not Host (RFC 9112, 3.2.2).
                self.door.check_host(rest.partition(b"/")[0])
        if len(self.url) > MAX_URL_BYTES:
            raise RefusedByDoor(_URI_TOO_LONG, f"the URL has {len(self.url)} bytes, expected at most {MAX_URL_BYTES}")
        if len(self.headers) > MAX_HEADERS:
            raise RefusedByDoor(_HEAD_TOO_LARGE, f"the request has more than {MAX_HEADERS} headers")
        if self._first_bytes + self._head_bytes + self._chunk_bytes > MAX_HEAD_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                raise RefusedByDoor(_HEAD_TOO_LARGE, f"the head of the request has more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        self.check_head()
        if (self._origin or self._site) and self.parser.get_method() not in SAFE_METHODS:
            self.door.check_page(self._origin, self._site, self._host)
        if self.parser.should_upgrade():
            return  # `_go_on_without_upgrade` comes next.
        self.stage = BODY
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.stage != BODY:
            return
        self._is_more_body = True
        if not self.cycle.response_complete:
            self.hold(len(body))
        super().on_body(body)

    def hold(self, size: int) -> None:
        """Counts bytes of a body. Raises RefusedByDoor."""
        self._is_more_body = True
        self._body_bytes += size
        self.door.hold(self, size)

    def on_message_complete(self) -> None:
        if self.stage != BODY:
            return
        self.stage = NONE
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.note_answered()
        if not self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.door.begin_in_turn(self)

    def note_answered(self) -> None:
        """The room of its body is free."""
        self._answered_any = True
        self.heard_at = self.loop.time()
        if self.held_bytes:
            self.door.release(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = 0.0


def protocol_of(bounds: HttpBounds) -> type[asyncio.Protocol]:
    """The class for uvicorn.Config(http=...)."""
    return type("DoorProtocol", (BoundedHttpProtocol,), {"door": Door(bounds)})
