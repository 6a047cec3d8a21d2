"""Reading the event log from outside: segment files as docs and code describe them, or Kafka with its own client."""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

from e2e_tests.faults.history import LogRecord
from protos import example_pb2

_INDEX_ENTRY = struct.Struct("<4sIQQQQ")
"""Magic, bytes of the entry, where its commit began, offset, first byte of the value, bytes of the value."""
_MAGIC = b"HRix"
_FRAME_HEAD_BYTES, _FRAME_TAIL_BYTES = 12, 4
KAFKA_SCRIPT = """
import base64, sys
from kafka import KafkaConsumer, TopicPartition
topic = sys.argv[1]
consumer = KafkaConsumer(bootstrap_servers=sys.argv[2], enable_auto_commit=False, consumer_timeout_ms=20000,
                         max_partition_fetch_bytes=16 << 20)
places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
consumer.assign(places)
consumer.seek_to_beginning(*places)
ends = consumer.end_offsets(places)
while any(consumer.position(place) < ends[place] for place in places):
    for place, records in consumer.poll(timeout_ms=5000).items():
        for record in records:
            print("record", place.partition, record.offset, base64.b64encode(record.value).decode())
print("end")
"""
"""Run in a container that has kafka-python: the broker is not published."""


def read_segments(topic_dir: Path) -> Iterator[LogRecord]:
    """The records of a topic of the local log, whose appender has ended.

    Raises:
        ValueError: an index entry or a value is not whole.
    """
    for partition_dir in sorted(path for path in topic_dir.iterdir() if path.name.isdigit()):
        for index_path in sorted(partition_dir.glob("*.index")):
            index, values = index_path.read_bytes(), index_path.with_suffix(".tfrecord").read_bytes()
            place = 0
            while place < len(index):
                magic, entry_bytes, _, offset, start, length = _INDEX_ENTRY.unpack_from(index, place)
                if magic != _MAGIC or start + length > len(values):
                    raise ValueError(f"{index_path} is damaged at byte {place}")
                yield _record(int(partition_dir.name), offset, values[start : start + length])
                place += entry_bytes


def read_kafka_lines(output: str) -> Iterator[LogRecord]:
    """From what KAFKA_SCRIPT has printed.

    Raises:
        ValueError: it did not come to its end.
    """
    lines = output.splitlines()
    if "end" not in lines:
        raise ValueError(f"the topic could not be read to its end: {output[-500:]}")
    for line in lines:
        if line.startswith("record "):
            _, partition, offset, value = line.split()
            yield _record(int(partition), int(offset), base64.b64decode(value))


def _record(partition: int, offset: int, value: bytes) -> LogRecord:
    events, place = [], 0
    while place < len(value):
        (length,) = struct.unpack_from("<Q", value, place)
        data = value[place + _FRAME_HEAD_BYTES : place + _FRAME_HEAD_BYTES + length]
        if len(data) != length:
            raise ValueError(f"offset {offset} of partition {partition} ends within an example")
        example = example_pb2.Example.FromString(data)
        events.append(example.features.feature["event"].int64_list.value[0])
        place += _FRAME_HEAD_BYTES + length + _FRAME_TAIL_BYTES
    return LogRecord(partition, offset, events)
