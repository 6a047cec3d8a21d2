"""What only the segment files promise: group commit, recovery of a torn tail, damage found, a full disk survived."""

import fcntl
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataLoss, HeadraceError, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import NewRecord
from common.eventlog.segment_files import CommitFile, data_path, index_path
from common.eventlog.segment_log import SegmentLog
from common.eventlog.segment_writer import SegmentSettings
from common.eventlog.tests.records import examples_of, read_all, record

_TOPIC = "examples.test"
_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(directory: Path) -> Iterator[SegmentLog]:
    opened = SegmentLog(directory)
    opened.create_topic(_TOPIC, partition_count=1)
    yield opened
    opened.close()


def _partition(directory: Path) -> Path:
    return directory / _TOPIC / "0"


def _files(directory: Path) -> tuple[Path, Path]:
    return data_path(_partition(directory), 0), index_path(_partition(directory), 0)


def _set_committed(directory: Path, offset: int) -> None:
    (_partition(directory) / "committed").write_bytes(offset.to_bytes(8, "little"))


# Group commit


def test_appends_that_wait_together_share_two_flushes(log: SegmentLog, directory: Path) -> None:
    log.append(_TOPIC, 0, [record()])
    before = log.flush_count
    entering = threading.Barrier(17)

    def append() -> None:
        entering.wait(_TIMEOUT_SECONDS)
        log.append(_TOPIC, 0, [record()])

    threads = [threading.Thread(target=append) for _ in range(16)]
    other_process = CommitFile(_partition(directory))
    with other_process.locked():  # the first to come waits here; the others queue up behind it
        for thread in threads:
            thread.start()
        entering.wait(_TIMEOUT_SECONDS)
        assert log.flush_count == before
    for thread in threads:
        thread.join(_TIMEOUT_SECONDS)
    other_process.close()
    assert log.end_position(_TOPIC) == {0: 17}
    assert 4 <= log.flush_count - before < 2 * 16


def test_a_lone_append_is_flushed_before_its_answer(log: SegmentLog) -> None:
    before = log.flush_count
    log.append(_TOPIC, 0, [record(), record()])
    assert log.flush_count - before == 2


def test_an_append_that_fails_does_not_take_others_with_it(log: SegmentLog) -> None:
    wrong = record()
    object.__setattr__(wrong.headers, "chunk_id", b"short")
    errors: list[HeadraceError] = []

    def append(new: NewRecord) -> None:
        try:
            log.append(_TOPIC, 0, [new])
        except HeadraceError as error:
            errors.append(error)

    threads = [threading.Thread(target=append, args=(new,)) for new in (record(), wrong, record())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_SECONDS)
    assert len(errors) == 1
    assert log.end_position(_TOPIC) == {0: 2}


# Segments and retention


def test_segments_are_named_by_their_first_offset_and_concatenate_to_all_examples(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=500))
    log.create_topic(_TOPIC, partition_count=1)
    for number in range(20):
        log.append(_TOPIC, 0, [record(b"%d" % number * 50)])
    files = sorted(_partition(directory).glob("*.tfrecord"))
    assert len(files) > 3
    assert all(file.stat().st_size <= 500 for file in files)
    first_examples = [tfrecord.cut(file.read_bytes())[0][0] for file in files]
    assert first_examples == [b"%d" % int(file.stem) * 50 for file in files]
    assert tfrecord.cut(b"".join(file.read_bytes() for file in files))[0] == examples_of(read_all(log, _TOPIC))
    log.close()


def test_a_record_larger_than_a_segment_gets_one_of_its_own(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=500))
    log.create_topic(_TOPIC, partition_count=1)
    new = [record(b"small"), record(b"x" * 5_000_000), record(b"small again")]
    for each in new:
        log.append(_TOPIC, 0, [each])
    assert [each.value for each in read_all(log, _TOPIC)] == [each.value for each in new]
    assert len(list(_partition(directory).glob("*.index"))) == 3
    log.close()


def test_what_is_older_than_the_limit_goes_even_when_it_is_the_newest_segment(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=500, retention_seconds=3600))
    log.create_topic(_TOPIC, partition_count=1)
    for number in range(10):
        log.append(_TOPIC, 0, [record(b"%d" % number * 100)])
    assert log.apply_retention() == 0
    long_ago = time.time() - 4000
    for file in _partition(directory).glob("*.tfrecord"):
        os.utime(file, (long_ago, long_ago))
    assert log.apply_retention() > 1
    assert log.start_position(_TOPIC) == log.end_position(_TOPIC) == {0: 10}
    assert log.append(_TOPIC, 0, [record(b"next")]) == [10]
    log.close()
    again = SegmentLog(directory)
    assert examples_of(read_all(again, _TOPIC)) == [b"next"]
    again.close()


