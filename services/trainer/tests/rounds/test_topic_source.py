"""A stream that reads somebody else's Kafka topic: planned, trained, resumed, rebuilt, accounted."""

import json
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from common.eventlog.dead_letters import read_letters
from common.eventlog.sourced_log import Attached, SourcedLog
from common.process.health import Health
from common.registry.catalog import ChangeKind
from common.registry.client import RegistryClient
from common.schema import Schema
from protos.example_pb2 import DeadLetter
from services.trainer.plan.planner import Planner
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.plans import finish
from services.trainer.tests.support.platform_processes import MODEL, STREAM
from services.trainer.tests.support.platform_processes import definition as small_definition
from services.trainer.tests.support.small_rounds import Platform, definition, rebuilt
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.covers("pipe-custom-source")]
SCHEMA: dict[str, Any] = {
    "features": [{"name": "distance", "dtype": "float32"}],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
}
DEFINITION = definition(
    estimator="linear_classifier", features={"distance": {"type": "numeric"}}, parameters=None,
    training={"optimizer": {"name": "adam", "learning_rate": 0.01}},
)  # fmt: skip


@dataclass
class Orders:
    """A topic that others fill."""

    address: str
    topic: str

    @property
    def schema(self) -> dict[str, Any]:
        kafka = {"topic": self.topic, "format": "json", "servers": self.address, "fields": {"distance": "trip.km"}}
        return {**SCHEMA, "source": {"kafka": kafka}}

    def send(self, *values: bytes | None, partition: int = 0, commit: bool | None = None) -> None:
        """`commit`: in a transaction of Kafka, which ends so."""
        options = {} if commit is None else {"transactional_id": uuid.uuid4().hex}
        end = self.end(partition)
        producer = KafkaProducer(bootstrap_servers=[self.address], **options)
        if commit is not None:
            producer.init_transactions()
            producer.begin_transaction()
        for number, value in enumerate(values):
            producer.send(self.topic, value, key=b"k", partition=partition, timestamp_ms=1_700_000_000_000 + number)
        producer.flush(30)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.close(timeout=10)
        end += len(values) + (commit is not None)  # Kafka marks a transaction's end after it has answered
        wait_until(lambda: self.end(partition) == end, "all of it is in the topic")

    def end(self, partition: int) -> int:
        place = TopicPartition(self.topic, partition)
        with closing(KafkaConsumer(bootstrap_servers=[self.address])) as consumer:
            return int(consumer.end_offsets([place])[place])

    def expire(self, before: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=[self.address])
        admin.delete_records({TopicPartition(self.topic, 0): before}, timeout_ms=10_000)
        admin.close()


def trip(number: int) -> bytes:
    return json.dumps({"trip": {"km": number % 17}, "late": number % 17 > 8, "driver": "x"}).encode()


def _topic(name: str) -> NewTopic:
    """Keeps what is old by its timestamps, too."""
    return NewTopic(name, num_partitions=1, replication_factor=1, topic_configs={"retention.ms": "-1"})


@pytest.fixture
def orders(kafka_address: str) -> Orders:
    found = Orders(kafka_address, f"shop.orders-{uuid.uuid4().hex}")
    admin = KafkaAdminClient(bootstrap_servers=[kafka_address])
    admin.create_topics([_topic(found.topic)], timeout_ms=30_000)
    admin.close()
    return found


def test_offsets_of_the_topic_are_the_range_and_what_is_no_event_is_set_aside(orders: Orders, tmp_path: Path) -> None:
    orders.send(*map(trip, range(70)))
    orders.send(*map(trip, range(900, 910)), commit=False)
    orders.send(b"{", None, b'{"late": 7}', commit=True)
    orders.send(*map(trip, range(70, 120)))
    platform = Platform(tmp_path, orders.schema, exports=False, eager=True)
    own = platform.log
    sourced = SourcedLog(own, f"segments:{tmp_path}/log")
    platform.log = sourced
    sourced.attach("stream", Schema.from_mapping(orders.schema))
    lease = platform.lease(DEFINITION, block_examples=20)
    stopped = platform.train(lease, resume_interval_seconds=0.0, stop_requested=platform.after_blocks(2))
    assert isinstance(stopped, Stopped)
    assert isinstance(platform.train(platform.registry.taken_up(lease)), Done)
    (version,) = platform.registry.versions
    assert (version.ranges[0].from_offset, version.ranges[0].to_offset) == (0, 120 + 10 + 3 + 2)
    assert version.events_trained + version.events_held_out == 120
    assert version.events_unusable == 3
    letters = [found.letter for found in read_letters(own, "stream", 0, own.end_position("deadletter.stream")[0])]
    place = f"{orders.topic}, partition 0, offset"
    assert [(letter.payload, letter.reason.partition(": ")[0]) for letter in letters] == [
        (b"{", f"{place} 81"), (b"", f"{place} 82"), (b'{"late": 7}', f"{place} 83"),
    ]  # fmt: skip
    assert [letter.format for letter in letters] == [DeadLetter.JSON, DeadLetter.EXAMPLE, DeadLetter.JSON]
    attached = Attached(Schema.from_mapping(orders.schema), "stream")
    platform.log = SourcedLog(own, f"segments:{tmp_path}/log", stream_of=lambda stream: attached)
    assert rebuilt(platform, lease, 1).weights_digest == version.weights_digest
    for log in (sourced, platform.log):
        log.close()


def test_rounds_are_planned_on_the_topic_and_what_retention_took_is_told(orders: Orders, tmp_path: Path) -> None:
    server = RegistryServer(tmp_path / "registry")
    server.start()
    registry = RegistryClient(server.address)
    registry.register_stream(STREAM, json.dumps(orders.schema))
    files = {"model.yaml": small_definition(triggers="{min_examples: 10, cooldown_seconds: 0}")}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    own = Platform(tmp_path).log
    log = SourcedLog(own, f"segments:{tmp_path}/log")
    health = Health("registry", "event_log")
    settings = TrainerSettings(event_log=f"segments:{tmp_path}/log")
    planner = Planner(settings, registry=registry, log=log, health=health, on_planned=lambda: None)
    try:
        orders.send(*map(trip, range(8)))
        planner.turn()
        assert planner.counted()[MODEL]["waiting"] == 8
        orders.expire(before=5)
        orders.send(*map(trip, range(8)))
        planner.turn()
        (planned,) = registry.list_rounds(MODEL, limit=5)
        assert (planned.plan.ranges[0].from_offset, planned.plan.ranges[0].to_offset) == (5, 16)
        assert planned.plan.example_count == 11
        finish(registry, tmp_path)
        orders.expire(before=16)
        orders.send(*map(trip, range(4)))
        orders.expire(before=18)
        planner.mark_stale(ChangeKind.RESET, "")
        planner.turn()
        (gone,) = planner.counted()[MODEL]["left_out"]
        assert (gone["from_offset"], gone["to_offset"], gone["examples"], gone["reason"]) == (16, 18, None, "retention")
    finally:
        log.close()
        registry.close()
        server.stop()
