"""Fixtures for the tests of the trainer's control: a registry process, an event log, a trainer with fake rounds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.eventlog.segment_log import SegmentLog
from common.registry.client import RegistryClient
from services.trainer.tests.support.platform_processes import (
    MODEL,
    SCHEMA,
    STREAM,
    TOPIC,
    Events,
    TrainerProcess,
    definition,
)
from testing.processes import free_port
from testing.registry_server import RegistryServer


@pytest.fixture(scope="session", autouse=True)
def _warm(warm_python_path: Path) -> None:
    """Processes that try exports, and zygotes, begin with TensorFlow."""


@pytest.fixture
def registry_process(tmp_path: Path) -> Iterator[RegistryServer]:
    process = RegistryServer(tmp_path / "registry", {"REGISTRY_BACKOFF_FIRST_SECONDS": "0.2"})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def registry(registry_process: RegistryServer) -> Iterator[RegistryClient]:
    """A client of a registry that knows the stream, and a model that trains on every 10 examples."""
    client = RegistryClient(registry_process.address, timeout_seconds=60.0)
    client.register_stream(STREAM, json.dumps(SCHEMA))
    client.register_model(MODEL, stream=STREAM, files={"model.yaml": definition()}, by="test")
    yield client
    client.close()


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    log = SegmentLog(tmp_path / "log")
    log.create_topic(TOPIC, partition_count=2)
    yield Events(log)
    log.close()


@pytest.fixture
def trainer(
    tmp_path: Path, registry_process: RegistryServer, events: Events, warm_python_path: Path
) -> Iterator[TrainerProcess]:
    """Not started yet; a lease lasts 2 s."""
    behaviour = tmp_path / "behaviour"
    behaviour.write_text("register")
    process = TrainerProcess(
        tmp_path / "trainer",
        {
            "FAKE_ROUND_FILE": str(behaviour),
            "TRAINER_HTTP_PORT": str(free_port()),
            "TRAINER_GRPC_PORT": "0",
            "TRAINER_DATA_DIR": str(tmp_path / "trainer"),
            "TRAINER_REGISTRY_ADDRESS": registry_process.address,
            "TRAINER_EVENT_LOG": f"segments:{tmp_path / 'log'}",
            "TRAINER_LEASE_TTL_SECONDS": "2",
            "TRAINER_LEASE_GRACE_SECONDS": "300",
            "TRAINER_STOP_GRACE_SECONDS": "5",
            "TRAINER_ROUND_STALL_SECONDS": "600",  # rounds that only sleep would be taken for stalled
            "TRAINER_POLL_INTERVAL_SECONDS": "0.05",
            "TRAINER_INTRA_OP_THREADS": "1",  # several wait for each other's small pieces at full speed
            "OPENBLAS_NUM_THREADS": "1",
        },
        str(warm_python_path),
    )
    yield process
    if process.process is not None and process.process.poll() is None:
        process.stop()
