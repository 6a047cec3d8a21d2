"""HTTP doors under clients that announce, wait, dribble, pipeline, pretend and pile up."""

import asyncio
import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from email.utils import formatdate, parsedate_to_datetime
from itertools import pairwise

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from common.errors import InvalidInput
from common.process.gzip_bodies import MAX_MEMBERS, inflate
from common.process.http_door import Door, HttpBounds, HttpTimes, host_names
from common.process.http_protocol import BoundedHttpProtocol, protocol_of
from common.process.lifecycle import raise_open_files_limit
from common.process.web import WebServer, bind, bounds_of
from testing.rows import each_row

_QUICK = HttpTimes(head=0.3, silence=0.3, body=0.6, unread=0.3, dropped_after=0.05, linger=0.1, look=0.05)
_TIMEOUT_SECONDS = 60.0


async def echo(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
    """Answers with the method, the path and the body."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    said = f"{scope['method']} {scope['path']} ".encode() + body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@contextmanager
def door(bounds: HttpBounds) -> Iterator[int]:
    server = WebServer(_lifespanless, bind("127.0.0.1", 0), bounds)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


async def _lifespanless(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
    if scope["type"] == "http":
        await echo(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with door(HttpBounds(is_loopback=True, allowed_hosts=frozenset({"ours.example"}), times=_QUICK)) as number:
        yield number


def test_the_first_answer_after_a_quiet_night_has_the_date_of_today() -> None:
    server = WebServer(_lifespanless, bind("127.0.0.1", 0), HttpBounds(is_loopback=True))
    server.start()
    yesterday = time.time() - 86_400
    server._server.server_state.default_headers = [(b"date", formatdate(yesterday, usegmt=True).encode())]
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=_TIMEOUT_SECONDS) as answer:
        assert parsedate_to_datetime(answer.headers["date"]).timestamp() > yesterday + 3600
    server.stop()


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """Until the door closes."""
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def ask(port: int, *parts: bytes) -> bytes:
    """What the door answers to these bytes, each sent by itself; it closes after the last answer."""
    with opened(port) as connection:
        for part in parts:
            connection.sendall(part)
        return read_all(connection)


def ask_as_far_as_it_reads(port: int, *parts: bytes) -> bytes:
    """As ask; the door may close before all is sent."""
    with opened(port) as connection:
        with suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        return read_all(connection)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@each_row("pieces", [1, 7])
def test_an_upgrade_is_not_offered_and_the_body_of_its_request_is_its_body(port: int, pieces: int) -> None:
    wish = b"POST /a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 26\r\n\r\n"
    text = wish + b"GET /smuggled HTTP/1.1\r\n\r\n" + LAST
    size = -(-len(text) // pieces)
    answer = ask(port, *(text[at : at + size] for at in range(0, len(text), size)))
    assert b"POST /a GET /smuggled HTTP/1.1\r\n\r\n" in answer
    assert b"GET /last " in answer
    assert answer.count(b"HTTP/1.1 200 OK") == 2


@each_row(
    ("request_bytes", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 400_000, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 421),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)  # fmt: skip
def test_what_is_too_large_or_is_no_http_is_refused_in_the_form_of_every_error(
    port: int, request_bytes: bytes, expected: int
) -> None:
    answer = ask(port, request_bytes)
    assert status(answer) == expected
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["kind"] == "InvalidInput"


def test_names_that_are_not_ours_are_refused(port: int) -> None:
    ours = ("localhost", "localhost:1", "127.0.0.1:8701", "[::1]:8701", "ours.example:80", "a.localhost", "LOCALHOST.")
    for name in ours:
        assert status(ask(port, b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % name.encode())) == 200
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8701", "", "a b", "\xff"):
        answer = ask(port, b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % name.encode())
        assert status(answer) == 421, name


def test_a_published_door_answers_to_its_own_names_only() -> None:
    """A page of http://evil.example:PORT whose name comes to resolve to this machine sends its own name, as Host and as
    Origin, and the browser takes it for one site."""
    with bind("0.0.0.0", 0) as sock:
        bounds = bounds_of(sock, service="ingest", allowed_hosts="ours.example, b.example", max_bodies_bytes=1 << 20)
    with door(replace(bounds, times=_QUICK)) as port:

        def asked(host: str, headers: str = "", method: str = "POST") -> int:
            head = f"{method} / HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"
            return status(ask(port, head.encode()))

        rebound = f"evil.example:{port}"
        assert asked(rebound, f"Origin: http://{rebound}\r\nSec-Fetch-Site: same-origin\r\n") == 421
        assert [asked(name) for name in ("ingest", socket.gethostname(), "10.0.0.1:8601", "b.example")] == [200] * 4
        assert [asked(name) for name in ("registry", "evil.example", "ingest.evil.example", "")] == [421] * 4


def test_any_host_may_be_allowed_by_name_only() -> None:
    assert host_names("a.example,  B.example c") == {"a.example", "b.example", "c"}
    with door(HttpBounds(allowed_hosts=host_names("*"), times=_QUICK)) as port:
        head = b"Host: evil.example\r\nConnection: close\r\n"
        assert status(ask(port, b"POST / HTTP/1.1\r\n" + head + b"\r\n")) == 200
        assert status(ask(port, b"POST / HTTP/1.1\r\nOrigin: http://other.example\r\n" + head + b"\r\n")) == 403
    for text in ("http://a.example", "a.example:8701", ".example/"):
        with pytest.raises(InvalidInput, match="is no name of a host"):
            host_names(text)


@each_row("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_pages_of_others_may_not_change_anything(port: int, method: str) -> None:
    def asked(origin: str, method: str = method) -> int:
        head = f"{method} / HTTP/1.1\r\nHost: localhost:8701\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        return status(ask(port, head.encode()))

    for origin in ("http://localhost:8701", "https://localhost:8701", "http://ours.example"):
        assert asked(origin) == 200
    for origin in ("http://evil.example", "null", "http://localhost:3000", "http://evil.example/localhost:8701"):
        assert asked(origin) == 403
    assert asked("http://evil.example", "GET") == 200
    with_site = "{}\r\nSec-Fetch-Site: {}"
    assert asked(with_site.format("http://localhost:8701", "same-origin")) == 200
    assert asked(with_site.format("http://ours.example", "cross-site")) == 200
    for site in ("cross-site", "same-site", "Cross-Site"):
        assert asked(with_site.format("http://localhost:8701", site)) == 403
        head = f"{method} / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: {site}\r\nConnection: close\r\n\r\n"
        refused = ask(port, head.encode())
        assert (status(refused), f"another site ({site.lower()})".encode() in refused.lower()) == (403, True)


@each_row(
    ("beginning", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: local", b"HTTP/1.1 408"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc", b"HTTP/1.1 408"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"HTTP/1.1 408"),
        (b"", b""),
    ],
)
def test_whoever_says_no_more_is_let_go(port: int, beginning: bytes, expected: bytes) -> None:
    assert ask(port, beginning).startswith(expected)


def test_a_body_that_dribbles_is_given_up_although_it_is_never_silent(port: int) -> None:
    with opened(port) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        connection.settimeout(0.05)
        answer = b""
        while not answer:
            connection.sendall(b"x")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
    assert status(answer) == 408


def test_whoever_does_not_read_its_answer_is_let_go(port: int) -> None:
    size = 32 * 1024 * 1024
    with opened(port) as connection, opened(port) as other:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(bytes(size))
        assert connection.recv(1)
        with opened(port) as later:  # The door lets it go after as long a silence, so the first one is gone by then.
            assert read_all(later) == b""
        assert len(read_all(connection)) < size
        assert read_all(other) == b""


def test_announcing_a_body_holds_no_memory_and_a_silent_one_gives_way_to_one_that_comes() -> None:
    bounds = HttpBounds(max_bodies_bytes=1_000_000, is_loopback=True, times=HttpTimes(dropped_after=0.0))
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with door(bounds) as port, ExitStack() as stack:
        silent = [stack.enter_context(opened(port)) for _ in range(20)]
        for connection in silent[:10]:
            connection.sendall(head % 900_000)
        for connection in silent[10:]:
            connection.sendall(head % 200_000 + bytes(90_000))
        for _ in range(3):
            assert status(ask(port, head % 800_000 + bytes(800_000))) == 200
        assert status(ask(port, head % 1_100_000 + bytes(1_000_001))) == 429
    with door(replace(bounds, is_loopback=False)) as port, ExitStack() as stack:
        other = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS, source_address=("127.0.0.2", 0))
        for connection in (stack.enter_context(other), *(stack.enter_context(opened(port)) for _ in range(5))):
            connection.sendall(head % 90_001 + bytes(90_000))
        assert status(ask(port, head % 300_000 + bytes(300_000))) == 200, "of the address that is above its half"
        other.sendall(b"1")
        assert status(read_all(other)) == 200


def test_connections_that_say_nothing_give_way_to_new_ones() -> None:
    with door(HttpBounds(max_connections=8, is_loopback=True)) as port, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(opened(port))
        for _ in range(5):
            assert status(ask(port, LAST)) == 200


def test_one_address_has_half_of_a_door_that_others_reach_too() -> None:
    with door(HttpBounds(max_connections=8)) as port:
        kept = [opened(port) for _ in range(5)]
        for connection in kept[1:]:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status(connection.recv(65536)) == 200
        assert read_all(kept[0]) == b"", "the fifth of four: the first, which had said nothing, went"
        for connection in kept:
            connection.close()


def test_pipelined_requests_are_answered_in_order_and_the_fault_comes_last(port: int) -> None:
    good = b"POST /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
    answer = ask(port, b"".join(good % number for number in range(3)) + b"nonsense\r\n\r\n")
    assert [b"POST /%d x" % number in answer for number in range(3)] == [True] * 3


def test_of_many_pipelined_requests_a_connection_holds_a_few_and_answers_all() -> None:
    count, waiting = 3000, []

    async def ask_all() -> bytes:
        made: list[BoundedHttpProtocol] = []

        async def counting(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
            waiting.append(len(made[0].pipeline))
            await echo(scope, receive, send)

        config = Config(counting, http=protocol_of(HttpBounds()), lifespan="off", log_config=None)
        state, loop = ServerState(), asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            made.append(config.http(config, state, {}))  # type: ignore[operator,arg-type,call-arg]  # a class of ours
            return made[-1]

        async with asyncio.timeout(_TIMEOUT_SECONDS), await loop.create_server(make, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            requests = [
                b"POST /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx" % number
                for number in range(count)
            ]
            writer.write(b"".join(requests) + LAST)
            answer = await reader.read(-1)
            writer.close()
            return answer

    answer = asyncio.run(ask_all())
    assert re.findall(rb"POST /(\d+) x", answer) == [b"%d" % number for number in range(count)]
    assert answer.endswith(b"GET /last ")
    assert max(waiting) < 200, "sixteen, and what was parsed together with the last of them"


def test_requests_behind_others_begin_in_turns_of_the_loop() -> None:
    """Between two turns the loop accepts and reads: /healthz waits for some of a crowd's requests, not for all."""
    loop, begun, seen = asyncio.new_event_loop(), [], []

    class Crowd:
        def __init__(self, left: int) -> None:
            self.loop, self.left = loop, left

        def begin_next(self) -> None:
            begun.append(self)
            self.left -= 1
            if self.left:
                crowded.begin_in_turn(self)  # type: ignore[arg-type]  # no more is asked of it

    def look() -> None:
        seen.append(len(begun))
        if seen[-1] < 900:
            loop.call_soon(look)

    crowded = Door(HttpBounds())
    crowd = [Crowd(3) for _ in range(300)]
    for connection in crowd:
        crowded.begin_in_turn(connection)  # type: ignore[arg-type]  # no more is asked of it
    loop.call_soon(look)
    loop.call_later(_TIMEOUT_SECONDS, loop.stop)
    while len(begun) < 900:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert begun == crowd * 3
    assert max(later - earlier for earlier, later in pairwise(seen)) <= 64


def test_trailers_of_a_chunked_body_are_no_headers(port: int) -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = ask(port, chunked + b"3\r\nabc\r\n0\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n")
    assert answer.endswith(b"POST / abc")


def test_a_trailer_takes_no_more_room_than_a_head(port: int) -> None:
    """The parser keeps a trailer until its line ends. Extensions between chunks of a body are no trailer."""
    chunked = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    endless = [b"3\r\nabc\r\n0\r\nX: ", *[b"y" * 65536] * 200]
    assert status(ask_as_far_as_it_reads(port, chunked, *endless)) == 431
    extended = b"".join(b"1;%b\r\nx\r\n" % (b"e" * 1000) for _ in range(100))
    assert ask(port, chunked, extended, b"0\r\n\r\n").endswith(b"POST / " + b"x" * 100)


@each_row(
    ("headers", "sentence"),
    [
        (b"Content-Type: a/b\r\nContent-Type: a/b", b"two content-type headers"),
        (b"Idempotency-Key: a\r\nIdempotency-Key: b", b"two idempotency-key headers"),
        (b"Content-Encoding: gzip\r\nContent-Encoding: identity", b"two content-encoding headers"),
        (b"Transfer-Encoding: gzip, chunked", b"'gzip, chunked', expected chunked"),
    ],
)
def test_headers_of_which_one_would_be_ignored_are_refused(port: int, headers: bytes, sentence: bytes) -> None:
    answer = ask(port, b"POST / HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % headers)
    assert status(answer) == 400
    assert sentence in answer


def test_gzip_members_are_read_as_one_stream_in_linear_time() -> None:
    parts = [os.urandom(300_000), b"", b"a" * 1_000_000, b"end"]
    body = b"".join(map(gzip.compress, parts))
    assert inflate(body, max_bytes=2_000_000) == b"".join(parts)
    assert inflate(body, max_bytes=len(b"".join(parts)) - 1) is None
    assert inflate(body, max_bytes=len(b"".join(parts))) == b"".join(parts)
    empty = gzip.compress(b"", mtime=0)
    assert inflate(empty * MAX_MEMBERS, max_bytes=10) == b""
    with pytest.raises(InvalidInput, match="more than 10000 members"):
        inflate(empty * (MAX_MEMBERS + 1), max_bytes=10)


@each_row("body", [b"no gzip", gzip.compress(b"x" * 99)[:-1], gzip.compress(b"x") + b"rest", zlib.compress(b"x")])
def test_what_is_no_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="gzip"):
        inflate(body, max_bytes=1000)


def test_a_bomb_is_left_as_soon_as_it_is_too_large() -> None:
    assert inflate(gzip.compress(bytes(50_000_000)), max_bytes=1_000_000) is None


def test_a_service_may_have_as_many_files_open_as_the_system_allows() -> None:
    code = (
        "import resource; from common.process.lifecycle import raise_open_files_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); print(raise_open_files_limit() == hard)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
    assert raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
