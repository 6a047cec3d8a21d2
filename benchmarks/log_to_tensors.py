"""Row 11, the log's half: log to tensors beside tf.data.TFRecordDataset over the same segment files.

Appending beside a raw file is in `benchmarks.ingest`.
"""

import os
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.report import Cell, publish
from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from protos.example_pb2 import Example

_EXAMPLES = 200_000
_EXAMPLES_PER_RECORD = 256
BATCH = 1024
_REPEATS = 11
_TOPIC = "examples.bench"
_TARGET = 0.8
_TRUSTED_SPREAD = 1.5
_INTEGERS = ("month", "day", "hour", "minute", "distance")
_FLOATS = ("temperature", "wind", "late")
_STRINGS = ("carrier", "origin", "destination")
_FEATURES = (
    {name: tf.io.FixedLenFeature([], tf.int64) for name in _INTEGERS}
    | {name: tf.io.FixedLenFeature([], tf.float32) for name in _FLOATS}
    | {name: tf.io.FixedLenFeature([], tf.string) for name in _STRINGS}
)

Parse = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]


def _examples(count: int) -> list[bytes]:
    """Serialized examples of 11 features; 1,000 different examples, repeated."""
    choice = random.Random(7)
    different = []
    for _ in range(min(count, 1000)):
        example = Example()
        feature = example.features.feature
        for name in _INTEGERS:
            feature[name].int64_list.value.append(choice.randint(0, 3000))
        for name in _FLOATS:
            feature[name].float_list.value.append(choice.random())
        for name in _STRINGS:
            feature[name].bytes_list.value.append(choice.choice((b"UA", b"EWR", b"JFK", b"LAX")))
        different.append(example.SerializeToString())
    return [different[number % len(different)] for number in range(count)]


def _filled(directory: Path) -> SegmentLog:
    log = SegmentLog(directory)
    log.create_topic(_TOPIC, partition_count=1)
    examples = _examples(_EXAMPLES)
    for start in range(0, _EXAMPLES, _EXAMPLES_PER_RECORD):
        chunk = examples[start : start + _EXAMPLES_PER_RECORD]
        headers = RecordHeaders(1, len(chunk), time.time(), uuid.uuid4().bytes)
        log.append(_TOPIC, 0, [NewRecord(tfrecord.frame(chunk), headers)])
    return log


def batches(log: EventLog, topic: str, end: int) -> Iterable[list[bytes]]:
    """The examples of the records before `end`, as many as BATCH at a time."""
    waiting: list[bytes] = []
    for record in log.read(topic, 0, 0, end):
        waiting += tfrecord.cut(record.value)[0]
        while len(waiting) >= BATCH:
            yield waiting[:BATCH]
            del waiting[:BATCH]
    if waiting:
        yield waiting


def ways_to_read(log: EventLog, topic: str, end: int, parse: Parse) -> dict[str, Callable[[], int]]:
    """Three ways to read the records before `end`, each further than the one before; to how many examples there are."""
    return {
        "read": lambda: sum(record.headers.example_count for record in log.read(topic, 0, 0, end)),
        "read, check, cut": lambda: sum(map(len, batches(log, topic, end))),
        "log to tensors": lambda: sum(
            int(parse(tf.constant(batch))["late"].shape[0]) for batch in batches(log, topic, end)
        ),
    }


def _parse(batch: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized examples, shape [batch], string -> one tensor of shape [batch] per feature."""
    features: dict[str, tf.Tensor] = tf.io.parse_example(batch, _FEATURES)
    return features


def _to_tensors(dataset: tf.data.Dataset) -> int:
    return sum(int(batch["late"].shape[0]) for batch in dataset)


@dataclass(frozen=True)
class Rates:
    """Units per second over the repeats. Other work on the machine only slows a repeat down, so where slowest and
    fastest lie far apart, the fastest and the CPU time say more than the median."""

    values: tuple[float, ...]
    cpu_seconds_per_unit: float

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def rates_of(works: Mapping[str, Callable[[], int]], repeats: int) -> dict[str, Rates]:
    """The rates of each; the repeats take turns, so that a busy moment of the machine meets all alike."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            done = work()
            if turn > 0:  # the first warms up
                rates[name].append(done / (time.perf_counter() - started))
                cpu[name].append((time.process_time() - cpu_started) / done)
    return {name: Rates(tuple(rates[name]), statistics.median(cpu[name])) for name in works}


def _disturbance(rows: list[dict[str, Cell]]) -> list[str]:
    """A note when the machine was too busy for the medians to mean much."""
    spread = max(float(row["fastest"] or 0) / float(row["slowest"] or 1) for row in rows)
    if spread < _TRUSTED_SPREAD:
        return []
    return [f"DISTURBED: repeats differ by up to {spread:.1f}x; do not quote the ratio of medians of this run."]


def _measured(directory: Path) -> list[dict[str, Cell]]:
    """Pipelines and functions are built before the clock starts, on both sides."""
    log = _filled(directory)
    files = sorted(str(file) for file in directory.glob(f"{_TOPIC}/0/*.tfrecord"))
    parse = tf.function(_parse, input_signature=[tf.TensorSpec([None], tf.string)])
    raw = tf.data.TFRecordDataset(files).batch(BATCH)
    parsed = raw.map(_parse)
    tuned = raw.map(_parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    of_dataset: dict[str, Callable[[], int]] = {
        "TFRecordDataset, batch": lambda: sum(int(batch.shape[0]) for batch in raw),
        "TFRecordDataset to tensors": lambda: _to_tensors(parsed),
        "the same, parallel map and prefetch": lambda: _to_tensors(tuned),
    }
    rates = rates_of(ways_to_read(log, _TOPIC, log.end_position(_TOPIC)[0], parse) | of_dataset, _REPEATS)
    log.close()
    ours = rates["log to tensors"]
    rows: list[dict[str, Cell]] = []
    for name, rate in rates.items():
        rival = name.startswith(("TFRecordDataset to", "the same"))
        rows.append(
            {
                "path": name,
                "examples/s": rate.median,
                "slowest": min(rate.values),
                "fastest": max(rate.values),
                "cpu us/example": rate.cpu_seconds_per_unit * 1e6,
                "log / this, medians": ours.median / rate.median if rival else None,
                "log / this, fastest": max(ours.values) / max(rate.values) if rival else None,
                "target": _TARGET if rival else None,
            }
        )
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(dir="build") as folder:
        rows = _measured(Path(folder) / "reading")
    facts: dict[str, Cell] = {
        "examples": _EXAMPLES,
        "examples_per_record": _EXAMPLES_PER_RECORD,
        "example_bytes": len(_examples(1)[0]),
        "batch": BATCH,
        "repeats": _REPEATS,
    }
    publish(
        "log_to_tensors",
        "Log to tensors, beside tf.data.TFRecordDataset on the same files",
        rows,
        notes=[
            f"Medians of {_REPEATS} repeats taken in turns; pipelines are built before the clock starts.",
            "Tensors are tf.io.parse_example over 11 features; both sides verify every checksum.",
            *_disturbance(rows),
        ],
        facts=facts,
    )


if __name__ == "__main__":
    Path("build").mkdir(exist_ok=True)
    main()
