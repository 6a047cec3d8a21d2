"""A real Kafka for tests: `kafka_address` for all of a worker's tests, `start_kafka` for a test that kills it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.kafka.kafka_server import KafkaServer, NoKafkaError, jars


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of HEADRACE_TEST_KAFKA, else of a broker that is started here, which takes 12 s of a core."""
    given = os.environ.get("HEADRACE_TEST_KAFKA")
    if given:
        yield given
        return
    server = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield server.address
    server.stop()


def start_kafka(directory: Path) -> KafkaServer:
    server = kafka_server(directory)
    server.start()
    return server


def kafka_server(directory: Path) -> KafkaServer:
    """Not started yet."""
    try:
        jars()
    except NoKafkaError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no Kafka in CI: {error}")
        pytest.skip(f"no Kafka on this machine: {error}")
    return KafkaServer(directory)
