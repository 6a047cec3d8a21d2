"""HTTP requests as bytes: good ones of every door, and what a clumsy or hostile client makes of them."""

from random import Random

Request = bytes
_JSON, _LINES = b"application/json", b"application/x-ndjson"
_SCHEMA = b'{"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "int64"}]}'
_EVENT = b'{"events": [{"x": 1.5, "y": 1}]}'
_ODD_VALUES = (
    b"1e400", b"-1e999999999", b"9" * 10_000, b"0x10", b"NaN", b"null", b"[" * 50_000, b'{"a":' * 20_000, b'"\\ud800"',
    b'"\\u0000"', b"\xff\xfe", b"", b"{}", b"[]", b'"\xc2\xb2"', b"true", b'{"a": 1, "a": 2}', b"1" + b"0" * 400,
)  # fmt: skip
_ODD_HEADERS = (
    b"X-Request-Timeout-Ms: \xc2\xb2", b"X-Request-Timeout-Ms: " + b"9" * 5_000, b"Content-Length: -1",
    b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Expect: 100-continue", b"Upgrade: h2c\r\nConnection: Upgrade",
    b"Host: evil.example", b"Origin: http://evil.example", b"X: " + b"y" * 40_000, b"X-Request-Id: \x01\x7f",
    b"Content-Type: application/json; charset=\xff", b"Content-Type: multipart/form-data; boundary=", b"Accept: \x00",
    b"Idempotency-Key: \xe2\x82\xac", b"Idempotency-Key: " + b"k" * 5_000, b"Connection: close, keep-alive", b": empty",
    b"Range: bytes=0-" + b"9" * 50, b"Cookie: " + b"a=b; " * 500,
)  # fmt: skip
_ODD_PATHS = (
    b"/%", b"/%zz", b"/%00", b"/%ff%fe", b"/..%2f..%2fetc/passwd", b"//evil.example/", b"/" + b"a/" * 3_000, b"*", b"",
    b"http://evil.example/healthz", b"/v1/models/\xff", b"/v1/models/m/versions/" + b"0" * 6_000,
    b"/v1/models/m/versions/" + b"9" * 5_000, b"/v1/models/m/versions/\xc2\xb2:predict", b"/v1/models/%ED%A0%80",
    b"/v1/streams/%2e%2e/events", b"/v1/files/" + b"0" * 64, b"/docs", b"/openapi.json", b"/metrics?x=1",
    b"/readyz?exclude=%00", b"/v1/models/m?limit=1e400", b"/v1/models/m/rounds?limit=" + b"9" * 5_000,
)  # fmt: skip
_METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"BREW", b"get")


def _request(method: bytes, path: bytes, body: bytes = b"", content_type: bytes = _JSON) -> Request:
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (method, path)
    if body:
        head += b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body))
    return head + b"\r\n" + body


_ABOVE = b'{"instances": [{"a": 0.8, "b": 0.7}]}'
"""What the one model that is loaded takes: `above` of e2e_tests/points.py."""
_POINT = b'{"events": [{"a": 0.8, "b": 0.7, "above": 1}]}'
_COMMON = [_request(b"GET", path) for path in (b"/healthz", b"/readyz", b"/metrics", b"/openapi.json")]
GOOD: dict[str, list[Request]] = {
    "registry": [
        *_COMMON,
        _request(b"PUT", b"/v1/streams/s", _SCHEMA),
        _request(b"PUT", b"/v1/models/m", b'{"stream": "s", "files": {"model.yaml": "bmFtZTogbQ=="}, "by": "fuzz"}'),
        _request(b"PUT", b"/v1/models/m/aliases/production", b'{"version": 1, "by": "fuzz"}'),
        _request(b"POST", b"/v1/models/m:rollback", b'{"by": "fuzz", "reason": "r"}'),
        _request(b"GET", b"/v1/models/above/versions/1"),
        _request(b"GET", b"/v1/models/above/account"),
        _request(b"GET", b"/v1/models/above/diff?from=1&to=1"),
        _request(b"GET", b"/v1/history?model=above&limit=5"),
        _request(b"POST", b"/v1/apply", b'{"stream": {"name": "s", "schema": {}}, "by": "fuzz"}'),
        _request(b"GET", b"/models/above/versions/1"),
        _request(b"GET", b"/v1/models/m/rounds?limit=3"),
        _request(b"POST", b"/v1/gc"),
    ],
    "ingest": [
        *_COMMON,
        _request(b"POST", b"/v1/streams/s/events", _EVENT),
        _request(b"POST", b"/v1/streams/s/events?on_invalid=deadletter", b'{"x": 1}\n{"x": "a"}\n', _LINES),
        _request(b"POST", b"/v1/streams/s/events", b"\x10" + bytes(40), b"application/x-tfrecord"),
        _request(b"GET", b"/v1/streams/s/deadletters?limit=5"),
        _request(b"POST", b"/v1/streams/s/deadletters:replay"),
        _request(b"POST", b"/v1/streams/points/events", _POINT),
        _request(b"POST", b"/v1/streams/points/events?on_invalid=deadletter", b'{"a": 1, "b": 2}\n', _LINES),
    ],
    "trainer": [
        *_COMMON,
        _request(b"POST", b"/v1/models/m:train", b'{"by": "fuzz", "reason": "r"}'),
        _request(b"POST", b"/v1/models/m/versions/1:rebuild"),
        _request(b"POST", b"/v1/models/above:train", b'{"by": "fuzz", "reason": "r", "from": "head"}'),
        _request(b"GET", b"/v1/rebuilds/none"),
        _request(b"GET", b"/v1/status"),
    ],
    "serving": [
        *_COMMON,
        _request(b"POST", b"/v1/models/m:predict", b'{"instances": [[1.0, 2.0]]}'),
        _request(b"POST", b"/v1/models/m/versions/1:predict", b'{"inputs": {"x": [[1, 2]]}}'),
        _request(b"POST", b"/v1/models/m/labels/l:classify", b'{"examples": [{"x": 1.0}], "context": {"y": "a"}}'),
        _request(b"POST", b"/v1/models/m:regress", b'{"examples": [{"x": {"b64": "AA=="}}]}'),
        _request(b"POST", b"/v1/models/m:predictAsync?deadline_seconds=5", b'{"instances": [1]}'),
        _request(b"GET", b"/v1/predictions/none?wait_seconds=0"),
        _request(b"GET", b"/v1/models/above/metadata"),
        _request(b"POST", b"/v1/models/above:predict", _ABOVE),
        _request(b"POST", b"/v1/models/above/versions/1:predict", b'{"inputs": {"a": [0.8, 1], "b": [0.7, 2]}}'),
        _request(b"POST", b"/v1/models/above/labels/production:classify", b'{"examples": [{"a": 1.0, "b": 0.5}]}'),
        _request(b"POST", b"/v1/models/above:predictAsync?deadline_seconds=5", _ABOVE),
        _request(b"GET", b"/headrace/status"),
    ],
}  # fmt: skip
"""By service. Model m and stream s do not exist, model above and stream points do."""


