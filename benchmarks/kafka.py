"""Row 11 on Apache Kafka: events into it through ingest beside kafka-python's own producer, and from it into tensors.

`python -m benchmarks.kafka [--seconds 3]`

One broker on loopback (Maven's jars, KRaft, one partition). Both ways in send the same examples and wait for acks=all;
ingest has its own core, the producer the others, where the load of ingest's rows comes from. Reading compares the
log's iterator with kafka-python's consumer on the same topic.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from benchmarks.ingest import SCHEMA, STREAM, Load, Platform, made_up_events, over_http_from, requests_per_second
from benchmarks.log_to_tensors import BATCH, rates_of, ways_to_read
from benchmarks.report import Cell, publish
from common.eventlog import tfrecord
from common.eventlog.kafka_log import KafkaLog
from common.examples.codec import ExampleCodec
from common.schema import Schema
from testing.kafka.kafka_server import KafkaServer

_EVENTS = 5_000
_CHUNK_EVENTS = 2_000
"""About as many as ingest puts into a record (INGEST_CHUNK_BYTES is 512 KiB)."""
_REPEATS = 3
_READ_EXAMPLES = 300_000
_IN_FLIGHT = 8
_TIMEOUT_SECONDS = 60.0
_TOPIC = f"examples.{STREAM}"
_TYPES = {"int64": tf.int64, "float32": tf.float32, "string": tf.string}
_FEATURES = {
    feature["name"]: tf.io.FixedLenFeature([], _TYPES[feature["dtype"]])
    for feature in (*SCHEMA["features"], *SCHEMA["labels"])
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="per line of the first table and repeat")
    seconds = parser.parse_args().seconds
    directory = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    (directory / "kafka").mkdir()
    kafka = KafkaServer(directory / "kafka")
    try:
        kafka.start()
        topics = KafkaLog([kafka.address])
        for topic in ("bench.chunks", "bench.messages"):
            topics.create_topic(topic, partition_count=1)
        topics.close()
        writing = _writing(directory, kafka.address, seconds)
        reading = _reading(kafka.address)
    finally:
        kafka.stop()
        shutil.rmtree(directory, ignore_errors=True)
    publish(
        "ingest_kafka",
        "Into Kafka: events acknowledged per second, 11 features, acks=all",
        writing,
        notes=[
            f"Medians of {_REPEATS} repeats taken in turns.",
            f"The producer of chunks sends records like those that ingest appends, {_IN_FLIGHT} unanswered at a time.",
            "The other one sends a message per event, as it is mostly used (linger 5 ms, batches of 1 MiB).",
        ],
    )
    publish(
        "kafka_to_tensors",
        "From Kafka: examples per second, 11 features",
        reading,
        notes=[f"Medians of {_REPEATS} repeats taken in turns over {_READ_EXAMPLES:,} examples; batches of {BATCH:,}."],
    )
    return 0


def _writing(directory: Path, address: str, seconds: float) -> list[dict[str, Cell]]:
    events = made_up_events(_EVENTS)
    codec = ExampleCodec(Schema.from_mapping(SCHEMA))
    examples = [codec.encode(event) for event in events]
    framed, chunk = tfrecord.frame(examples), tfrecord.frame(examples[:_CHUNK_EVENTS])
    cores = sorted(os.sched_getaffinity(0))
    platform = Platform(directory, {cores[0]}, set(cores[1:]) or {cores[0]}, event_log=f"kafka:{address}")
    try:
        port = platform.http_port
        as_json = json.dumps({"events": events[:1000]}).encode()
        loads = [
            Load("TFRecord", _EVENTS, over_http_from(port, framed, "application/x-tfrecord"), len(framed)),
            Load("JSON", 1000, over_http_from(port, as_json, "application/json"), len(as_json)),
        ]
        works: dict[str, Callable[[], float]] = {
            f"ingest, HTTP {load.name}, {load.event_count:,} per request": _through_ingest(load, seconds)
            for load in loads
        }
        works["kafka-python producer, chunks"] = lambda: _chunks_per_second(address, chunk, seconds) * _CHUNK_EVENTS
        works["kafka-python producer, a message per event"] = lambda: _events_per_second(address, examples, seconds)
        rates: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(_REPEATS):
            for name, work in works.items():
                rates[name].append(work())
    finally:
        platform.stop()
    os.sched_setaffinity(0, cores)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return [
        {
            "way in": name,
            "events/s": round(medians[name]),
            "slowest": round(min(found)),
            "fastest": round(max(found)),
            "of producer, chunks": medians[name] / medians["kafka-python producer, chunks"],
            "of producer, messages": medians[name] / medians["kafka-python producer, a message per event"],
        }
        for name, found in rates.items()
    ]


def _through_ingest(load: Load, seconds: float) -> Callable[[], float]:
    return lambda: requests_per_second(load, seconds)[0] * load.event_count


def _producer(address: str) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=[address], acks="all", linger_ms=5, batch_size=1 << 20)


def _chunks_per_second(address: str, chunk: bytes, seconds: float) -> float:
    """The same record again and again, a few unanswered at a time."""
    producer = _producer(address)
    waiting: deque[Any] = deque()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds or waiting:
        if time.perf_counter() - started < seconds:
            waiting.append(producer.send("bench.chunks", chunk, partition=0))
        if len(waiting) >= _IN_FLIGHT or time.perf_counter() - started >= seconds:
            waiting.popleft().get(_TIMEOUT_SECONDS)
            count += 1
    elapsed = time.perf_counter() - started
    producer.close(_TIMEOUT_SECONDS)
    return count / elapsed


def _events_per_second(address: str, examples: list[bytes], seconds: float) -> float:
    """A message per example; the time ends when all are acknowledged."""
    producer = _producer(address)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for example in examples:
            producer.send("bench.messages", example, partition=0)
        count += len(examples)
    producer.flush(_TIMEOUT_SECONDS)
    elapsed = time.perf_counter() - started
    producer.close(_TIMEOUT_SECONDS)
    return count / elapsed


def _reading(address: str) -> list[dict[str, Cell]]:
    log = KafkaLog([address])
    end, count = _stretch(log)
    parse = tf.function(
        lambda batch: tf.io.parse_example(batch, _FEATURES), input_signature=[tf.TensorSpec([None], tf.string)]
    )
    works = {"kafka-python consumer": lambda: _consumed(address, end, count), **ways_to_read(log, _TOPIC, end, parse)}
    rates = rates_of(works, _REPEATS)
    log.close()
    plain = rates["kafka-python consumer"].median
    return [
        {
            "path": name,
            "examples/s": round(found.median),
            "slowest": round(min(found.values)),
            "fastest": round(max(found.values)),
            "of the consumer": found.median / plain,
        }
        for name, found in rates.items()
    ]


def _stretch(log: KafkaLog) -> tuple[int, int]:
    """(end offset, examples before it): what ingest had appended, as much as the repeats are to read."""
    end, count = 0, 0
    for info in log.scan(_TOPIC, 0, 0, log.end_position(_TOPIC)[0]):
        end, count = info.offset + 1, count + info.headers.example_count
        if count >= _READ_EXAMPLES:
            break
    return end, count


def _consumed(address: str, end: int, count: int) -> int:
    consumer = KafkaConsumer(bootstrap_servers=[address], max_partition_fetch_bytes=4 << 20)
    source = TopicPartition(_TOPIC, 0)
    consumer.assign([source])
    consumer.seek(source, 0)
    while consumer.position(source) < end:
        consumer.poll(timeout_ms=500)
    consumer.close()
    return count


if __name__ == "__main__":
    sys.exit(main())
