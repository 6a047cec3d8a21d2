"""What only the segment files promise: group commit, retention, a full disk survived, fair locks, an inspector."""

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import HeadraceError, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import NewRecord
from common.eventlog.segment_files import CommitFile, lock_paths
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tests.records import examples_of, read_all, record
from common.eventlog.tests.segments import TOPIC, partition_dir, segment_files, segment_log
from testing.waiting import at_once

_TIMEOUT_SECONDS = 60.0
_QUEUE_SECONDS = 0.3


# Group commit


def test_appends_that_wait_together_share_two_flushes(segments: SegmentLog, directory: Path) -> None:
    segments.append(TOPIC, 0, [record()])
    before = segments.flush_count
    entering = threading.Barrier(17)

    def append() -> None:
        entering.wait(_TIMEOUT_SECONDS)
        segments.append(TOPIC, 0, [record()])

    threads = [threading.Thread(target=append) for _ in range(16)]
    other_process = CommitFile(partition_dir(directory))
    with other_process.locked():  # the first to come waits here; the others queue up behind it
        for thread in threads:
            thread.start()
        entering.wait(_TIMEOUT_SECONDS)
        time.sleep(_QUEUE_SECONDS)
        assert segments.flush_count == before
    for thread in threads:
        thread.join(_TIMEOUT_SECONDS)
    other_process.close()
    assert segments.end_position(TOPIC) == {0: 17}
    assert 4 <= segments.flush_count - before < 2 * 16


def test_a_lone_append_is_flushed_before_its_answer(segments: SegmentLog) -> None:
    before = segments.flush_count
    segments.append(TOPIC, 0, [record(), record()])
    assert segments.flush_count - before == 2


def test_an_append_that_fails_does_not_take_others_with_it(segments: SegmentLog) -> None:
    wrong = record()
    object.__setattr__(wrong.headers, "chunk_id", b"short")
    new = (record(), wrong, record())

    def append(number: int) -> bool:
        with contextlib.suppress(HeadraceError):
            return bool(segments.append(TOPIC, 0, [new[number]]))
        return False

    assert at_once(3, append) == [True, False, True]
    assert segments.end_position(TOPIC) == {0: 2}


# Segments and retention


def test_segments_are_named_by_their_first_offset_and_concatenate_to_all_examples(directory: Path) -> None:
    with segment_log(directory, segment_bytes=500) as log:
        for number in range(20):
            log.append(TOPIC, 0, [record(b"%d" % number * 50)])
        files = sorted(partition_dir(directory).glob("*.tfrecord"))
        assert len(files) > 3
        assert all(file.stat().st_size <= 500 for file in files)
        first_examples = [tfrecord.cut(file.read_bytes())[0][0] for file in files]
        assert first_examples == [b"%d" % int(file.stem) * 50 for file in files]
        assert tfrecord.cut(b"".join(file.read_bytes() for file in files))[0] == examples_of(read_all(log, TOPIC))


def test_a_record_larger_than_a_segment_gets_a_segment(directory: Path) -> None:
    new = [record(b"small"), record(b"x" * 5_000_000), record(b"small again")]
    with segment_log(directory, segment_bytes=500) as log:
        for each in new:
            log.append(TOPIC, 0, [each])
        assert [each.value for each in read_all(log, TOPIC)] == [each.value for each in new]
    assert len(list(partition_dir(directory).glob("*.index"))) == 3


def test_what_is_older_than_the_limit_goes_even_when_it_is_the_newest_segment(directory: Path) -> None:
    with segment_log(directory, segment_bytes=500, retention_seconds=3600) as log:
        for number in range(10):
            log.append(TOPIC, 0, [record(b"%d" % number * 100)])
        assert log.apply_retention() == 0
        long_ago = time.time() - 4000
        for file in partition_dir(directory).glob("*.tfrecord"):
            os.utime(file, (long_ago, long_ago))
        assert log.apply_retention() > 1
        assert log.start_position(TOPIC) == log.end_position(TOPIC) == {0: 10}
        assert log.append(TOPIC, 0, [record(b"next")]) == [10]
    with segment_log(directory) as again:
        assert examples_of(read_all(again, TOPIC)) == [b"next"]


def test_a_process_goes_on_in_the_segment_that_another_has_begun(directory: Path) -> None:
    with ExitStack() as stack:
        logs = [stack.enter_context(segment_log(directory, segment_bytes=400)) for _ in range(3)]
        offsets = [log.append(TOPIC, 0, [record(b"%d" % turn * 90)])[0] for turn in range(10) for log in logs]
        assert offsets == list(range(30))
        assert examples_of(read_all(logs[1], TOPIC)) == [b"%d" % turn * 90 for turn in range(10) for _ in logs]