def test_a_process_goes_on_in_the_segment_another_one_rolled_to(directory: Path) -> None:
    logs = [SegmentLog(directory, SegmentSettings(segment_bytes=400)) for _ in range(3)]
    logs[0].create_topic(_TOPIC, partition_count=1)
    offsets = [log.append(_TOPIC, 0, [record(b"%d" % turn * 90)])[0] for turn in range(10) for log in logs]
    assert offsets == list(range(30))
    assert examples_of(read_all(logs[1], _TOPIC)) == [b"%d" % turn * 90 for turn in range(10) for _ in logs]
    for log in logs:
        log.close()


def test_a_process_notices_what_another_one_appended_even_when_the_value_is_empty(directory: Path) -> None:
    first, second = SegmentLog(directory), SegmentLog(directory)
    first.create_topic(_TOPIC, partition_count=1)
    empty = NewRecord(b"", replace(record().headers, example_count=0))
    assert first.append(_TOPIC, 0, [record(b"first")]) == [0]
    assert second.append(_TOPIC, 0, [empty]) == [1]
    assert first.append(_TOPIC, 0, [record(b"last")]) == [2]
    assert [len(each.value) > 0 for each in read_all(second, _TOPIC)] == [True, False, True]
    first.close()
    second.close()


def test_a_deletion_cut_short_by_a_crash_is_finished_later(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=300, retention_bytes=600))
    log.create_topic(_TOPIC, partition_count=1)
    for number in range(10):
        log.append(_TOPIC, 0, [record(b"%d" % number * 100)])
    oldest = sorted(_partition(directory).glob("*.index"))[0]
    oldest.unlink()
    assert log.start_position(_TOPIC)[0] > 0
    log.apply_retention()
    assert not oldest.with_suffix(".tfrecord").exists()
    assert [file.stem for file in sorted(_partition(directory).glob("*.tfrecord"))] == [
        file.stem for file in sorted(_partition(directory).glob("*.index"))
    ]
    log.close()


def test_reading_holds_about_a_mebibyte_however_long_the_range(log: SegmentLog) -> None:
    for _ in range(20):
        log.append(_TOPIC, 0, [record(b"x" * 200_000) for _ in range(10)])
    tracemalloc.start()
    try:
        size_bytes = sum(len(each.value) for each in log.read(_TOPIC, 0, 0, 200))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size_bytes > 40_000_000
    assert peak_bytes < 4_000_000


# Crashes


@dataclass(frozen=True)
class _Sample:
    """Two commits of four records: the bytes after the first one and after both."""

    data: bytes
    index: bytes
    data_ends: list[int]
    index_ends: list[int]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> _Sample:
    directory = tmp_path_factory.mktemp("sample")
    log = SegmentLog(directory)
    log.create_topic(_TOPIC, partition_count=1)
    new = [record(b"%d" % number * (7 * number), requests=number % 3) for number in range(8)]
    log.append(_TOPIC, 0, new[:4])
    log.append(_TOPIC, 0, new[4:])
    log.close()
    data, index = (file.read_bytes() for file in _files(directory))
    data_ends, index_ends = [0], [0]
    for each in new:
        data_ends.append(data_ends[-1] + len(each.value))
        index_ends.append(index.find(b"HRix", index_ends[-1] + 1) % (len(index) + 1))
    return _Sample(data, index, data_ends, index_ends)


def _crashed(sample: _Sample, data: bytes, index: bytes, *, committed: int) -> Path:
    directory = Path(tempfile.mkdtemp())
    log = SegmentLog(directory)
    log.create_topic(_TOPIC, partition_count=1)
    log.close()
    for file, content in zip(_files(directory), (data, index), strict=True):
        file.write_bytes(content)
    _set_committed(directory, committed)
    return directory


