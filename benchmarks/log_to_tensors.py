"""Row 11, the log's half: log to tensors beside tf.data.TFRecordDataset over the same segment files, and appending
beside a raw file append with fdatasync of the same bytes."""

import os
import random
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.report import Cell, publish
from common.eventlog import tfrecord
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from protos.example_pb2 import Example

_EXAMPLES = 200_000
_EXAMPLES_PER_RECORD = 256
_BATCH = 1024
_REPEATS = 11
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


def _record(value: bytes, example_count: int) -> NewRecord:
    return NewRecord(value, RecordHeaders(1, example_count, time.time(), uuid.uuid4().bytes))


def _filled(directory: Path) -> SegmentLog:
    log = SegmentLog(directory)
    log.create_topic("examples.bench", partition_count=1)
    examples = _examples(_EXAMPLES)
    for start in range(0, _EXAMPLES, _EXAMPLES_PER_RECORD):
        chunk = examples[start : start + _EXAMPLES_PER_RECORD]
        log.append("examples.bench", 0, [_record(tfrecord.frame(chunk), len(chunk))])
    return log


def _batches(log: SegmentLog) -> Iterable[list[bytes]]:
    waiting: list[bytes] = []
    for record in log.read("examples.bench", 0, 0, log.end_position("examples.bench")[0]):
        waiting += tfrecord.cut(record.value)[0]
        while len(waiting) >= _BATCH:
            yield waiting[:_BATCH]
            del waiting[:_BATCH]
    if waiting:
        yield waiting


def _read(log: SegmentLog) -> int:
    return sum(
        record.headers.example_count
        for record in log.read("examples.bench", 0, 0, log.end_position("examples.bench")[0])
    )


def _read_and_cut(log: SegmentLog) -> int:
    return sum(len(batch) for batch in _batches(log))


