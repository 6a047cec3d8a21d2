"""What every event log promises (see base.py), tried on each adapter."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from common.errors import Conflict, DataLoss, InvalidInput, NotFound, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import EventLog, Record
from common.eventlog.open import open_event_log
from common.eventlog.tests.conftest import LogUnderTest
from common.eventlog.tests.records import examples_of, read_all, record
from testing.rows import each_row
from testing.waiting import at_once

_DEADLINE_SECONDS = 240.0
pytestmark = pytest.mark.usefixtures("warm_python")

Writer = subprocess.Popen[str]


def _start_writers(url: str, topic: str, names: Sequence[str], *, appends: int, threads: int = 1) -> list[Writer]:
    """Processes that have all opened the log before the first of them appends."""
    writers = []
    for name in names:
        command = [sys.executable, "-m", "common.eventlog.tests.writer", str(os.getpid()), url, topic, name]
        command += [str(appends), str(threads)]
        writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return writers


def _finish(writer: Writer) -> list[tuple[int, bytes]]:
    """What a writer that may end by itself had acknowledged."""
    output = writer.communicate(timeout=_DEADLINE_SECONDS)[0]
    assert writer.returncode == 0
    return _acknowledged(output.splitlines(keepends=True))


def _kill(writer: Writer, *, after_lines: int) -> list[tuple[int, bytes]]:
    """What a writer had acknowledged when it was killed."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(after_lines)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.stdin.close()
    writer.stdout.close()
    assert writer.wait(timeout=60) == -signal.SIGKILL
    return _acknowledged(lines)


def _acknowledged(lines: Iterable[str]) -> list[tuple[int, bytes]]:
    """(offset, example) of each whole line."""
    found = []
    for line in lines:
        if line.endswith("\n"):
            offset, _, example = line.strip().partition(" ")
            found.append((int(offset), example.encode()))
    return found


def test_records_come_back_as_they_were_appended(log: EventLog, topic: str) -> None:
    new = [record(b"a", b"b"), record(b""), record(b"c" * 100_000, requests=3), record(*[b"d"] * 500)]
    offsets = log.append(topic, 0, new[:3]) + log.append(topic, 0, new[3:])
    records = list(log.read(topic, 0, 0, log.end_position(topic)[0]))
    assert [each.offset for each in records] == offsets
    assert offsets == sorted(set(offsets))
    assert [each.partition for each in records] == [0] * 4
    assert [each.value for each in records] == [each.value for each in new]
    assert [each.headers for each in records] == [each.headers for each in new]
    infos = list(log.scan(topic, 0, 0, log.end_position(topic)[0]))
    assert [(info.offset, info.headers) for info in infos] == [(each.offset, each.headers) for each in records]
    assert [info.value_bytes for info in infos] == [len(each.value) for each in new]
    assert all(info.partition == 0 for info in infos)


def test_partitions_are_separate_sequences(log: EventLog, topic: str) -> None:
    log.append(topic, 0, [record(b"left")])
    log.append(topic, 1, [record(b"right 1"), record(b"right 2")])
    assert examples_of(read_all(log, topic, 0)) == [b"left"]
    assert examples_of(read_all(log, topic, 1)) == [b"right 1", b"right 2"]
    assert log.partition_count(topic) == 2


def test_any_number_of_partitions_is_read_at_once(log: EventLog) -> None:
    topic, count = f"many-{uuid.uuid4().hex}", 30
    log.create_topic(topic, partition_count=count)
    for partition in range(count):
        log.append(topic, partition, [record(b"%d %d" % (partition, number)) for number in range(3)])
    ends = log.end_position(topic)
    readers = [log.read(topic, partition, 0, ends[partition]) for partition in range(count)]
    seen = [example for row in zip(*readers, strict=True) for example in examples_of(row)]
    assert seen == [b"%d %d" % (partition, number) for number in range(3) for partition in range(count)]


def test_an_empty_topic_starts_and_ends_at_zero(log: EventLog, topic: str) -> None:
    assert log.start_position(topic) == log.end_position(topic) == {0: 0, 1: 0}
    assert list(log.read(topic, 0, 0, 0)) == []
    assert log.append(topic, 0, []) == []


def test_reading_goes_from_any_position_to_a_fixed_end(log: EventLog, topic: str) -> None:
    offsets = log.append(topic, 0, [record(b"%d" % number * 50) for number in range(30)])
    end = log.end_position(topic)[0]
    log.append(topic, 0, [record(b"later")])
    for start in (*offsets[::7], end):
        found = list(log.read(topic, 0, start, end))
        assert [each.offset for each in found] == [offset for offset in offsets if offset >= start]
    assert [each.offset for each in log.read(topic, 0, offsets[3], offsets[9])] == offsets[3:9]
    assert [info.offset for info in log.scan(topic, 0, offsets[3], offsets[9])] == offsets[3:9]


