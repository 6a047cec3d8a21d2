"""Every answer has a request id: whichever way the request came, and whatever the answer is."""

from collections.abc import Iterator

import grpc
import httpx
import pytest

from common.process.tracing import open_tracing
from services.serving.front.journal import MAX_TAG_BYTES, Tags
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.grpc_calls import predict_request, predict_stub
from services.serving.tests.support.replica_states import replica_state, version
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

    def told(way: str) -> dict[str, str]:
        return {"traceparent": f"00-{32 * '1'}-{16 * '2'}-01", _HEADER: way}

    content = b'{"instances": [[1, 2]]}'
    with (
        FrontThread(redis_server.url, replica_state(version()), tracing=tracing) as front,
        FakeRunner(redis_server.url, row_sums),
        plain_http.client(base_url=front.url, timeout=60) as client,
        grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel,
    ):
        for way, body in (("short", content), ("ordinary", iter([content]))):
            assert client.post("/v1/models/m:predict", content=body, headers=told(way)).status_code == 200
        predict_stub(channel)(predict_request([1, 2]), metadata=tuple(told("grpc").items()), timeout=60)
        client.post("/v1/models/m:predict", content=content)
        refused = client.post("/v1/models/none:predict", content=content, headers=told("refused"))
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