def _parse(batch: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized examples, shape [batch], string -> one tensor of shape [batch] per feature."""
    features: dict[str, tf.Tensor] = tf.io.parse_example(batch, _FEATURES)
    return features


def _log_to_tensors(log: SegmentLog, parse: Callable[[tf.Tensor], dict[str, tf.Tensor]]) -> int:
    return sum(int(parse(tf.constant(batch))["late"].shape[0]) for batch in _batches(log))


def _to_tensors(dataset: tf.data.Dataset) -> int:
    return sum(int(batch["late"].shape[0]) for batch in dataset)


def _count(dataset: tf.data.Dataset) -> int:
    return sum(int(batch.shape[0]) for batch in dataset)


@dataclass(frozen=True)
class _Rates:
    """Units per second over the repeats. Other work on the machine only slows a repeat down, so where slowest and
    fastest lie far apart, the fastest and the CPU time say more than the median."""

    values: tuple[float, ...]
    cpu_seconds_per_unit: float

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def _rates(works: dict[str, Callable[[], int]]) -> dict[str, _Rates]:
    """The rates of each; the repeats take turns, so that a busy moment of the machine meets all alike."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(_REPEATS + 1):
        for name, work in works.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            done = work()
            if turn > 0:  # the first warms up
                rates[name].append(done / (time.perf_counter() - started))
                cpu[name].append((time.process_time() - cpu_started) / done)
    return {name: _Rates(tuple(rates[name]), statistics.median(cpu[name])) for name in works}


def _disturbance(rows: list[dict[str, Cell]]) -> list[str]:
    """A note when the machine was too busy for the medians to mean much."""
    spread = max(float(row["fastest"] or 0) / float(row["slowest"] or 1) for row in rows)
    if spread < _TRUSTED_SPREAD:
        return []
    return [f"DISTURBED: repeats differ by up to {spread:.1f}x; do not quote the ratio of medians of this run."]


def _reading(directory: Path) -> list[dict[str, Cell]]:
    """Pipelines and functions are built before the clock starts, on both sides."""
    log = _filled(directory)
    files = sorted(str(file) for file in directory.glob("examples.bench/0/*.tfrecord"))
    parse = tf.function(_parse, input_signature=[tf.TensorSpec([None], tf.string)])
    raw = tf.data.TFRecordDataset(files).batch(_BATCH)
    parsed = raw.map(_parse)
    tuned = raw.map(_parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    rates = _rates(
        {
            "read": lambda: _read(log),
            "read, check, cut": lambda: _read_and_cut(log),
            "TFRecordDataset, batch": lambda: _count(raw),
            "log to tensors": lambda: _log_to_tensors(log, parse),
            "TFRecordDataset to tensors": lambda: _to_tensors(parsed),
            "the same, parallel map and prefetch": lambda: _to_tensors(tuned),
        }
    )
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


def _raw_append(directory: Path, values: list[bytes], threads: int) -> int:
    lock = threading.Lock()
    path = directory / uuid.uuid4().hex
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

    def append(value: bytes) -> None:
        with lock:
            os.write(descriptor, value)
            os.fdatasync(descriptor)

    _spread(append, values, threads)
    os.close(descriptor)
    path.unlink()
    return sum(map(len, values))


def _log_append(directory: Path, values: list[bytes], threads: int) -> int:
    log = SegmentLog(directory)
    topic = f"examples.{uuid.uuid4().hex}"
    log.create_topic(topic, partition_count=1)
    _spread(lambda value: log.append(topic, 0, [_record(value, 1)]), values, threads)
    log.close()
    shutil.rmtree(directory / topic)
    return sum(map(len, values))


def _spread(append: Callable[[bytes], object], values: list[bytes], threads: int) -> None:
    def work(mine: list[bytes]) -> None:
        for value in mine:
            append(value)

    running = [threading.Thread(target=work, args=(values[number::threads],)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _appending(directory: Path) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for threads, count, examples_per_record in (
        (1, 1000, 1),
        (16, 4000, 1),
        (1, 300, 256),
        (8, 600, 256),
        (1, 60, 4096),
    ):
        value = tfrecord.frame(_examples(examples_per_record))
        values = [value] * count

        def ours(values: list[bytes] = values, threads: int = threads) -> int:
            return _log_append(directory, values, threads)

        def raw(values: list[bytes] = values, threads: int = threads) -> int:
            return _raw_append(directory, values, threads)

        rates = _rates({"log": ours, "raw": raw})
        ours_median, raw_median = rates["log"].median, rates["raw"].median
        rows.append(
            {
                "append": f"{len(value):,} bytes, {threads} thread{'s' if threads > 1 else ''}",
                "records/s": ours_median / len(value),
                "MB/s": ours_median / 1e6,
                "slowest": min(rates["log"].values) / 1e6,
                "fastest": max(rates["log"].values) / 1e6,
                "raw MB/s": raw_median / 1e6,
                "raw slowest": min(rates["raw"].values) / 1e6,
                "raw fastest": max(rates["raw"].values) / 1e6,
                "ratio": ours_median / raw_median,
            }
        )
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(dir="build") as folder:
        reading = _reading(Path(folder) / "reading")
        appending = _appending(Path(folder) / "appending")
    facts: dict[str, Cell] = {
        "examples": _EXAMPLES,
        "examples_per_record": _EXAMPLES_PER_RECORD,
        "example_bytes": len(_examples(1)[0]),
        "batch": _BATCH,
        "repeats": _REPEATS,
    }
    publish(
        "log_to_tensors",
        "Log to tensors, beside tf.data.TFRecordDataset on the same files",
        reading,
        notes=[
            f"Medians of {_REPEATS} repeats taken in turns; pipelines are built before the clock starts.",
            "Tensors are tf.io.parse_example over 11 features; both sides verify every checksum.",
            *_disturbance(reading),
        ],
        facts=facts,
    )
    publish(
        "log_append",
        "Appending to the log, beside a raw file append with fdatasync of the same bytes",
        appending,
        notes=[
            "The log flushes twice per commit (values, then index), the raw file once per record.",
            *_disturbance(appending),
        ],
        facts=facts,
    )


if __name__ == "__main__":
    Path("build").mkdir(exist_ok=True)
    main()
