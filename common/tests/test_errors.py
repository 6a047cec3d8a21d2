"""The errors and their translations: HTTP and gRPC tell a caller the same thing, and nothing else."""

from typing import Any

import grpc
import pytest
from fastapi import FastAPI

from common.errors import (
    KINDS,
    Conflict,
    DataLoss,
    HeadraceError,
    InvalidInput,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from common.process.health import Health
from common.process.rpc import start_server
from common.process.rpc_client import errors_from_status, open_channel
from common.process.web import create_app
from protos import ingest_pb2, ingest_pb2_grpc
from testing.asgi import asked
from testing.rows import each_row

_CODES: dict[type[HeadraceError], tuple[int, str, int]] = {
    InvalidInput: (400, "INVALID_ARGUMENT", 3), NotFound: (404, "NOT_FOUND", 4), Unavailable: (503, "UNAVAILABLE", 7),
    Conflict: (409, "FAILED_PRECONDITION", 5), Overloaded: (429, "RESOURCE_EXHAUSTED", 6),
    DataLoss: (500, "DATA_LOSS", 8), Unauthenticated: (401, "UNAUTHENTICATED", 9),
    PermissionDenied: (403, "PERMISSION_DENIED", 10),
}  # fmt: skip
"""By error: over HTTP, over gRPC, of the command line."""
_TIMEOUT_SECONDS = 60.0


def _app_that_raises(error: HeadraceError) -> FastAPI:
    app = create_app("test", Health())

    @app.get("/fail")
    async def fail() -> None:
        raise error

    return app


class _Failing(ingest_pb2_grpc.IngestServiceServicer):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def Append(self, request: ingest_pb2.AppendRequest, context: Any) -> ingest_pb2.AppendResponse:  # noqa: N802
        raise self._error


def _call(error: Exception) -> None:
    """Calls a server that raises `error`, through a real connection."""
    server, port = start_server(
        "127.0.0.1:0",
        lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(_Failing(error), server),
        service_names=("headrace.IngestService",),
        service_health=Health(),
    )
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        with errors_from_status("the service"):
            ingest_pb2_grpc.IngestServiceStub(channel).Append(ingest_pb2.AppendRequest(), timeout=_TIMEOUT_SECONDS)
    finally:
        channel.close()
        server.stop(None).wait(_TIMEOUT_SECONDS)


def test_every_error_has_its_codes() -> None:
    assert {kind: (kind.http, kind.grpc, kind.exit) for kind in KINDS} == _CODES


@each_row("kind", [*_CODES])
def test_an_error_comes_out_of_grpc_as_it_went_in(kind: type[HeadraceError]) -> None:
    with pytest.raises(HeadraceError) as caught:
        _call(kind("a sentence"))
    assert type(caught.value) is kind
    assert caught.value.message.endswith("a sentence")
    assert isinstance(caught.value.__cause__, grpc.Call)
    assert caught.value.__cause__.code().name == _CODES[kind][1]


def test_a_fault_of_ours_is_no_answer_to_rely_on() -> None:
    with pytest.raises(Unavailable, match=r"the service failed with INTERNAL: .* KeyError"):
        _call(KeyError("a fault"))


def test_a_server_that_is_not_there_is_unavailable() -> None:
    channel = open_channel("127.0.0.1:1")
    stub = ingest_pb2_grpc.IngestServiceStub(channel)
    with pytest.raises(Unavailable, match="the service"), errors_from_status("the service"):
        stub.Append(ingest_pb2.AppendRequest(), timeout=_TIMEOUT_SECONDS)
    channel.close()


@each_row("kind", [*_CODES])
def test_an_error_raised_in_a_route_is_a_body_with_its_kind_and_sentence(kind: type[HeadraceError]) -> None:
    answer = asked(_app_that_raises(kind("a sentence")), "/fail")
    assert answer.status_code == _CODES[kind][0]
    assert answer.json() == {"error": {"kind": kind.__name__, "message": "a sentence"}}
    assert ("retry-after" in answer.headers) is (kind in (Overloaded, Unavailable))


def test_refused_items_are_part_of_the_body() -> None:
    error = InvalidInput("two are bad", refused=((0, "why"), (3, "why not")))
    body = asked(_app_that_raises(error), "/fail").json()
    assert body["error"]["refused"] == [{"index": 0, "reason": "why"}, {"index": 3, "reason": "why not"}]


def test_an_overload_says_when_to_come_back() -> None:
    answer = asked(_app_that_raises(Overloaded("full", retry_after_seconds=7.2)), "/fail")
    assert int(answer.headers["retry-after"]) in (7, 8)


def test_a_bad_parameter_is_one_sentence_of_ours() -> None:
    app = create_app("test", Health())

    @app.get("/count")
    async def count(limit: int) -> int:
        return limit

    answer = asked(app, "/count?limit=many")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "InvalidInput")
    assert "query.limit" in answer.json()["error"]["message"]


def test_readyz_leaves_out_the_conditions_that_a_balancer_names_and_refuses_those_it_does_not_know() -> None:
    health = Health("queue", "models", "manager")
    app = create_app("test", health)
    health.satisfy("manager")
    assert asked(app, "/readyz?exclude=queue").status_code == 503
    answer = asked(app, "/readyz?exclude=queue&exclude=models")
    assert (answer.status_code, answer.json()["conditions"]["queue"]) == (200, "starting")
    answer = asked(app, "/readyz?exclude=redis")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "cannot exclude redis: the conditions here are manager, models, queue"


def test_readyz_names_every_condition_until_all_hold() -> None:
    health = Health("log", "registry")
    app = create_app("test", health)
    assert asked(app, "/healthz").status_code == 200
    health.satisfy("log")
    health.fail("registry", "cannot be reached")
    answer = asked(app, "/readyz")
    assert (answer.status_code, answer.json()["conditions"]) == (503, {"log": "ok", "registry": "cannot be reached"})
    health.satisfy("registry")
    assert asked(app, "/readyz").status_code == 200
    health.stop()
    assert asked(app, "/readyz").status_code == 503
    assert asked(app, "/readyz?exclude=log").status_code == 503
    assert asked(app, "/metrics").headers["content-type"].startswith("text/plain")


def test_listeners_hear_each_change_of_readiness_once() -> None:
    health = Health("log")
    heard: list[bool] = []
    health.listen(heard.append)
    health.satisfy("log")
    health.satisfy("log")
    health.fail("log", "away")
    health.fail("log", "still away")
    assert heard == [False, True, False]
