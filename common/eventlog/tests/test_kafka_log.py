"""What only Kafka can do to us: be away, come back, and refuse."""

import random
import threading
import time
from pathlib import Path

import pytest

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.eventlog.kafka_log import KafkaLog
from common.eventlog.open import brokers_of, open_event_log
from common.eventlog.tests.records import examples_of, read_all, record
from testing.kafka import SharedKafka
from testing.waiting import wait_until

_TOPIC = "examples.test"
_TIMEOUT_SECONDS = 60.0
pytestmark = pytest.mark.kafka


def _opened(address: str) -> tuple[KafkaLog, str]:
    """A log and a new topic of one partition."""
    log, topic = KafkaLog([address]), f"examples.{time.time_ns()}"
    log.create_topic(topic, partition_count=1)
    return log, topic


def test_pythons_own_generator_is_left_to_the_model_that_is_built(kafka_address: str) -> None:
    before = random.getstate()
    log, topic = _opened(kafka_address)
    log.append(topic, 0, [record(b"a")])
    assert examples_of(read_all(log, topic)) == [b"a"]
    assert log.brokers() == brokers_of(f"kafka:{kafka_address}") == [kafka_address]
    log.close()
    assert random.getstate() == before


@pytest.mark.slow
def test_appends_outlive_a_killed_broker_and_land_once(kafka: SharedKafka) -> None:
    log, topic = _opened(kafka.address)
    log.append(topic, 0, [record(b"before")])
    acknowledged: list[bytes] = []
    refused: list[HeadraceError] = []
    stop = threading.Event()

    def append() -> None:
        number = 0
        while not stop.wait(0.01):  # or it would write thousands while Kafka starts
            number += 1
            example = b"%d" % number
            try:
                log.append(topic, 0, [record(example)])
            except HeadraceError as error:
                refused.append(error)
            else:
                acknowledged.append(example)

    thread = threading.Thread(target=append)
    thread.start()
    wait_until(lambda: len(acknowledged) > 20)
    kafka.kill()
    kafka.start()
    after_restart = len(acknowledged)
    wait_until(lambda: len(acknowledged) > after_restart + 20)
    stop.set()
    thread.join(_TIMEOUT_SECONDS)
    found = examples_of(read_all(log, topic))
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
    log, topic = _opened(kafka_address)
    log.append(topic, 0, [record(b"x" * (8 << 20))])
    with pytest.raises(InvalidInput, match="larger than Kafka takes"):
        log.append(topic, 0, [record(b"x" * (17 << 20))])
    log.append(topic, 0, [record(b"next")])
    assert [len(example) for example in examples_of(read_all(log, topic))] == [8 << 20, 4]
    log.close()


def test_iterations_left_unfinished_do_not_use_up_the_readers(kafka_address: str) -> None:
    log, topic = _opened(kafka_address)
    offsets = log.append(topic, 0, [record(b"%d" % number) for number in range(5)])
    for _ in range(40):
        assert next(log.read(topic, 0, 0, 5)).offset == offsets[0]
    log.close()


def test_events_go_over_sasl_and_tls_with_a_password_from_a_file(kafka: SharedKafka, tmp_path: Path) -> None:
    address, password = f"127.0.0.1:{kafka.secure_port}", kafka.password_path
    sasl = "security_protocol=SASL_SSL&sasl_mechanism=SCRAM-SHA-512&sasl_plain_username=headrace"
    trust = f"&ssl_cafile={kafka.authority_path}"
    log = open_event_log(f"kafka:{address}?{sasl}&password_file={password}{trust}")
    log.ping(timeout_seconds=10.0)
    log.create_topic(_TOPIC, partition_count=1)
    log.append(_TOPIC, 0, [record(b"a")])
    assert examples_of(read_all(log, _TOPIC)) == [b"a"]
    log.close()
    (tmp_path / "wrong").write_text("wrong")
    for options in (
        f"{sasl}&password_file={tmp_path / 'wrong'}{trust}", f"{sasl}&password_file={password}",
        f"{sasl}&password_file={tmp_path / 'none'}{trust}", f"security_protocol=SSL{trust}", "",
    ):  # fmt: skip
        refused = open_event_log(f"kafka:{address}?{options}")
        with pytest.raises(Unavailable) as caught:
            refused.partition_count(_TOPIC)
        assert "s3cret" not in caught.value.message
        refused.close()
