"""Waits for the records of a Kafka producer, but not for a producer that has stopped to deliver.

The producer goes on for minutes while Kafka is away, so that a batch keeps its sequence number (kafka_log.py). But
after some failures of a broker, such as a full disk, kafka-python 3.0.12 sends nothing more, though the broker is back
and answers everybody else. Such a producer has to be replaced. What it still holds cannot land by then: the broker has
answered for longer than any request of the producer's may take.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from kafka import errors as kafka_errors

from common.errors import Unavailable

STUCK_SECONDS = 30.0
"""Twice the time that one request may take."""
_LOOK_SECONDS = 1.0


class Delivery(Protocol):
    """A future of kafka-python's producer."""

    @property
    def is_done(self) -> bool: ...

    def get(self, timeout: float) -> Any:
        """Raises KafkaTimeoutError when the time is over, or what became of the record."""


class StuckProducer(Unavailable):
    """The producer delivers nothing to a Kafka that answers."""


def wait_delivered(
    delivery: Delivery,
    deadline: float,
    *,
    answers: Callable[[], bool],
    stuck_seconds: float = STUCK_SECONDS,
    look_seconds: float = _LOOK_SECONDS,
) -> Any:
    """The record's metadata, once Kafka has it.

    Args:
        deadline: of the monotonic clock.
        answers: whether Kafka answers a separate request now; may wait for about a second.

    Raises:
        KafkaTimeoutError: the deadline passed. StuckProducer: Kafka has answered for this long without a break, and the
        record is still not delivered. Any other KafkaError, as the delivery ended.
    """
    answering_since: float | None = None
    while True:
        left_seconds = max(0.0, deadline - time.monotonic())
        try:
            return delivery.get(min(look_seconds, left_seconds))
        except kafka_errors.KafkaTimeoutError:
            if delivery.is_done or left_seconds <= look_seconds:
                raise
        if not answers():
            answering_since = None
            continue
        answering_since = answering_since or time.monotonic()
        if time.monotonic() - answering_since >= stuck_seconds:
            raise StuckProducer(f"Kafka answers, but its producer has delivered nothing for {stuck_seconds:.0f} s")