@settings(max_examples=150, deadline=None)
@given(draw=st.data())
def test_a_tail_torn_at_any_byte_is_cut_back_to_the_last_whole_record(sample: _Sample, draw: st.DataObject) -> None:
    data_cut = draw.draw(st.integers(sample.data_ends[4], sample.data_ends[8]), label="data bytes")
    index_cut = draw.draw(st.integers(sample.index_ends[4], sample.index_ends[8]), label="index bytes")
    directory = _crashed(sample, sample.data[:data_cut], sample.index[:index_cut], committed=4)
    whole = max(
        count for count in range(9) if sample.data_ends[count] <= data_cut and sample.index_ends[count] <= index_cut
    )
    log = SegmentLog(directory)
    assert log.end_position(_TOPIC) == {0: whole}
    assert b"".join(each.value for each in read_all(log, _TOPIC)) == sample.data[: sample.data_ends[whole]]
    assert log.append(_TOPIC, 0, [record(b"next")]) == [whole]
    assert examples_of(read_all(log, _TOPIC))[-1] == b"next"
    log.close()
    files = [file.read_bytes() for file in _files(directory)]
    assert files[0][: sample.data_ends[whole]] == sample.data[: sample.data_ends[whole]]
    assert len(tfrecord.cut(files[0])[0]) == whole + 1
    shutil.rmtree(directory)


@settings(max_examples=100, deadline=None)
@given(draw=st.data())
def test_a_tail_of_which_parts_never_reached_the_disk_is_cut_back(sample: _Sample, draw: st.DataObject) -> None:
    """After a machine's crash a file may have its length, but zeros where pages were not written."""
    data, index = bytearray(sample.data), bytearray(sample.index)
    in_data = draw.draw(st.booleans(), label="in the data")
    file, ends = (data, sample.data_ends) if in_data else (index, sample.index_ends)
    place = draw.draw(st.integers(ends[4], len(file) - 1), label="byte")
    length = draw.draw(st.integers(1, len(file) - place), label="length")
    before = bytes(file)
    file[place : place + length] = bytes(length)
    changed = next((at for at in range(place, place + length) if file[at] != before[at]), len(before))
    whole = max(count for count in range(9) if ends[count] <= changed)
    directory = _crashed(sample, bytes(data), bytes(index), committed=4)
    log = SegmentLog(directory)
    assert log.end_position(_TOPIC) == {0: whole}
    assert b"".join(each.value for each in read_all(log, _TOPIC)) == sample.data[: sample.data_ends[whole]]
    log.close()
    shutil.rmtree(directory)


def test_a_lost_committed_file_costs_nothing(log: SegmentLog, directory: Path) -> None:
    log.append(_TOPIC, 0, [record(b"a"), record(b"b")])
    log.close()
    (_partition(directory) / "committed").unlink()
    again = SegmentLog(directory)
    assert examples_of(read_all(again, _TOPIC)) == [b"a", b"b"]
    again.close()


def test_a_writer_that_died_after_the_index_was_written_leaves_whole_records(sample: _Sample) -> None:
    directory = _crashed(sample, sample.data, sample.index, committed=4)
    log = SegmentLog(directory)
    assert log.end_position(_TOPIC) == {0: 8}
    log.close()
    assert (_partition(directory) / "committed").read_bytes() == (8).to_bytes(8, "little")
    shutil.rmtree(directory)


# Damage


@pytest.mark.parametrize("committed", [0, 4, 8], ids=lambda committed: f"committed says {committed}")
def test_a_flipped_bit_in_committed_records_is_found_and_nothing_is_cut_off(sample: _Sample, committed: int) -> None:
    # 0 is a `committed` that a machine's crash has set back: then only the later commit tells damage from a torn tail.
    for place in range(0, sample.index_ends[4], 5):
        index = bytearray(sample.index)
        index[place] ^= 4
        directory = _crashed(sample, sample.data, bytes(index), committed=committed)
        log = SegmentLog(directory)
        with pytest.raises(DataLoss):
            log.append(_TOPIC, 0, [record()])
        log.close()
        assert [file.read_bytes() for file in _files(directory)] == [sample.data, bytes(index)]
        shutil.rmtree(directory)


def test_a_flipped_bit_in_a_value_is_found_by_the_reader(log: SegmentLog, directory: Path) -> None:
    log.append(_TOPIC, 0, [record(b"first"), record(b"second"), record(b"third")])
    data, _ = _files(directory)
    content = bytearray(data.read_bytes())
    content[content.index(b"second")] ^= 1
    data.write_bytes(content)
    reader = log.read(_TOPIC, 0, 0, 3)
    assert examples_of([next(reader)]) == [b"first"]
    with pytest.raises(DataLoss, match="offset 1"):
        next(reader)


@pytest.mark.parametrize("which", [0, 1])
def test_acknowledged_records_that_are_gone_are_reported_not_forgotten(
    log: SegmentLog, directory: Path, which: int
) -> None:
    log.append(_TOPIC, 0, [record(b"a"), record(b"b")])
    log.close()
    file = _files(directory)[which]
    file.write_bytes(file.read_bytes()[:-1])
    again = SegmentLog(directory)
    with pytest.raises(DataLoss, match="offsets below 2 were acknowledged"):
        again.append(_TOPIC, 0, [record()])
    with pytest.raises(DataLoss):
        again.end_position(_TOPIC)
    again.close()


