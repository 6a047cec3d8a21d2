"""`headrace records`: TFRecord files printed, and a stream's events written as shards, none lost or doubled."""

import gzip
import json
import struct
import uuid
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.tfrecord import frame, masked_crc32c
from common.storage import place_of
from headrace.cli import app
from headrace.files.shards import records_of
from protos.example_pb2 import Example, SequenceExample
from testing.rows import each_row

HEADER_BYTES = 12


def example(number: int) -> bytes:
    made = Example()
    made.features.feature["id"].int64_list.value.append(number)
    made.features.feature["word"].bytes_list.value.extend([b"r\xc3\xa9d", b"\xff"])
    made.features.feature["x"].float_list.value.extend([0.5, 1.5])
    return made.SerializeToString(deterministic=True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_event_log(f"segments:{tmp_path}/log")) as opened:
        opened.create_topic("examples.s", partition_count=2)
        yield opened


def append(log: EventLog, partition: int, numbers: range) -> None:
    examples = [example(number) for number in numbers]
    headers = RecordHeaders(1, len(examples), 1000.0, b"%016d" % numbers.start)
    log.append("examples.s", partition, [NewRecord(frame(examples), headers)])


def archived(directory: Path, log: Path, *, shard_bytes: int = 1200) -> Result:
    return run(
        "--json", "records", "archive", "s", "--to", str(directory), "--shard-bytes", str(shard_bytes),
        "--log", f"segments:{log}",
    )  # fmt: skip


def ids(directory: Path) -> list[int]:
    paths = sorted(directory.glob("*.tfrecord"))
    found = [Example.FromString(record) for path in paths for record in records_of(place_of(path))]
    return [one.features.feature["id"].int64_list.value[0] for one in found]


@pytest.mark.covers("rec-tfrecord")
def test_shards_are_cut_at_the_set_size_and_hold_every_event_once(tmp_path: Path, log: EventLog) -> None:
    for start in range(0, 60, 20):
        append(log, 0, range(start, start + 20))
    append(log, 1, range(100, 110))
    result = archived(tmp_path / "archive", tmp_path / "log")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["examples"] == 70
    sizes = [path.stat().st_size for path in (tmp_path / "archive").glob("*.tfrecord")]
    assert len(sizes) == len(told["shards"]) > 4
    assert max(sizes) <= 1200
    assert ids(tmp_path / "archive") == [*range(60), *range(100, 110)]


@pytest.mark.covers("rec-tfrecord")
def test_the_same_folder_is_continued_and_another_streams_is_refused(tmp_path: Path, log: EventLog) -> None:
    append(log, 0, range(5))
    archived(tmp_path / "archive", tmp_path / "log")
    append(log, 0, range(5, 9))
    (tmp_path / "archive" / "s-000-000001.tfrecord").write_bytes(b"left by a crash before the index named it")
    assert json.loads(archived(tmp_path / "archive", tmp_path / "log").output)["examples"] == 4
    assert json.loads(archived(tmp_path / "archive", tmp_path / "log").output)["examples"] == 0
    assert ids(tmp_path / "archive") == list(range(9))
    result = run("records", "archive", "t", "--to", str(tmp_path / "archive"), "--log", f"segments:{tmp_path}/log")
    assert result.exit_code == 5
    assert "holds the archive of stream s" in result.output


@pytest.mark.covers("fs-remote")
def test_an_archive_elsewhere_is_continued_and_printed(tmp_path: Path, log: EventLog) -> None:
    url = f"memory://{uuid.uuid4().hex}/archive"
    for numbers, examples in ((range(5), 5), (range(5, 9), 4)):
        append(log, 0, numbers)
        command = ("--json", "records", "archive", "s", "--to", url, "--log", f"segments:{tmp_path}/log")
        assert json.loads(run(*command).output)["examples"] == examples
    lines = run("records", "cat", f"{url}/s-000-000001.tfrecord").output.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [[5], [6], [7], [8]]


@pytest.mark.covers("rec-tfrecord")
def test_records_are_printed_as_json(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(frame([example(0), example(1)]))
    lines = [json.loads(line) for line in run("records", "cat", str(path)).output.splitlines()]
    assert lines == [{"id": [n], "word": ["réd", {"b64": "/w=="}], "x": [0.5, 1.5]} for n in (0, 1)]
    plain = path.read_bytes()
    for packed in (gzip.compress(plain), zlib.compress(plain), gzip.compress(plain[:50]) + gzip.compress(plain[50:])):
        path.write_bytes(packed)
        assert [json.loads(line) for line in run("records", "cat", str(path)).output.splitlines()] == lines


def test_a_record_whose_length_looks_like_gzip_is_none_and_steps_are_lists(tmp_path: Path) -> None:
    made = SequenceExample()
    for number in range(2):
        made.feature_lists.feature_list["steps"].feature.add().int64_list.value.append(number)
    made.context.feature["word"].bytes_list.value.append(b"x" * 0x8000)
    made.context.feature["word"].bytes_list.value[0] += b"x" * (0x8B1F - made.ByteSize())
    (tmp_path / "a.tfrecord").write_bytes(content := frame([made.SerializeToString()]))
    assert content[:2] == b"\x1f\x8b"
    assert json.loads(run("records", "cat", str(tmp_path / "a.tfrecord")).output)["steps"] == [[0], [1]]


@pytest.mark.covers("rec-tfrecord")
@each_row(
    ("place", "words"),
    [(0, "length whose checksum is wrong"), (HEADER_BYTES + 3, "data whose checksum is wrong"), (None, "is cut short")],
)
def test_a_damaged_record_is_named_by_number_and_place(tmp_path: Path, place: int | None, words: str) -> None:
    first = frame([example(0)])
    content = bytearray(first + frame([example(1)]))
    if place is None:
        del content[-3:]
    else:
        content[len(first) + place] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(content)
    result = run("records", "cat", str(tmp_path / "a.tfrecord"))
    assert result.exit_code == 8
    assert f"record 1 at byte {len(first)}" in result.output
    assert words in result.output
    assert len(result.stdout.splitlines()) == 1, "the record before it was printed"


@each_row(
    ("content", "words"),
    [
        (gzip.compress(frame([example(0)]) * 50)[:-30], "cannot be unpacked"),
        (gzip.compress(frame([example(0)]) * 50, mtime=0)[:10] + b"\xff" * 40, "cannot be unpacked"),
        (struct.pack("<QI", 1 << 63, masked_crc32c(struct.pack("<Q", 1 << 63))), "claims 9223372036854775808 bytes"),
        (struct.pack("<QI", 1 << 30, masked_crc32c(struct.pack("<Q", 1 << 30))), "is cut short"),
        (frame([b"\x0a\x7f"]), "is no tf.train.Example"),
    ],
)
def test_hostile_files_are_told_in_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content)
    result = run("records", "cat", str(path))
    assert (result.exit_code != 0, words in result.output) == (True, True), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
