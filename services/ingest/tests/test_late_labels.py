"""Labels that come after their events: in a topic of their own before the answer, or refused with the reason."""

import asyncio
import json
from typing import Any

import grpc
import httpx
import pytest

from common.errors import InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.process.health import Health
from common.schema import Schema
from protos import ingest_pb2 as pb
from services.ingest.doors.http_api import create_ingest_app
from services.ingest.intake.accept import Intake
from services.ingest.tests.conftest import SCHEMA, World, stub_of
from testing.rows import each_row

LATE: dict[str, Any] = SCHEMA | {"late_labels": {"key": "id", "wait_seconds": 60}}
LABELS = Schema.from_mapping(LATE).of_late_labels("later")
_URL = "/v1/streams/later/labels"
_TIMEOUT_SECONDS = 60.0


@pytest.fixture
def later(world: World) -> World:
    world.registry.register("later", LATE)
    return world


def _ask(intake: Intake, *requests: tuple[str, str, Any, dict[str, str]]) -> list[httpx.Response]:
    """(method, path, body, headers) one after the other."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_ingest_app(intake, Health(), intake.tracing))
        async with httpx.AsyncClient(transport=transport, base_url="http://ingest", timeout=_TIMEOUT_SECONDS) as client:
            return [
                await client.request(method, path, json=body, headers=headers)
                for method, path, body, headers in requests
            ]

    return asyncio.run(run())


def _post(body: Any, key: str = "", url: str = _URL) -> tuple[str, str, Any, dict[str, str]]:
    return "POST", url, body, {"Idempotency-Key": key} if key else {}


def _labels_in_log(world: World) -> list[dict[str, Any]]:
    codec = ExampleCodec(LABELS)
    examples = [one for record in world.records("labels.later") for one in tfrecord.cut(record.value)[0]]
    return [{name: values[0] for name, values in codec.decode(one).items()} for one in examples]


def test_labels_are_in_their_topic_when_they_are_answered(later: World) -> None:
    (answer,) = _ask(later.intake(), _post({"labels": [{"id": 7, "late": 1}, {"id": 8, "late": 0}]}))
    assert answer.json() == {"accepted": 2, "refused": [], "position": {"0": 1}, "duplicate": False}
    assert _labels_in_log(later) == [{"id": 7, "late": 1}, {"id": 8, "late": 0}]
    assert later.records("examples.later") == []


def test_an_idempotency_key_takes_labels_once_and_is_not_that_of_events(later: World) -> None:
    body, event = {"labels": [{"id": 7, "late": 1}]}, {"distance": 1.0, "carrier": "AA", "id": 7}
    events = _post({"events": [event]}, "k", "/v1/streams/later/events")
    first, again, of_events = _ask(later.intake(), _post(body, "k"), _post(body, "k"), events)
    assert (first.json()["duplicate"], again.json()["duplicate"], of_events.json()["duplicate"]) == (False, True, False)
    (after_restart,) = _ask(later.intake(), _post(body, "k"))
    assert after_restart.json()["duplicate"]
    assert len(_labels_in_log(later)) == 1


@each_row(
    ("url", "body", "status", "sentence"),
    [
        (_URL, {"labels": [{"late": 1}]}, 400, "id is missing"),
        (_URL, {"labels": [{"id": 7}]}, 400, "late is missing"),
        (_URL, {"labels": [{"id": 7, "late": 2}]}, 400, "late is 2"),
        (_URL, {"labels": [{"id": 7, "late": 1, "carrier": "AA"}]}, 400, "'carrier' is not in the schema"),
        (_URL, {"events": []}, 400, 'an object with one member, {"labels": [...]}'),
        (f"{_URL}?on_invalid=deadletter", {"labels": []}, 400, "on_invalid"),
        ("/v1/streams/nowhere/labels", {"labels": []}, 404, "nowhere"),
        ("/v1/streams/flights/labels", {"labels": []}, 409, "stream flights takes labels with their events"),
        ("/v1/streams/later:labels/events", {"events": []}, 404, "there is no stream 'later:labels'"),
    ],
)
def test_wrong_labels_are_refused_with_the_reason(
    later: World, url: str, body: Any, status: int, sentence: str
) -> None:
    (answer,) = _ask(later.intake(), _post(body, url=url))
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]
    assert later.records("labels.later") == []


def test_an_event_may_come_without_its_label_and_the_status_counts_both(later: World) -> None:
    event = {"distance": 1.0, "carrier": "AA", "id": 7}
    intake = later.intake()
    taken, _, status = _ask(
        intake,
        _post({"events": [event]}, url="/v1/streams/later/events"),
        _post({"labels": [{"id": 7, "late": 1}]}),
        ("GET", "/v1/streams/later", None, {}),
    )
    assert taken.json()["accepted"] == 1
    assert status.json()["accepted_since_start"] == 1
    labels = {"topic": "labels.later", "end": {"0": 1}, "accepted_since_start": 1, "refused_since_start": 0}
    assert status.json()["labels"] == labels


def test_grpc_takes_labels_all_or_none(later: World) -> None:
    request = pb.AppendRequest(stream="later", examples=[ExampleCodec(LABELS).encode({"id": 7, "late": 1})])
    with_letters = pb.AppendRequest(stream="later", examples=request.examples, on_invalid=pb.ON_INVALID_DEADLETTER)

    async def run() -> pb.AppendResponse:
        async with stub_of(later.intake()) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="labels have no dead letters"):
                await stub.AppendLabels(with_letters)
            answer: pb.AppendResponse = await stub.AppendLabels(request)
        return answer

    assert asyncio.run(run()).accepted == 1
    assert _labels_in_log(later) == [{"id": 7, "late": 1}]


@each_row(
    ("changes", "sentence"),
    [
        ({"late_labels": {"key": "id"}}, "late_labels must be {key: FEATURE, wait_seconds: N}"),
        ({"late_labels": {"key": "id", "wait_seconds": 0}}, "wait_seconds must be more than 0"),
        ({"late_labels": {"key": "id", "wait_seconds": 1, "wait": 1}}, "unknown keys ['wait']"),
        ({"late_labels": {"key": "distance", "wait_seconds": 1}}, "key 'distance' must be a required scalar feature"),
        ({"late_labels": {"key": "nothing", "wait_seconds": 1}}, "no feature 'nothing'"),
        ({"labels": []}, "no labels that could come late"),
        ({"labels": [{"name": "late", "dtype": "int64", "required": True}]}, "label 'late' is required"),
    ],
)
def test_a_schema_that_cannot_have_late_labels_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Schema.from_mapping(LATE | changes)
    assert sentence in refusal.value.message


def test_a_schema_with_late_labels_is_read_back_equal() -> None:
    schema = Schema.from_mapping(LATE)
    assert Schema.from_json(schema.to_json()) == schema
    assert json.loads(schema.to_json())["labels"][0]["required"] is False
