"""The process: doors first, dependencies in the background, settings checked, a clean end."""

import asyncio
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tfrecord import frame
from common.process.rpc_aio import open_aio_channel
from services.ingest.tests.conftest import SCHEMA, event, with_changes
from services.ingest.tests.processes import Process, get, register
from testing.processes import free_ports
from testing.rows import each_row
from testing.waiting import wait_until


@pytest.fixture
def ports() -> list[int]:
    """Four ports that were free a moment ago: ingest HTTP and gRPC, registry HTTP and gRPC."""
    return free_ports(4)


@pytest.fixture
def ingest(tmp_path: Path, ports: list[int]) -> Iterator[Process]:
    process = Process(
        "services.ingest.__main__:main", tmp_path, "INGEST_", http_port=ports[0], grpc_port=ports[1],
        registry_address=f"127.0.0.1:{ports[3]}", event_log=f"segments:{tmp_path}/mount/log",
    )  # fmt: skip
    yield process
    if process.popen is not None and process.popen.poll() is None:
        process.kill()


@pytest.fixture
def registry(tmp_path: Path, ports: list[int]) -> Iterator[Process]:
    process = Process(
        "services.registry.__main__:main", tmp_path, "REGISTRY_", http_port=ports[2], grpc_port=ports[3],
        data_dir=tmp_path / "registry",
    )  # fmt: skip
    yield process
    if process.popen is not None and process.popen.poll() is None:
        process.kill()


def _post(port: int, *events: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/streams/flights/events",
        data=json.dumps({"events": events}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_it_waits_for_its_dependencies_and_says_what_is_missing(
    tmp_path: Path, ports: list[int], ingest: Process, registry: Process
) -> None:
    (tmp_path / "mount").write_text("in the way: the log's folder cannot be made")
    ingest.start()
    wait_until(lambda: get(ports[0], "/healthz")[0] == 200, "answering /healthz")
    wait_until(lambda: "mount" in get(ports[0], "/readyz")[1]["conditions"]["log"], "naming the log")
    wait_until(lambda: "registry" in get(ports[0], "/readyz")[1]["conditions"]["registry"], "naming the registry")
    assert get(ports[0], "/readyz")[0] == 503

    (tmp_path / "mount").unlink()
    registry.start()
    wait_until(lambda: get(ports[0], "/readyz")[0] == 200, "becoming ready")
    assert get(ports[0], "/v1/streams/flights")[0] == 404
    register(ports[3], "flights", SCHEMA)
    assert _post(ports[0], event(0))["accepted"] == 1
    wait_until(lambda: get(ports[0], "/v1/streams")[1] == {"streams": ["flights"]}, "listing the stream")

    wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
    register(ports[3], "flights", with_changes(SCHEMA, wind))
    wait_until(lambda: get(ports[0], "/v1/streams/flights")[1]["schema_version"] == 2, "the watch tells the schema")
    registry.kill()
    wait_until(lambda: get(ports[0], "/readyz")[0] == 503, "noticing that the registry is away")
    assert _post(ports[0], event(1, wind=1.0))["position"] == {"0": 2}
    registry.start()
    wait_until(lambda: get(ports[0], "/readyz")[0] == 200, "finding the registry again")
    assert ingest.stop() == 0


def test_grpc_health_tells_that_it_is_not_ready(ports: list[int], ingest: Process) -> None:
    ingest.start()
    wait_until(lambda: get(ports[0], "/healthz")[0] == 200, "answering /healthz")

    async def status() -> int:
        async with open_aio_channel(f"127.0.0.1:{ports[1]}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="headrace.IngestService")
            return int((await stub.Check(request, timeout=60)).status)

    assert asyncio.run(status()) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert ingest.stop() == 0


@each_row(
    ("settings", "sentence"),
    [
        ({"event_log": "files:/tmp"}, "has an unknown scheme"),
        ({"event_log": "segments:/tmp/x", "lingr_seconds": "1"}, "unknown setting INGEST_LINGR_SECONDS"),
        ({"event_log": "segments:/tmp/x", "http_port": "high"}, "invalid setting: INGEST_HTTP_PORT"),
        ({"event_log": "segments:/tmp/x", "max_in_flight_bytes": "2000"}, "at least 8 times max_body_bytes"),
        ({}, "INGEST_EVENT_LOG"),
    ],
)
def test_a_wrong_setting_stops_the_start(tmp_path: Path, settings: dict[str, str], sentence: str) -> None:
    given: dict[str, object] = {"http_port": 0, "grpc_port": 0, **settings}
    process = Process("services.ingest.__main__:main", tmp_path, "INGEST_", slow_log_dir=None, **given)
    process.start()
    assert process.exit_status() == (1 if "unknown scheme" in sentence else 2)
    assert sentence in process.log_text()


def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Process(
            "services.ingest.__main__:main",
            tmp_path,
            "INGEST_",
            http_port=port,
            grpc_port=0,
            event_log=f"segments:{tmp_path}/log",
        )
        process.start()
        assert process.exit_status() == 1
        assert f"cannot listen on 127.0.0.1:{port}" in process.log_text()


def test_a_damaged_stream_is_named_by_readyz_and_keeps_no_other_from_its_events(
    tmp_path: Path, ports: list[int], ingest: Process, registry: Process
) -> None:
    registry.start()
    wait_until(lambda: get(ports[2], "/readyz")[0] == 200, "the registry is ready")
    for stream in ("damaged", "flights"):
        register(ports[3], stream, SCHEMA)
    ingest.start()
    wait_until(lambda: get(ports[0], "/v1/streams/damaged")[0] == 200, "the stream is open")
    ingest.stop()
    log = SegmentLog(tmp_path / "mount" / "log")
    for number in range(4):
        log.append("examples.damaged", 0, [NewRecord(frame([b"x"]), RecordHeaders(1, 1, 1.0, bytes([number]) * 16))])
    log.close()
    (index,) = (tmp_path / "mount" / "log" / "examples.damaged" / "0").glob("*.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 + 1 :])
    ingest.start()
    wait_until(lambda: get(ports[0], "/healthz")[0] == 200, "it answers")
    wait_until(lambda: "segments" in get(ports[0], "/readyz")[1]["conditions"], "the damage shows")
    status, readiness = get(ports[0], "/readyz")
    assert status == 503
    assert readiness["conditions"]["segments"].startswith("stream damaged: ")
    wait_until(lambda: get(ports[0], "/v1/streams/flights")[0] == 200, "the other stream is open")
    assert _post(ports[0], event(0))["accepted"] == 1
