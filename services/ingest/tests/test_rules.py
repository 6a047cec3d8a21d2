"""Who may call what of ingest: every route and every method, by the credentials that it takes."""

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from common.access.guard import Guard
from common.process.health import Health
from common.process.rpc_aio import start_aio_server
from protos import ingest_pb2 as pb
from protos import ingest_pb2_grpc
from services.ingest.doors.grpc_api import SERVICE_NAME, IngestServicer
from services.ingest.doors.http_api import create_ingest_app
from services.ingest.doors.rules import RULES
from testing.rows import each_row
from testing.walking import TOKENS, access_in, http_actions, rpc_actions, statuses_of_all

_NOTHING = cast(Any, None)


def _methods(server: Any) -> None:
    ingest_pb2_grpc.add_IngestServiceServicer_to_server(IngestServicer(_NOTHING), server)


def _app(tmp_path: Path) -> Any:
    return create_ingest_app(_NOTHING, Health(), guard=Guard(access_in(tmp_path), RULES))


def test_every_route_and_method_has_a_rule_and_every_rule_is_of_one(tmp_path: Path) -> None:
    actions = http_actions(_app(tmp_path)) | rpc_actions(_methods)
    assert actions == {action for action in RULES if not action.startswith("grpc.")}


@each_row("name", ["", "nobody"])
def test_without_credentials_only_probes_are_answered(tmp_path: Path, name: str) -> None:
    answers = statuses_of_all(_app(tmp_path), name)
    assert {action for action, status in answers.items() if status != 401} == {"GET /healthz", "GET /readyz"}


def test_a_sender_reaches_its_stream_and_nothing_else(tmp_path: Path) -> None:
    app = _app(tmp_path)
    common = {"GET /healthz", "GET /readyz"} | {action for action, rule in RULES.items() if not rule.roles}
    of_stream = {
        "POST /v1/streams/{stream}/events", "POST /v1/streams/{stream}/deadletters:replay", "GET /v1/streams/{stream}",
        "GET /v1/streams/{stream}/deadletters", "POST /v1/streams/{stream}/labels",
    }  # fmt: skip
    for name, reached in (("sender", common | of_stream), ("stranger", common)):
        answers = statuses_of_all(app, name)
        assert {action for action, status in answers.items() if status != 403} == reached & answers.keys()


def test_each_message_of_a_stream_is_held_against_the_roles(tmp_path: Path) -> None:
    """One stream of messages may name several streams of events."""
    taken: list[str] = []

    class Servicer(ingest_pb2_grpc.IngestServiceServicer):
        async def AppendStream(self, requests: Any, context: Any) -> pb.AppendResponse:  # noqa: N802
            async for request in requests:
                taken.append(request.stream)  # noqa: PERF401  # what came before the error is looked at
            return pb.AppendResponse()

    async def run() -> grpc.StatusCode:
        server, port = await start_aio_server(
            "127.0.0.1:0", lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(Servicer(), server),
            service_names=(SERVICE_NAME,), service_health=Health(), guard=Guard(access_in(tmp_path), RULES),
        )  # fmt: skip
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            messages = (pb.AppendRequest(stream=name) for name in ("none", "none", "elsewhere", "none"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ingest_pb2_grpc.IngestServiceStub(channel).AppendStream(
                    messages, timeout=60, metadata=(("authorization", f"Bearer {TOKENS['sender']}"),)
                )
        await server.stop(0)
        return caught.value.code()

    assert asyncio.run(run()) is grpc.StatusCode.PERMISSION_DENIED
    assert taken == ["none", "none"]