def mutated(good: Request, random: Random) -> Request:
    """One to three faults in a request; now and then it stays good."""
    request = good
    for _ in range(random.randint(0, 3)):
        request = random.choice(_MUTATIONS)(request, random)
    return request


def _parts(request: Request) -> tuple[bytes, bytes, bytes]:
    """First line, headers, body."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    return line, headers, body


def _joined(line: bytes, headers: bytes, body: bytes) -> Request:
    return b"%b\r\n%b\r\n\r\n%b" % (line, headers, body)


def _with_body(request: Request, body: bytes) -> Request:
    line, headers, _ = _parts(request)
    kept = [header for header in headers.split(b"\r\n") if not header.lower().startswith(b"content-length")]
    return _joined(line, b"\r\n".join([*kept, b"Content-Length: %d" % len(body)]), body)


def _cut(request: Request, random: Random) -> Request:
    return request[: random.randrange(len(request) + 1)]


def _flip(request: Request, random: Random) -> Request:
    changed = bytearray(request)
    for _ in range(random.randint(1, 8) if changed else 0):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _insert(request: Request, random: Random) -> Request:
    at = random.randrange(len(request) + 1)
    return request[:at] + random.randbytes(random.randint(1, 200)) + request[at:]


def _odd_header(request: Request, random: Random) -> Request:
    line, headers, body = _parts(request)
    return _joined(line, headers + b"\r\n" + random.choice(_ODD_HEADERS), body)


def _odd_path(request: Request, random: Random) -> Request:
    line, headers, body = _parts(request)
    method = line.partition(b" ")[0]
    return _joined(b"%b %b HTTP/1.1" % (method, random.choice(_ODD_PATHS)), headers, body)


def _odd_method(request: Request, random: Random) -> Request:
    line, headers, body = _parts(request)
    return _joined(random.choice(_METHODS) + b" " + line.partition(b" ")[2], headers, body)


def _odd_version(request: Request, random: Random) -> Request:
    return request.replace(b"HTTP/1.1", random.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 x", b"")), 1)


def _odd_body(request: Request, random: Random) -> Request:
    return _with_body(request, random.choice(_ODD_VALUES))


def _odd_value(request: Request, random: Random) -> Request:
    """Something odd within the JSON."""
    body = _parts(request)[2]
    places = [at for at, byte in enumerate(body) if byte in b':,["0123456789']
    if not places:
        return _odd_body(request, random)
    at = random.choice(places) + 1
    return _with_body(request, body[:at] + random.choice(_ODD_VALUES) + body[at + random.randint(0, 3) :])


def _chunked(request: Request, random: Random) -> Request:
    line, headers, body = _parts(request)
    kept = b"\r\n".join(h for h in headers.split(b"\r\n") if not h.lower().startswith(b"content-length"))
    size = random.choice((b"%x" % len(body), b"ffffffffffffffffff", b"-1", b"zz", b"0", b"%x;a=b" % len(body)))
    return _joined(line, kept + b"\r\nTransfer-Encoding: chunked", b"%b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (size, body))


def _large(request: Request, random: Random) -> Request:
    return _with_body(request, random.choice((b"[" + b"0," * 200_000 + b"0]", bytes(300_000), b'"' + b"a" * 500_000)))


def _twice(request: Request, random: Random) -> Request:
    return request.replace(b"Connection: close\r\n", b"", 1) * random.randint(2, 5) + request


_MUTATIONS = (
    _cut, _flip, _insert, _odd_header, _odd_path, _odd_method, _odd_version, _odd_body, _odd_value, _odd_value,
    _chunked, _large, _twice,
)  # fmt: skip