def test_a_segment_missing_in_the_middle_is_reported(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=300))
    log.create_topic(_TOPIC, partition_count=1)
    for number in range(10):
        log.append(_TOPIC, 0, [record(b"%d" % number * 100)])
    middle = sorted(_partition(directory).glob("*.index"))[2]
    middle.unlink()
    with pytest.raises(DataLoss, match=f"offset {int(middle.stem)}"):
        read_all(log, _TOPIC)
    log.close()


# A full disk


@contextmanager
def _no_file_larger_than(limit_bytes: int) -> Iterator[None]:
    """Writes past the limit fail with EFBIG, as they fail with ENOSPC on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full", ["data", "index"])
def test_a_full_disk_refuses_the_append_and_leaves_the_files_as_they_were(
    log: SegmentLog, directory: Path, full: str
) -> None:
    log.append(_TOPIC, 0, [record(b"kept")])
    before = [file.read_bytes() for file in _files(directory)]
    # Index entries are larger than tiny values, so a limit between them hits the one or the other file.
    new = [record(b"x" * 10_000)] if full == "data" else [record(b"x")] * 30
    with _no_file_larger_than(1500), pytest.raises(Unavailable, match="File too large"):
        log.append(_TOPIC, 0, new)
    assert [file.read_bytes() for file in _files(directory)] == before
    assert log.append(_TOPIC, 0, [record(b"after")]) == [1]
    assert examples_of(read_all(log, _TOPIC)) == [b"kept", b"after"]


def test_a_partition_that_stays_locked_is_reported_after_a_while(log: SegmentLog, directory: Path) -> None:
    first = CommitFile(_partition(directory))
    second = CommitFile(_partition(directory), lock_timeout_seconds=0.05)
    with first.locked(), pytest.raises(Unavailable, match="locked by another process"), second.locked():
        pass
    with second.locked():
        pass
    first.close()
    second.close()


def test_a_busy_appender_cannot_overtake_one_that_waits(log: SegmentLog, directory: Path) -> None:
    order: list[str] = []

    def take(name: str) -> None:
        commit_file = CommitFile(_partition(directory))
        with commit_file.locked():
            order.append(name)
        commit_file.close()

    busy = CommitFile(_partition(directory))
    waiting, again = (threading.Thread(target=take, args=(name,)) for name in ("waiting", "busy again"))
    with busy.locked():
        waiting.start()
        _wait_until_locked(_partition(directory) / "turn")
        again.start()
    for thread in (waiting, again):
        thread.join(_TIMEOUT_SECONDS)
    assert order == ["waiting", "busy again"]
    busy.close()


def _wait_until_locked(path: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with path.open() as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
    raise AssertionError(f"nobody waits at {path}")


# The inspector


def _inspect(directory: Path, topic: str, option: str = "--verify") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "common.eventlog", f"segments:{directory}", topic, option]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)


def test_the_inspector_tells_what_a_topic_holds_and_finds_damage(log: SegmentLog, directory: Path) -> None:
    log.append(_TOPIC, 0, [record(b"a", b"b"), record(b"c")])
    sound = _inspect(directory, _TOPIC)
    assert sound.returncode == 0
    assert "offsets [0, 2), 2 records, 3 examples" in sound.stdout
    assert "verified 3 examples" in sound.stdout
    log.append(_TOPIC, 0, [NewRecord(record(b"one").value, replace(record().headers, example_count=5))])
    wrong = _inspect(directory, _TOPIC)
    assert wrong.returncode == 1
    assert "offset 2 holds 1 examples; its headers say 5" in wrong.stderr
    absent = _inspect(directory, "examples.nowhere")
    assert absent.returncode == 1
    assert "no topic 'examples.nowhere'" in absent.stderr


def test_the_inspector_removes_what_an_idle_stream_need_not_keep(directory: Path) -> None:
    log = SegmentLog(directory, SegmentSettings(segment_bytes=2_000))
    log.create_topic(_TOPIC, partition_count=1)
    for _ in range(20):
        log.append(_TOPIC, 0, [record(b"x" * 500)])
    log.close()
    limited = Path(f"{directory}?segment_bytes=2000&retention_bytes=4000")
    done = _inspect(limited, _TOPIC, "--apply-retention")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 0
    assert "offsets [0," not in done.stdout
