"""What only Kafka can do to us: be away, come back, and refuse."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.eventlog.kafka_log import KafkaLog
from common.eventlog.tests.conftest import start_kafka
from common.eventlog.tests.records import examples_of, read_all, record
from testing.kafka.kafka_server import KafkaServer

_TOPIC = "examples.test"
_TIMEOUT_SECONDS = 60.0
pytestmark = pytest.mark.kafka


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker that a test may kill."""
    server = start_kafka(tmp_path)
    yield server
    server.stop()


def test_pythons_own_generator_is_left_to_the_model_that_is_built(own_kafka: KafkaServer) -> None:
    before = random.getstate()
    log = KafkaLog([own_kafka.address])
    log.create_topic(_TOPIC, partition_count=1)
    log.append(_TOPIC, 0, [record(b"a")])
    assert examples_of(read_all(log, _TOPIC)) == [b"a"]
    log.close()
    assert random.getstate() == before


@pytest.mark.slow
def test_appends_outlive_a_killed_broker_and_land_once(own_kafka: KafkaServer) -> None:
    log = KafkaLog([own_kafka.address])
    log.create_topic(_TOPIC, partition_count=1)
    log.append(_TOPIC, 0, [record(b"before")])
    acknowledged: list[bytes] = []
    refused: list[HeadraceError] = []
    stop = threading.Event()

    def append() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            example = b"%d" % number
            try:
                log.append(_TOPIC, 0, [record(example)])
            except HeadraceError as error:
                refused.append(error)
            else:
                acknowledged.append(example)

    thread = threading.Thread(target=append)
    thread.start()
    _wait_for(lambda: len(acknowledged) > 20)
    own_kafka.kill()
    own_kafka.start()
    after_restart = len(acknowledged)
    _wait_for(lambda: len(acknowledged) > after_restart + 20)
    stop.set()
    thread.join(_TIMEOUT_SECONDS)
    found = examples_of(read_all(log, _TOPIC))
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    assert all(isinstance(error, Unavailable) for error in refused)
    log.close()


@pytest.mark.slow
def test_a_broker_that_is_away_is_reported_as_unavailable(free_port: int) -> None:
    log = KafkaLog([f"127.0.0.1:{free_port}"])

    for _ in range(2):
        with pytest.raises(Unavailable, match=f"127.0.0.1:{free_port}"):
            log.end_position(_TOPIC)
    log.close()


def test_a_record_larger_than_kafka_takes_is_refused(kafka_address: str) -> None:
    log = KafkaLog([kafka_address])
    topic = f"examples.{time.time_ns()}"
    log.create_topic(topic, partition_count=1)
    log.append(topic, 0, [record(b"x" * (8 << 20))])
    with pytest.raises(InvalidInput, match="larger than Kafka takes"):
        log.append(topic, 0, [record(b"x" * (17 << 20))])
    log.append(topic, 0, [record(b"next")])
    assert [len(example) for example in examples_of(read_all(log, topic))] == [8 << 20, 4]
    log.close()


def test_iterations_left_unfinished_do_not_use_up_the_readers(kafka_address: str) -> None:
    log = KafkaLog([kafka_address])
    topic = f"examples.{time.time_ns()}"
    log.create_topic(topic, partition_count=1)
    offsets = log.append(topic, 0, [record(b"%d" % number) for number in range(5)])
    for _ in range(40):
        assert next(log.read(topic, 0, 0, 5)).offset == offsets[0]
    log.close()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        threading.Event().wait(0.01)
