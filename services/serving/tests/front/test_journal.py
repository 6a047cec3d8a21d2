"""Every answer has a request id, whichever way the request came; traces of predictions and of loads."""

from collections.abc import Iterator

import grpc
import httpx
import pytest

from common.process.tracing import Tracing, open_tracing
from services.serving.front.journal import MAX_TAG_BYTES, Tags
from services.serving.front.load_trace import LoadTrace
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import LoadAttempt, ReplicaState, ServingState, decode, encode
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row

_HEADER = "x-request-id"
_TAG = "order 17/é".encode("latin-1")


@pytest.fixture(scope="module")
def client(redis_beside: RedisServer) -> Iterator[httpx.Client]:
    with (
        FrontThread(redis_beside.url, replica_state(version())) as front,
        FakeRunner(redis_beside.url, row_sums),
        plain_http.client(base_url=front.url, timeout=60) as client,
    ):
        yield client


@each_row(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/models/m:predict", b'{"instances": [[1, 2]]}', 200),
        ("POST", "/v1/models/m:predict", b"{", 400),
        ("POST", "/v1/models/none:predict", b'{"instances": [[1, 2]]}', 404),
        ("POST", "/v1/models/m:predictAsync", b'{"instances": [[1, 2]]}', 202),
        ("GET", "/v1/models/m", b"", 200),
        ("GET", "/v1/predictions/none", b"", 404),
        ("PUT", "/v1/models/m", b"", 400),
    ],
)
@each_row("ordinary_way", [False, True])
def test_the_clients_id_comes_back(
    client: httpx.Client, method: str, path: str, content: bytes, status: int, ordinary_way: bool
) -> None:
    # A body in chunks does not go the short way.
    body = iter([content]) if ordinary_way and content else content
    response = client.request(method, path, content=body, headers=[(_HEADER.encode(), _TAG)])
    assert response.status_code == status, response.text
    assert response.headers[_HEADER].encode("latin-1") == _TAG
    assert ("headrace-version" in response.headers) == (status == 200 and "predict" in path)


def test_without_one_and_for_one_that_is_too_long_an_id_is_made(client: httpx.Client) -> None:
    ids = set()
    for is_chunked in (False, True):
        for headers in ({}, {_HEADER: "x" * (MAX_TAG_BYTES + 1)}):
            content = b'{"instances": [[1, 2]]}'
            body = iter([content]) if is_chunked else content
            ids.add(client.post("/v1/models/m:predict", content=body, headers=headers).headers[_HEADER])
    assert len(ids) == 4
    assert all(0 < len(made) <= MAX_TAG_BYTES for made in ids)


def test_two_processes_make_different_ids() -> None:
    one, other = Tags(), Tags()
    assert len({one.new(), one.new(), other.new(), other.new()}) == 4


def test_a_traced_prediction_is_followed_to_its_batch_on_every_way_in(redis_server: RedisServer) -> None:
    tracing = open_tracing("serving", 1e-12)

    def headers(way: str) -> dict[str, str]:
        return {"traceparent": f"00-{32 * '1'}-{16 * '2'}-01", _HEADER: way}

    content = b'{"instances": [[1, 2]]}'
    with (
        FrontThread(redis_server.url, replica_state(version()), tracing=tracing) as front,
        FakeRunner(redis_server.url, row_sums),
        plain_http.client(base_url=front.url, timeout=60) as client,
        grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel,
    ):
        for way, body in (("short", content), ("ordinary", iter([content]))):
            assert client.post("/v1/models/m:predict", content=body, headers=headers(way)).status_code == 200
        predict_stub(channel)(predict_request([1, 2]), metadata=tuple(headers("grpc").items()), timeout=60)
        client.post("/v1/models/m:predict", content=content)
        refused = client.post("/v1/models/none:predict", content=content, headers=headers("refused"))
        spans = client.get("/v1/traces/short").json()["spans"]
    assert refused.status_code == 404
    asked_spans = {span["attributes"]["headrace.request_id"]: span for span in spans if span["parent_id"] == 16 * "2"}
    assert asked_spans.keys() == {"short", "ordinary", "grpc", "refused"}
    assert "none" in asked_spans["refused"]["error"]
    for way in ("short", "ordinary", "grpc"):
        below = [span for span in spans if span["parent_id"] == asked_spans[way]["span_id"]]
        assert {span["name"] for span in below} == {"wait in the queue", "batch in the runner"}
        ran = next(span["attributes"] for span in below if "batch" in span["name"])
        assert (ran["headrace.model"], ran["headrace.version"], ran["headrace.batch_requests"]) == ("m", 3, 1)


def spans_of(tracing: Tracing) -> list[tuple[str, float, str]]:
    return [(span["name"], round(span["seconds"], 3), span["error"]) for span in tracing.kept("m@3")]


def test_each_attempt_to_load_a_version_is_shown_once_with_its_parts_and_its_error() -> None:
    tracing, updates = open_tracing("serving", 1e-12), list[ReplicaState]()
    trace = LoadTrace(tracing, updates.append)
    began = LoadAttempt(began_at=100.0, fetched_at=102.0)
    failed = LoadAttempt(100.0, 102.0, 103.0, 107.0, "no such op")
    for attempt in (LoadAttempt(), began, failed, failed):
        trace(replica_state(version(3, state=ServingState.LOADING, attempt=attempt)))
    assert spans_of(tracing) == [
        ("fetch the files", 2.0, ""),
        ("load m", 7.0, "no such op"),
        ("load in the runner", 4.0, ""),
    ]
    for _ in range(2):
        trace(decode(encode(replica_state(version(3, attempt=LoadAttempt(110.0, 0.0, 110.0, 115.0))))))
    assert spans_of(tracing)[3:] == [("load in the runner", 5.0, ""), ("load m", 5.0, "")]
    assert len(updates) == 6
    attributes = tracing.kept("m@3")[-1]["attributes"]
    assert (attributes["headrace.version"], attributes["headrace.replica"]) == (3, "replica")
    tracing.close()
