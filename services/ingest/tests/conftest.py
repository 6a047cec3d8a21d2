"""An intake over a real SegmentLog, with streams from memory, and a log that can be told to fail."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidInput, NotFound, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, Record
from common.eventlog.segment_log import SegmentLog
from common.examples.codec import ExampleCodec
from common.process.health import Health
from common.process.rpc_aio import open_aio_channel, start_aio_server
from common.process.tracing import OFF, Tracing
from common.registry.catalog import Change, Stream
from common.schema import Schema
from protos import ingest_pb2_grpc
from services.ingest.codec.layout import LockstepChecker
from services.ingest.doors.grpc_api import SERVICE_NAME, IngestServicer
from services.ingest.intake.accept import Intake
from services.ingest.schemas import Schemas
from services.ingest.settings import IngestSettings
from services.ingest.tests.passing_log import PassingLog

SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "distance", "dtype": "float32", "min": 0},
        {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA"]},
        {"name": "id", "dtype": "int64"},
    ],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
}


def event(number: int, **changes: Any) -> dict[str, Any]:
    return {"distance": number + 0.5, "carrier": "AA", "id": number, "late": number % 2} | changes


class StreamsInMemory:
    """A registry that holds streams and can be away."""

    def __init__(self) -> None:
        self.streams: dict[str, list[Stream]] = {}
        self.is_away = False
        self.calls = 0

    def register(self, name: str, schema: dict[str, Any]) -> None:
        versions = self.streams.setdefault(name, [])
        number = versions[-1].log_number if versions else 1
        versions.append(Stream(name, len(versions) + 1, json.dumps(schema), 0.0, log_number=number))

    def delete_and_register(self, name: str, schema: dict[str, Any]) -> None:
        """Under the same name, another stream."""
        versions = self.streams[name]
        number = len(versions) + 1
        versions.append(Stream(name, number, json.dumps(schema), 0.0, log_number=number))

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        self.calls += 1
        if self.is_away:
            raise Unavailable("the registry cannot be reached")
        if name not in self.streams:
            raise NotFound(f"there is no stream {name!r}")
        return self.streams[name][schema_version - 1]

    def list_streams(self) -> list[Stream]:
        if self.is_away:
            raise Unavailable("the registry cannot be reached")
        return [versions[-1] for versions in self.streams.values()]

    def watch(self, since_revision: int = 0) -> Iterator[Change]:
        raise Unavailable("nothing to watch")


class LogThatFails(PassingLog):
    """Its appends fail before or after it has taken part of the records, as a test says."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.is_away = False
        self.records_taken_before_failing: int | None = None
        self.before_append: Callable[[], object] = lambda: None
        self.append_calls = 0

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> list[int]:
        self.append_calls += 1
        self.before_append()
        self.check()
        if self.records_taken_before_failing is not None:
            super().append(topic, partition, records[: self.records_taken_before_failing])
            self.records_taken_before_failing = None
            raise Unavailable("the log went away")
        return super().append(topic, partition, records)

    def check(self) -> None:
        if self.is_away:
            raise Unavailable("the log is away")


def ids_in(records: Iterable[Record]) -> list[int]:
    """The ids of all their events."""
    codec = ExampleCodec(Schema.from_mapping(SCHEMA))
    found: list[Any] = []
    for record in records:
        examples, _ = tfrecord.cut(record.value)
        assert record.headers.example_count == len(examples)
        found += [codec.decode(item)["id"][0] for item in examples]
    return found


def records_of(log: EventLog, topic: str = "examples.flights") -> list[Record]:
    """All, in order of partition and offset."""
    return [record for part, end in log.end_position(topic).items() for record in log.read(topic, part, 0, end)]


class World:
    """A registry, a log folder, and as many intakes over them as a test starts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = StreamsInMemory()
        self.registry.register("flights", SCHEMA)
        self.settings = IngestSettings.model_validate({"event_log": f"segments:{directory}", "linger_seconds": 0.001})
        self.log = LogThatFails(SegmentLog(directory))
        self._intakes: list[Intake] = []

    def intake(self, *, tracing: Tracing = OFF, **settings: Any) -> Intake:
        """A new process's intake, in effect: it knows nothing but what the log and the registry hold."""
        settings_now = IngestSettings.model_validate(self.settings.model_dump() | settings)
        intake = Intake(settings_now, Schemas(self.registry), tracing=tracing)
        intake.attach_log(self.log)
        self._intakes.append(intake)
        return intake

    def records(self, topic: str = "examples.flights") -> list[Record]:
        try:
            return records_of(self.log, topic)
        except NotFound:
            return []

    def ids(self) -> list[int]:
        return ids_in(self.records())

    def close(self) -> None:
        for intake in self._intakes:
            intake.close()
        self.log.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "log")
    yield made
    made.close()


@asynccontextmanager
async def stub_of(intake: Intake) -> AsyncIterator[Any]:
    """Calls its gRPC door."""
    server, port = await start_aio_server(
        "127.0.0.1:0",
        lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(IngestServicer(intake), server),
        service_names=(SERVICE_NAME,),
        service_health=Health(),
    )
    try:
        async with open_aio_channel(f"127.0.0.1:{port}") as channel:
            yield ingest_pb2_grpc.IngestServiceStub(channel)
    finally:
        await server.stop(None)


def with_changes(schema: dict[str, Any], *features: dict[str, Any]) -> dict[str, Any]:
    return schema | {"features": [*schema["features"], *features]}


def passed_by_lockstep(codec: ExampleCodec, examples: list[bytes]) -> list[bool]:
    lengths = np.array([len(item) for item in examples], dtype=np.int64)
    passed: list[bool] = LockstepChecker(codec).passed(tfrecord.frame(examples), lengths).mask.tolist()
    return passed


def accepts(codec: ExampleCodec, data: bytes) -> bool:
    try:
        codec.check(data)
    except InvalidInput:
        return False
    return True
