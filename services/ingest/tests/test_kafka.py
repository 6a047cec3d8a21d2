"""The intake over a real Kafka: the same promises through the other adapter."""

import asyncio
import uuid
from collections.abc import Iterator

import orjson
import pytest

from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log
from services.ingest.intake.accept import AppendRequest, Intake
from services.ingest.intake.replay import replay
from services.ingest.schemas import Schemas
from services.ingest.settings import IngestSettings
from services.ingest.tests.conftest import SCHEMA, StreamsInMemory, event

_TIMEOUT_SECONDS = 60.0


@pytest.fixture
def log(kafka_address: str) -> Iterator[EventLog]:
    opened = open_event_log(f"kafka:{kafka_address}")
    yield opened
    opened.close()


@pytest.mark.kafka
def test_requests_are_taken_once_over_restarts(log: EventLog) -> None:
    stream = f"flights-{uuid.uuid4().hex}"
    registry = StreamsInMemory()
    registry.register(stream, SCHEMA)
    settings = IngestSettings.model_validate({"event_log": "kafka:given", "partition_count": 2, "chunk_events": 40})
    body = orjson.dumps({"events": [event(number, late=3 if number == 7 else 0) for number in range(100)]})
    request = AppendRequest(stream, body, "json", on_invalid="deadletter", idempotency_key="k")

    async def once() -> tuple[int, dict[int, int], bool, int]:
        intake = Intake(settings, Schemas(registry))
        intake.attach_log(log)
        answer = await asyncio.wait_for(intake.append(request), _TIMEOUT_SECONDS)
        report = await asyncio.wait_for(replay(intake, stream), _TIMEOUT_SECONDS)
        intake.close()
        return answer.accepted, answer.position, answer.duplicate, report.refused_count

    first = asyncio.run(once())
    assert (first[0], first[2], first[3]) == (99, False, 1)
    assert asyncio.run(once()) == (99, first[1], True, 1)
    ends = log.end_position(f"examples.{stream}")
    infos = [info for part, end in ends.items() for info in log.scan(f"examples.{stream}", part, 0, end)]
    assert [info.headers.example_count for info in infos] == [40, 40, 19]
    assert [info.headers.example_count for info in log.scan(f"deadletter.{stream}", 0, 0, 1)] == [1]
