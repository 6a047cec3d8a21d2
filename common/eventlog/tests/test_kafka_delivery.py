"""A producer that has stopped to deliver is found out; one that waits for Kafka is waited for."""

import itertools
import time
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.record import util as kafka_checksums

from common.eventlog.kafka_log import StuckProducer, wait_delivered


class Delivery:
    """Delivers at the n-th look; 0: never. `error` is how it ends instead."""

    def __init__(self, *, at_look: int = 0, error: Exception | None = None) -> None:
        self.looks = 0
        self._at_look, self._error = at_look, error

    @property
    def is_done(self) -> bool:
        return 0 < self._at_look <= self.looks

    def get(self, timeout: float) -> Any:
        self.looks += 1
        if self.is_done and self._error is not None:
            raise self._error
        if self.is_done:
            return "metadata"
        raise kafka_errors.KafkaTimeoutError("not yet")


def wait(delivery: Delivery, **changes: Any) -> Any:
    options: dict[str, Any] = {"answers": lambda: True, "stuck_seconds": 0.05, "look_seconds": 0.001}
    return wait_delivered(delivery, time.monotonic() + 30.0, **(options | changes))


def test_what_is_delivered_late_is_delivered() -> None:
    assert wait(Delivery(at_look=3)) == "metadata"


def test_a_producer_that_delivers_nothing_to_a_kafka_that_answers_is_stuck() -> None:
    with pytest.raises(StuckProducer, match="delivered nothing"):
        wait(Delivery())


def test_time_in_which_kafka_does_not_answer_does_not_count() -> None:
    answers = itertools.cycle([True, False])
    delivery = Delivery(at_look=500)
    assert wait(delivery, answers=lambda: next(answers), stuck_seconds=20.0) == "metadata"
    assert wait(Delivery(at_look=500), answers=lambda: False, stuck_seconds=0.0) == "metadata"


def test_how_a_delivery_ended_is_told_at_once_also_when_it_ended_by_a_timeout_of_its_own() -> None:
    for error in (kafka_errors.KafkaTimeoutError("expired"), kafka_errors.NotLeaderForPartitionError("moved")):
        with pytest.raises(type(error), match=r"expired|moved"):
            wait(Delivery(at_look=2, error=error))


def test_the_deadline_ends_the_wait() -> None:
    with pytest.raises(kafka_errors.KafkaTimeoutError, match="not yet"):
        wait_delivered(Delivery(), time.monotonic(), answers=lambda: True)


def test_kafkas_checksums_are_computed_by_the_compiled_library() -> None:
    """kafka-python falls back, without a word, to Python code that takes 0.3 s for a MiB."""
    assert kafka_checksums.crc32c_c is not None
    assert kafka_checksums._crc32c is kafka_checksums.crc32c_c
