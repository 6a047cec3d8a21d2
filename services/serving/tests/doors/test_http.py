"""The HTTP door on the wire: the short way for predictions must be indistinguishable from an ordinary server."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

_TIMEOUT_SECONDS = 60.0
_PATH = "/v1/models/m:predict"
_MAX_BODY_BYTES = 4096


@pytest.fixture(scope="module")
def front(redis_beside: RedisServer) -> Iterator[FrontThread]:
    state = replica_state(version())
    with (
        FrontThread(redis_beside.url, state, max_body_bytes=_MAX_BODY_BYTES, keep_alive_seconds=2) as front,
        FakeRunner(redis_beside.url, row_sums) as front.runner,
    ):
        yield front


class Wire:
    """A raw connection that reads whole responses."""

    def __init__(self, front: FrontThread) -> None:
        self._socket = socket.create_connection(("127.0.0.1", front.port), timeout=_TIMEOUT_SECONDS)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self._file.readline().split()[1])
        headers: dict[str, str] = {}
        while (line := self._file.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self._file.read(int(headers.get("content-length", "0")))

    def is_closed(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def wire(front: FrontThread) -> Iterator[Wire]:
    opened = Wire(front)
    yield opened
    opened.close()


def post(row: list[float], *headers: str, path: str = _PATH, body: bytes | None = None) -> bytes:
    body = json.dumps({"instances": [row]}).encode() if body is None else body
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*parts: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks


def predictions(response: tuple[int, dict[str, str], bytes]) -> list[float]:
    status, headers, body = response
    assert (status, headers["content-type"]) == (200, "application/json")
    return list(json.loads(body)["predictions"])


def test_pipelined_requests_are_answered_in_order_also_across_both_ways(wire: Wire) -> None:
    wire.send(
        post([1, 1])
        + post([2, 1])
        + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        + post([3, 1], path="/v1/models/other:predict")
        + b"GET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n"
        + post([4, 1])
    )
    assert predictions(wire.response()) == [2.0]
    assert predictions(wire.response()) == [3.0]
    assert json.loads(wire.response()[2]) == {"status": "ok"}
    assert wire.response()[0] == 404
    assert json.loads(wire.response()[2])["model_version_status"][0]["state"] == "AVAILABLE"
    assert predictions(wire.response()) == [5.0]


def test_a_thousand_pipelined_faults_behind_a_prediction_are_answered_one_by_one(wire: Wire) -> None:
    """Each is answered as it begins; begun within one another they would be deeper than Python goes."""
    wire.send(post([1, 1]) + post([], body=b"{") * 1000 + post([2, 1]))
    assert predictions(wire.response()) == [2.0]
    assert {wire.response()[0] for _ in range(1000)} == {400}
    assert predictions(wire.response()) == [3.0]


def test_every_answer_names_its_version_and_no_error_does(wire: Wire) -> None:
    for request in (post([1, 2]), chunked(b'{"instances": [[', b"1,2]]}")):  # the short way and the ordinary one
        wire.send(request)
        response = wire.response()
        assert predictions(response) == [3.0]
        assert response[1]["headrace-version"] == "3"
    wire.send(post([1, 2], path="/v1/models/other:predict") + post([1, 2], body=b"{"))
    for status in (404, 400):
        response = wire.response()
        assert response[0] == status
        assert "headrace-version" not in response[1]


def test_a_request_may_arrive_byte_by_byte(wire: Wire) -> None:
    for byte in post([1, 2]) + post([3, 4]):
        wire.send(bytes([byte]))
    assert predictions(wire.response()) == [3.0]
    assert predictions(wire.response()) == [7.0]


def test_connection_close_is_honoured(wire: Wire) -> None:
    wire.send(post([1, 2], "Connection: close"))
    response = wire.response()
    assert predictions(response) == [3.0]
    assert response[1]["connection"] == "close"
    assert wire.is_closed()


def test_http_1_0_gets_an_answer_and_the_end(wire: Wire) -> None:
    wire.send(post([1, 2]).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert predictions(wire.response()) == [3.0]
    assert wire.is_closed()


def test_expect_100_continue_is_answered_before_the_body_is_sent(wire: Wire) -> None:
    head, _, body = post([1, 2], "Expect: 100-continue").partition(b"\r\n\r\n")
    wire.send(head + b"\r\n\r\n")
    assert wire.response()[0] == 100
    wire.send(body)
    assert predictions(wire.response()) == [3.0]


def test_a_gzip_body_is_inflated_and_a_broken_one_is_empty(wire: Wire) -> None:
    body = gzip.compress(json.dumps({"instances": [[1, 2]]}).encode())
    wire.send(post([], "Content-Encoding: gzip", body=body))
    assert predictions(wire.response()) == [3.0]
    for broken in (body[:-4], b"not gzip"):
        wire.send(post([], "Content-Encoding: gzip", body=broken))
        status, _, answer = wire.response()
        assert (status, json.loads(answer)) == (400, {"error": "JSON Parse error: The document is empty"})


@pytest.mark.parametrize(
    "request_bytes",
    [
        post([], body=b" " * (_MAX_BODY_BYTES + 1)),
        post([], "Content-Encoding: gzip", body=gzip.compress(b" " * (_MAX_BODY_BYTES + 1))),
        chunked(b" " * 5000),
    ],
)  # fmt: skip
def test_a_body_over_the_limit_is_refused(wire: Wire, request_bytes: bytes) -> None:
    wire.send(request_bytes)
    status, headers, body = wire.response()
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body) == {"error": f"the request body is larger than {_MAX_BODY_BYTES} bytes"}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_hangs_up_while_waiting_harms_nobody(front: FrontThread, is_chunked: bool) -> None:
    runner = front.runner
    runner.answers.clear()
    gone, stays = Wire(front), Wire(front)
    gone.send(chunked(b'{"instances": [[1, 2]]}') if is_chunked else post([1, 2]))
    wait_until(lambda: front.call(lambda: front.front.open_count) == 1)
    gone.close()
    wait_until(lambda: front.call(lambda: front.front.open_count) == 0)
    stays.send(post([2, 2]))
    runner.answers.set()
    assert predictions(stays.response()) == [4.0]
    stays.close()


def test_a_client_that_hangs_up_in_the_middle_of_its_body_is_no_error(
    front: FrontThread, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = Wire(front), Wire(front)
    begun = chunked(b'{"instances": [[1, 2]]}')[:-4]
    gone.send(begun)
    wait_until(lambda: front.call(lambda: len(front.server.server_state.tasks)))
    gone.close()
    wait_until(lambda: not front.call(lambda: len(front.server.server_state.tasks)))
    stays.send(post([2, 2]))
    assert predictions(stays.response()) == [4.0]
    stays.close()
    assert not caplog.records


def test_an_idle_connection_is_closed_after_a_while(wire: Wire) -> None:
    wire.send(post([1, 2]))
    assert predictions(wire.response()) == [3.0]
    assert wire.is_closed()


def test_a_client_that_does_not_read_stops_being_read(front: FrontThread) -> None:
    with Wire(front)._socket as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(0.5)
        request = post([1, 2], path="/v1/models/m/versions/99999999999999999999:predict")
        sent, left = 0, b""
        with pytest.raises(TimeoutError):  # noqa: PT012  (which send blocks is not known)
            while sent < 1 << 28:
                left = left or request * 50  # a send may take a part: what follows begins where it ended
                taken = lazy.send(left)
                sent, left = sent + taken, left[taken:]


def test_what_follows_nonsense_is_not_thrown_away_for_ever_behind_an_answer_that_waits(front: FrontThread) -> None:
    front.runner.answers.clear()
    wire = Wire(front)
    wire.send(post([1, 2]) + b"nonsense\r\n\r\n")
    with pytest.raises(ConnectionError):  # noqa: PT012  (which send fails is not known)
        for _ in range(1 << 12):
            wire.send(b"\0" * (1 << 16))
    front.runner.answers.set()


@each_row("milliseconds", ["soon", "²", "1²", "٣", "1_000", "+1", "1.5", "-1", "0x10", "9" * 10])
@each_row("way", [(), ("Accept: */*", "Expect: nothing")])
def test_a_deadline_header_of_digits_that_are_no_decimal_ones_is_refused(
    wire: Wire, milliseconds: str, way: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    wire.send(post([1, 2], *way, f"X-Request-Timeout-Ms: {milliseconds}"))
    status, _, body = wire.response()
    assert (status, "expected whole milliseconds" in json.loads(body)["error"]) == (400, True)
    assert not caplog.records


@each_row(
    "body",
    [
        b'{"instances": ' + b"[" * 4000,
        b'{"instances": [Inf, ' + b"[" * 4000,
        b'{"instances": [NaN, ' + b"[" * 4000,
        b'{"x": "a:b", "instances": ' + b'{"a":' * 600 + b"1" + b"}" * 601,
        b'{"x": "a:b", "x": 1, "instances": ' + b'[{"a":' * 450 + b"1" + b"}]" * 450 + b"}",
    ],
)
@each_row("way", [(), ("Expect: nothing",)])
def test_a_body_nested_without_end_is_the_clients_fault_and_nothing_to_log(
    wire: Wire, body: bytes, way: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    wire.send(post([], *way, body=body[:_MAX_BODY_BYTES]))
    status, headers, answer = wire.response()
    assert (status, headers["content-type"], list(json.loads(answer))) == (400, "application/json", ["error"])
    assert not caplog.records
    wire.send(post([1, 2]))
    assert predictions(wire.response()) == [3.0]


def test_stopping_finishes_what_runs_and_closes_the_connection(redis_server: RedisServer) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version())) as front,
        FakeRunner(redis_server.url, row_sums) as runner,
    ):
        runner.answers.clear()
        busy, idle = Wire(front), Wire(front)
        busy.send(post([1, 2]))
        wait_until(lambda: front.call(lambda: front.front.open_count) == 1)
        front.call(lambda: setattr(front.server, "should_exit", True))
        assert idle.is_closed()
        runner.answers.set()
        response = busy.response()
        assert predictions(response) == [3.0]
        assert response[1]["connection"] == "close"
        assert busy.is_closed()


def get(front: FrontThread, path: str, method: str = "GET") -> tuple[int, Any]:
    answer = plain_http.request(method, front.url + path, timeout=_TIMEOUT_SECONDS)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


@pytest.mark.covers("srv-metadata")
def test_status_lists_versions_and_ignores_labels(front: FrontThread) -> None:
    version_status = {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    expected = (200, {"model_version_status": [version_status]})
    assert get(front, "/v1/models/m") == expected
    assert get(front, "/v1/models/m/versions/3") == expected
    assert get(front, "/v1/models/m/labels/unknown") == expected
    assert get(front, "/v1/models/n") == (404, {"error": "Could not find any versions of model n"})
    assert get(front, "/v1/models/m/versions/4") == (404, {"error": "Could not find version 4 of model m"})


@pytest.mark.covers("srv-metadata")
def test_metadata_shows_signatures_with_default_values_written_out(front: FrontThread) -> None:
    status, body = get(front, "/v1/models/m/metadata")
    assert status == 200
    assert body["model_spec"] == {"name": "m", "signature_name": "", "version": "3"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}], "unknown_rank": False},
        "name": "serve_x:0",
    }
    assert get(front, "/v1/models/m/versions/7/metadata")[0] == 404


def test_names_are_percent_decoded(front: FrontThread) -> None:
    answer = front.post({"instances": [1]}, "/v1/models/a%2Fb%20c:predict")
    assert (answer.status_code, answer.json()) == (404, {"error": "Servable not found for request: Latest(a/b c)"})


def test_a_version_beyond_int64_is_refused(front: FrontThread) -> None:
    error = {"error": "Failed to convert version: 9223372036854775808 to numeric."}
    assert get(front, "/v1/models/m/versions/9223372036854775808:predict", "POST") == (400, error)
    assert get(front, "/v1/models/m/versions/9223372036854775808") == (400, error)
    assert get(front, f"/v1/models/m/versions/{'9' * 5000}:predict", "POST")[0] == 400
    answer = front.post({"instances": [[1, 2]]}, "/v1/models/m/versions/0003:predict")
    assert answer.status_code == 503, "leading zeros are fine; nobody serves version/3 in this test"


def test_pages_of_other_origins_are_allowed_on_both_ways_when_the_setting_says_so(redis_server: RedisServer) -> None:
    with (
        FrontThread(redis_server.url, replica_state(version()), enable_cors=True) as front,
        FakeRunner(redis_server.url, row_sums),
    ):
        predicted = front.post({"instances": [[1, 2]]})
        status = plain_http.get(front.url + "/v1/models/m", timeout=60)
    for answer in (predicted, status):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "POST, GET"
        assert answer.headers["access-control-allow-headers"] == "Content-Type"
