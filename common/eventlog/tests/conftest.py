"""The logs under test: one per adapter, each with its own way of making retention happen."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tests.segments import segment_log


@dataclass(frozen=True)
class LogUnderTest:
    url: str
    expire: Callable[[str, int], None]
    """Removes old records of partition 0 of a topic, up to `before` at most, leaving newer ones."""
    directory: Path | None = None
    """Where segments lie; None on Kafka."""

    def open(self) -> EventLog:
        return open_event_log(self.url)


def _expire_segments(directory: Path, topic: str) -> None:
    log = open_event_log(f"segments:{directory}?segment_bytes=2000&retention_bytes=4000")
    assert log.apply_retention() > 0  # type: ignore[attr-defined]  # of SegmentLog, not of the port
    log.close()


def _expire_on_kafka(address: str, topic: str, before: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=[address])
    admin.delete_records({TopicPartition(topic, 0): before}, timeout_ms=10_000)
    admin.close()


@pytest.fixture(params=["segments", pytest.param("kafka", marks=pytest.mark.kafka)])
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> LogUnderTest:
    if request.param == "segments":
        directory = tmp_path / "log"
        return LogUnderTest(
            f"segments:{directory}?segment_bytes=2000",
            lambda topic, before: _expire_segments(directory, topic),
            directory,
        )
    address = request.getfixturevalue("kafka_address")
    return LogUnderTest(f"kafka:{address}", lambda topic, before: _expire_on_kafka(address, topic, before))


@pytest.fixture
def log(under_test: LogUnderTest) -> Iterator[EventLog]:
    opened = under_test.open()
    yield opened
    opened.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a log of segments with topic TOPIC of one partition."""
    with segment_log(tmp_path / "log"):
        return tmp_path / "log"


@pytest.fixture
def segments(directory: Path) -> Iterator[SegmentLog]:
    with segment_log(directory) as opened:
        yield opened


@pytest.fixture
def topic(log: EventLog) -> str:
    """A new topic of two partitions."""
    name = f"examples.{uuid.uuid4().hex}"
    log.create_topic(name, partition_count=2)
    return name
