"""The process: doors first, dependencies in the background, settings checked, a clean end."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tfrecord import frame
from common.process.rpc_aio import open_aio_channel
from services.ingest.tests.conftest import SCHEMA, event, with_changes
from services.ingest.tests.processes import Process, register
from testing.registry_server import RegistryServer
from testing.rows import each_row
from testing.waiting import wait_until


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    """Not started."""
    server = RegistryServer(tmp_path / "registry")
    yield server
    if server.process is not None:
        server.kill()


@pytest.fixture
def ingest(tmp_path: Path, registry: RegistryServer) -> Iterator[Process]:
    """Not started."""
    process = Process(tmp_path, registry_address=registry.address, event_log=f"segments:{tmp_path}/mount/log")
    yield process
    process.kill()


def test_it_waits_for_its_dependencies_and_says_what_is_missing(
    tmp_path: Path, ingest: Process, registry: RegistryServer
) -> None:
    (tmp_path / "mount").write_text("in the way: the log's folder cannot be made")
    ingest.start()
    wait_until(lambda: ingest.get("/healthz")[0] == 200, "answering /healthz")
    wait_until(lambda: "mount" in ingest.get("/readyz")[1]["conditions"]["log"], "naming the log")
    wait_until(lambda: "registry" in ingest.get("/readyz")[1]["conditions"]["registry"], "naming the registry")
    assert ingest.get("/readyz")[0] == 503

    (tmp_path / "mount").unlink()
    registry.start()
    ingest.wait_ready()
    assert ingest.get("/v1/streams/flights")[0] == 404
    register(registry)
    assert ingest.send([event(0)])[1]["accepted"] == 1
    wait_until(lambda: ingest.get("/v1/streams")[1] == {"streams": ["flights"]}, "listing the stream")

    wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
    register(registry, "flights", with_changes(SCHEMA, wind))
    wait_until(lambda: ingest.get("/v1/streams/flights")[1]["schema_version"] == 2, "the watch tells the schema")
    registry.kill()
    wait_until(lambda: ingest.get("/readyz")[0] == 503, "noticing that the registry is away")
    assert ingest.send([event(1, wind=1.0)])[1]["position"] == {"0": 2}
    registry.start()
    wait_until(lambda: ingest.get("/readyz")[0] == 200, "finding the registry again")
    assert ingest.stop() == 0


def test_grpc_health_tells_that_it_is_not_ready(ingest: Process) -> None:
    ingest.start()
    wait_until(lambda: ingest.get("/healthz")[0] == 200, "answering /healthz")

    async def status() -> int:
        async with open_aio_channel(f"127.0.0.1:{ingest.grpc_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="headrace.IngestService")
            return int((await stub.Check(request, timeout=60)).status)

    assert asyncio.run(status()) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert ingest.stop() == 0


@each_row(
    ("settings", "sentence"),
    [
        ({"event_log": "files:/tmp"}, "has an unknown scheme"),
        ({"event_log": "segments:/tmp/x", "max_in_flight_bytes": "2000"}, "at least 8 times max_body_bytes"),
        ({}, "INGEST_EVENT_LOG"),
    ],
)
def test_a_wrong_setting_stops_the_start(tmp_path: Path, settings: dict[str, str], sentence: str) -> None:
    given: dict[str, object] = {"http_port": 0, "grpc_port": 0, **settings}
    process = Process(tmp_path, "services.ingest.__main__:main", slow_log_dir=None, **given)
    process.start()
    assert process.exit_status() == (1 if "unknown scheme" in sentence else 2)
    assert sentence in process.log_text()


def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Process(tmp_path, http_port=port, grpc_port=0, event_log=f"segments:{tmp_path}/log")
        process.start()
        assert process.exit_status() == 1
        assert f"cannot listen on 127.0.0.1:{port}" in process.log_text()


def test_a_damaged_stream_is_named_by_readyz_and_keeps_no_other_from_its_events(
    tmp_path: Path, ingest: Process, registry: RegistryServer
) -> None:
    registry.start()
    for stream in ("damaged", "flights"):
        register(registry, stream)
    ingest.start()
    wait_until(lambda: ingest.get("/v1/streams/damaged")[0] == 200, "the stream is open")
    ingest.stop()
    log = SegmentLog(tmp_path / "mount" / "log")
    for number in range(4):
        log.append("examples.damaged", 0, [NewRecord(frame([b"x"]), RecordHeaders(1, 1, 1.0, bytes([number]) * 16))])
    log.close()
    (index,) = (tmp_path / "mount" / "log" / "examples.damaged" / "0").glob("*.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 + 1 :])
    ingest.start()
    wait_until(lambda: ingest.get("/healthz")[0] == 200, "it answers")
    wait_until(lambda: "segments" in ingest.get("/readyz")[1]["conditions"], "the damage shows")
    status, readiness = ingest.get("/readyz")
    assert status == 503
    assert readiness["conditions"]["segments"].startswith("stream damaged: ")
    wait_until(lambda: ingest.get("/v1/streams/flights")[0] == 200, "the other stream is open")
    assert ingest.send([event(0)])[1]["accepted"] == 1
