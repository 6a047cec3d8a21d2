"""Row 11, the log's half: log to tensors beside tf.data.TFRecordDataset over the same segment files, and appending
beside a raw file append with fdatasync of the same bytes."""

import os
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
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
_REPEATS = 5
_TARGET = 0.8
_INTEGERS = ("month", "day", "hour", "minute", "distance")
_FLOATS = ("temperature", "wind", "late")
_STRINGS = ("carrier", "origin", "destination")
_FEATURES = (
    {name: tf.io.FixedLenFeature([], tf.int64) for name in _INTEGERS}
    | {name: tf.io.FixedLenFeature([], tf.float32) for name in _FLOATS}
    | {name: tf.io.FixedLenFeature([], tf.string) for name in _STRINGS}
)


def _examples(count: int) -> list[bytes]:
    """Serialized examples of 11 features; 1,000 different ones, repeated."""
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


def _log_to_tensors(log: SegmentLog) -> int:
    return sum(int(tf.io.parse_example(batch, _FEATURES)["late"].shape[0]) for batch in _batches(log))


def _dataset_to_tensors(files: list[str]) -> int:
    dataset = tf.data.TFRecordDataset(files).batch(_BATCH).map(lambda batch: tf.io.parse_example(batch, _FEATURES))
    return sum(int(batch["late"].shape[0]) for batch in dataset)


def _dataset(files: list[str]) -> int:
    return sum(int(batch.shape[0]) for batch in tf.data.TFRecordDataset(files).batch(_BATCH))


def _rates(works: dict[str, Callable[[], int]]) -> dict[str, float]:
    """The median rate of each; the repeats take turns, so that a busy moment of the machine meets all alike."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(_REPEATS + 1):
        for name, work in works.items():
            started = time.perf_counter()
            done = work()
            if turn > 0:  # the first warms up
                rates[name].append(done / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in rates.items()}


def _reading(directory: Path) -> list[dict[str, Cell]]:
    log = _filled(directory)
    files = sorted(str(file) for file in directory.glob("examples.bench/0/*.tfrecord"))
    rates = _rates(
        {
            "read": lambda: _read(log),
            "read, check, cut": lambda: _read_and_cut(log),
            "TFRecordDataset, batch": lambda: _dataset(files),
            "log to tensors": lambda: _log_to_tensors(log),
            "TFRecordDataset to tensors": lambda: _dataset_to_tensors(files),
        }
    )
    log.close()
    beside = {"read, check, cut": "TFRecordDataset, batch", "log to tensors": "TFRecordDataset to tensors"}
    rows: list[dict[str, Cell]] = []
    for name, rate in rates.items():
        ratio = rate / rates[beside[name]] if name in beside else None
        target = _TARGET if name == "log to tensors" else None
        rows.append({"path": name, "examples/s": rate, "ratio": ratio, "target": target})
    return rows


def _raw_append(path: Path, values: list[bytes], threads: int) -> int:
    lock = threading.Lock()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def append(value: bytes) -> None:
        with lock:
            os.write(descriptor, value)
            os.fdatasync(descriptor)

    _spread(append, values, threads)
    os.close(descriptor)
    return sum(map(len, values))


def _log_append(directory: Path, values: list[bytes], threads: int) -> int:
    log = SegmentLog(directory)
    topic = f"examples.{uuid.uuid4().hex}"
    log.create_topic(topic, partition_count=1)
    _spread(lambda value: log.append(topic, 0, [_record(value, 1)]), values, threads)
    log.close()
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
            return _raw_append(directory / "raw", values, threads)

        rates = _rates({"log": ours, "raw": raw})
        rows.append(
            {
                "append": f"{len(value):,} bytes, {threads} thread{'s' if threads > 1 else ''}",
                "records/s": rates["log"] / len(value),
                "MB/s": rates["log"] / 1e6,
                "raw records/s": rates["raw"] / len(value),
                "raw MB/s": rates["raw"] / 1e6,
                "ratio": rates["log"] / rates["raw"],
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
        notes=["Medians; tensors are tf.io.parse_example over 11 features; every checksum is verified on both sides."],
        facts=facts,
    )
    publish(
        "log_append",
        "Appending to the log, beside a raw file append with fdatasync of the same bytes",
        appending,
        notes=["The log flushes twice per commit (values, then index), the raw file once per record."],
        facts=facts,
    )


if __name__ == "__main__":
    Path("build").mkdir(exist_ok=True)
    main()