def test_records_are_there_after_reopening(under_test: LogUnderTest, log: EventLog, topic: str) -> None:
    offsets = log.append(topic, 0, [record(b"%d" % number) for number in range(40)])
    log.close()
    again = under_test.open()
    assert [each.offset for each in read_all(again, topic)] == offsets
    assert examples_of(read_all(again, topic)) == [b"%d" % number for number in range(40)]
    later = again.append(topic, 0, [record(b"later")])
    assert later[0] > offsets[-1]
    again.close()


def test_creating_a_topic_again_is_harmless_but_not_with_other_partitions(log: EventLog, topic: str) -> None:
    log.append(topic, 0, [record(b"kept")])
    log.create_topic(topic, partition_count=2)
    assert examples_of(read_all(log, topic)) == [b"kept"]
    with pytest.raises(Conflict, match="2 partitions"):
        log.create_topic(topic, partition_count=3)


def test_another_process_sees_a_topic_made_later(under_test: LogUnderTest, log: EventLog) -> None:
    other = under_test.open()
    name = f"examples.{uuid.uuid4().hex}"
    with pytest.raises(NotFound):
        other.end_position(name)
    log.create_topic(name, partition_count=1)
    assert other.end_position(name) == {0: 0}
    other.close()


def test_a_wrong_read_or_append_is_refused(log: EventLog, topic: str) -> None:
    log.append(topic, 0, [record(b"only")])
    end = log.end_position(topic)[0]
    with pytest.raises(InvalidInput, match="cannot read"):
        log.read(topic, 0, 0, end + 1)
    with pytest.raises(InvalidInput, match="cannot read"):
        log.scan(topic, 0, -1, end)
    with pytest.raises(NotFound, match="no partition 2"):
        log.append(topic, 2, [record()])
    with pytest.raises(NotFound, match="no partition 2"):
        log.read(topic, 2, 0, 0)
    for call in (log.partition_count, log.start_position, log.end_position):
        with pytest.raises(NotFound, match=r"examples\.nowhere"):
            call("examples.nowhere")
    with pytest.raises(InvalidInput):
        log.create_topic("no spaces please", partition_count=1)
    with pytest.raises(InvalidInput):
        log.create_topic("examples.none", partition_count=0)
    short = record()
    object.__setattr__(short.headers, "chunk_id", b"short")
    with pytest.raises(InvalidInput, match="chunk_id"):
        log.append(topic, 0, [short])


def test_a_closed_log_says_so(log: EventLog, topic: str) -> None:
    log.close()
    with pytest.raises(Unavailable):
        log.append(topic, 0, [record()])
    with pytest.raises(Unavailable):
        log.end_position(topic)


def test_retention_removes_old_records_and_nothing_is_skipped_silently(
    under_test: LogUnderTest, log: EventLog, topic: str
) -> None:
    offsets = [log.append(topic, 0, [record(b"%d" % number * 100)])[0] for number in range(40)]
    end = log.end_position(topic)[0]
    under_test.expire(topic, offsets[20])
    start = log.start_position(topic)[0]
    assert offsets[0] < start <= offsets[-1]
    assert log.end_position(topic)[0] == end
    kept = list(log.read(topic, 0, start, end))
    assert [each.offset for each in kept] == [offset for offset in offsets if offset >= start]
    assert examples_of(kept) == [b"%d" % number * 100 for number in range(40 - len(kept), 40)]
    with pytest.raises(DataLoss, match="no longer kept"):
        log.read(topic, 0, start - 1, end)
    with pytest.raises(DataLoss, match="no longer kept"):
        log.scan(topic, 0, offsets[0], end)
    assert log.append(topic, 0, [record(b"next")])[0] >= end


def test_retention_under_a_reader_ends_it_or_lets_it_finish(
    under_test: LogUnderTest, log: EventLog, topic: str
) -> None:
    offsets = [log.append(topic, 0, [record(b"%d" % number * 100)])[0] for number in range(40)]
    reader = log.read(topic, 0, 0, log.end_position(topic)[0])
    seen = [next(reader).offset]
    under_test.expire(topic, offsets[20])
    try:
        seen += [each.offset for each in reader]
    except DataLoss:
        assert seen == offsets[: len(seen)]
    else:
        assert seen == offsets


def test_threads_share_a_log(log: EventLog, topic: str) -> None:
    acknowledged: dict[int, bytes] = {}

    def write(name: int) -> None:
        for number in range(20):
            example = b"%d %d" % (name, number)
            acknowledged[log.append(topic, 0, [record(example)])[0]] = example

    at_once(8, write)
    records = read_all(log, topic)
    assert {each.offset: examples_of([each])[0] for each in records} == acknowledged
    assert len(records) == 160