def test_a_process_notices_what_another_has_appended_even_when_the_value_is_empty(directory: Path) -> None:
    empty = NewRecord(b"", replace(record().headers, example_count=0))
    with segment_log(directory) as first, segment_log(directory) as second:
        assert first.append(TOPIC, 0, [record(b"first")]) == [0]
        assert second.append(TOPIC, 0, [empty]) == [1]
        assert first.append(TOPIC, 0, [record(b"last")]) == [2]
        assert [len(each.value) > 0 for each in read_all(second, TOPIC)] == [True, False, True]


def test_a_deletion_cut_short_by_a_crash_is_finished_later(directory: Path) -> None:
    with segment_log(directory, segment_bytes=300, retention_bytes=600) as log:
        for number in range(10):
            log.append(TOPIC, 0, [record(b"%d" % number * 100)])
        oldest = min(partition_dir(directory).glob("*.index"))
        oldest.unlink()
        assert log.start_position(TOPIC)[0] > 0
        log.apply_retention()
    assert not oldest.with_suffix(".tfrecord").exists()
    values, indexes = (
        {path.stem for path in partition_dir(directory).glob(kind)} for kind in ("*.tfrecord", "*.index")
    )
    assert values == indexes


def test_reading_holds_about_a_mebibyte_however_long_the_range(segments: SegmentLog) -> None:
    for _ in range(20):
        segments.append(TOPIC, 0, [record(b"x" * 200_000) for _ in range(10)])
    tracemalloc.start()
    try:
        size_bytes = sum(len(each.value) for each in segments.read(TOPIC, 0, 0, 200))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size_bytes > 40_000_000
    assert peak_bytes < 4_000_000


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
    segments: SegmentLog, directory: Path, full: str
) -> None:
    segments.append(TOPIC, 0, [record(b"kept")])
    before = [file.read_bytes() for file in segment_files(directory)]
    # Index entries are larger than tiny values, so a limit between them hits the one or the other file.
    new = [record(b"x" * 10_000)] if full == "data" else [record(b"x")] * 30
    with _no_file_larger_than(1500), pytest.raises(Unavailable, match="File too large"):
        segments.append(TOPIC, 0, new)
    assert [file.read_bytes() for file in segment_files(directory)] == before
    assert segments.append(TOPIC, 0, [record(b"after")]) == [1]
    assert examples_of(read_all(segments, TOPIC)) == [b"kept", b"after"]


def test_a_partition_that_stays_locked_is_reported_after_a_while(directory: Path) -> None:
    with (
        closing(CommitFile(partition_dir(directory))) as first,
        closing(CommitFile(partition_dir(directory), lock_timeout_seconds=0.05)) as second,
    ):
        with first.locked(), pytest.raises(Unavailable, match="locked by another process"), second.locked():
            pass
        with second.locked():
            pass


def test_a_process_that_may_only_read_a_topic_holds_no_appender_up(segments: SegmentLog, directory: Path) -> None:
    """As authors' code in a round: flock(2) asks for no right to write."""
    segments.append(TOPIC, 0, [record()])
    with ExitStack() as opened:
        for path in (directory / TOPIC).rglob("*"):
            descriptor = os.open(path, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert segments.append(TOPIC, 0, [record()]) == [1]


def test_a_busy_appender_cannot_overtake_a_waiting_appender(directory: Path) -> None:
    order: list[str] = []

    def take(name: str) -> None:
        commit_file = CommitFile(partition_dir(directory))
        with commit_file.locked():
            order.append(name)
        commit_file.close()

    busy = CommitFile(partition_dir(directory))
    waiting, again = (threading.Thread(target=take, args=(name,)) for name in ("waiting", "busy again"))
    with busy.locked():
        waiting.start()
        _wait_until_locked(lock_paths(partition_dir(directory))[1])
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


def test_the_inspector_counts_a_topics_records_and_finds_damage(segments: SegmentLog, directory: Path) -> None:
    segments.append(TOPIC, 0, [record(b"a", b"b"), record(b"c")])
    sound = _inspect(directory, TOPIC)
    assert sound.returncode == 0
    assert "offsets [0, 2), 2 records, 3 examples" in sound.stdout
    assert "verified 3 examples" in sound.stdout
    segments.append(TOPIC, 0, [NewRecord(record(b"one").value, replace(record().headers, example_count=5))])
    wrong = _inspect(directory, TOPIC)
    assert wrong.returncode == 1
    assert "offset 2 holds 1 example; its headers say 5" in wrong.stderr
    absent = _inspect(directory, "examples.nowhere")
    assert absent.returncode == 1
    assert "no topic 'examples.nowhere'" in absent.stderr


def test_the_inspector_removes_what_an_idle_stream_need_not_keep(directory: Path) -> None:
    with segment_log(directory, segment_bytes=2_000) as log:
        for _ in range(20):
            log.append(TOPIC, 0, [record(b"x" * 500)])
    limited = Path(f"{directory}?segment_bytes=2000&retention_bytes=4000")
    done = _inspect(limited, TOPIC, "--apply-retention")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 0
    assert "offsets [0," not in done.stdout