def test_processes_append_to_one_partition_at_the_same_time(
    under_test: LogUnderTest, log: EventLog, topic: str
) -> None:
    writers = _start_writers(under_test.url, topic, ["a", "b", "c"], appends=100, threads=2)
    acknowledged = [pair for writer in writers for pair in _finish(writer)]
    records = read_all(log, topic)
    assert sorted((each.offset, examples_of([each])[0]) for each in records) == sorted(acknowledged)
    assert len(records) == 3 * 2 * 150
    by_writer: dict[bytes, list[int]] = {}
    for example in examples_of(records):
        writer_name, _, number = example.rpartition(b" ")
        by_writer.setdefault(writer_name, []).append(int(number))
    assert list(by_writer.values()) == [list(range(150))] * 6
    processes = [example.split()[0] for example in examples_of(records)]
    turns = sum(before != after for before, after in pairwise(processes))
    assert turns > 2, "the processes wrote one after the other, so this run tried nothing"


def test_a_reader_beside_writers_sees_each_record_whole_once_and_in_order(
    under_test: LogUnderTest, log: EventLog, topic: str
) -> None:
    writers = _start_writers(under_test.url, topic, ["a", "b"], appends=60, threads=2)
    seen: list[Record] = []
    position, deadline = 0, time.monotonic() + _DEADLINE_SECONDS
    while len(seen) < 2 * 2 * 90:
        assert time.monotonic() < deadline
        end = log.end_position(topic)[0]
        seen += log.read(topic, 0, position, end)
        position = end
    acknowledged = [pair for writer in writers for pair in _finish(writer)]
    assert sorted(zip([each.offset for each in seen], examples_of(seen), strict=True)) == sorted(acknowledged)
    assert [each.offset for each in seen] == sorted(each.offset for each in seen)


@pytest.mark.slow
def test_kill_9_of_a_writer_loses_and_tears_nothing(under_test: LogUnderTest, log: EventLog, topic: str) -> None:
    """Two processes write; one is killed in the middle of it, then the other, which had gone on."""
    choice = random.Random(11)
    turns = 4 if under_test.directory else 2
    acknowledged: list[tuple[int, bytes]] = []
    for turn in range(turns):
        names = [f"{turn}a", f"{turn}b"]
        first, second = _start_writers(under_test.url, topic, names, appends=100_000, threads=3)
        acknowledged += _kill(first, after_lines=choice.randint(1, 80))
        acknowledged += _kill(second, after_lines=choice.randint(1, 80))
        log.append(topic, 0, [record(b"between %d" % turn)])
    records = read_all(log, topic)
    found = {each.offset: examples_of([each])[0] for each in records}
    assert len(acknowledged) > 2 * turns
    assert dict(acknowledged).items() <= found.items()
    assert set(Counter(examples_of(records)).values()) == {1}
    if under_test.directory:
        _assert_tfrecord_files(under_test.directory / topic / "0", examples_of(records))


def _assert_tfrecord_files(partition: Path, expected: list[bytes]) -> None:
    """The segment files are the examples in order, for our framing code and for TensorFlow."""
    files = sorted(partition.glob("*.tfrecord"))
    assert [example for file in files for example in tfrecord.cut(file.read_bytes())[0]] == expected
    script = (
        "import sys, tensorflow as tf\n"
        "for example in tf.data.TFRecordDataset(sys.argv[1:]): sys.stdout.buffer.write(example.numpy() + b'\\n')\n"
    )
    command = [sys.executable, "-c", script, *map(str, files)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_DEADLINE_SECONDS).stdout
    assert output.splitlines() == expected


@each_row(
    ("url", "reason"),
    [
        ("segments:relative/dir", "absolute folder"),
        ("segments:/dir?fsync=off", "unknown or repeated option"),
        ("segments:/dir?segment_bytes=much", "not a number"),
        ("segments:/dir?segment_bytes=0", "not above zero"),
        ("kafka:", "host:port"),
        ("kafka:localhost", "host:port"),
        ("kafka:a:9092,,b:9092", "host:port"),
        ("kafka:a:9092?security_protocol=TLS", "security_protocol is none of PLAINTEXT, SSL"),
        ("kafka:a:9092?security_protocol=SSL&sasl_plain_username=u", "option sasl_plain_username"),
        ("kafka:a:9092?security_protocol=SASL_SSL&sasl_plain_password=p", "option sasl_plain_password"),
        ("kafka:a:9092?security_protocol=SASL_SSL&sasl_mechanism=PLAIN", "needs sasl_plain_username, password_file"),
        ("kafka:a:9092?ssl_cafile=/ca.pem", "option ssl_cafile; with PLAINTEXT"),
        ("kafka:a:9092?x", "name=value"),
        ("redis:localhost:6379", "known are segments:/absolute/dir and kafka:host:port"),
        ("", "known are segments"),
    ],
)
def test_a_wrong_address_of_the_log_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        open_event_log(url)


def test_segments_do_without_kafka(tmp_path: Path) -> None:
    script = (
        "import sys; from common.eventlog.open import open_event_log; "
        "open_event_log(sys.argv[1]).create_topic('t', partition_count=1); "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'kafka']"
    )
    subprocess.run([sys.executable, "-c", script, f"segments:{tmp_path}"], check=True, timeout=_DEADLINE_SECONDS)
