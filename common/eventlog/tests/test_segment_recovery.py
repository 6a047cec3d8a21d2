"""Segment files after a crash or damage: a torn tail is cut back, what was acknowledged and is gone is reported."""

import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataLoss
from common.eventlog import tfrecord
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tests.records import examples_of, read_all, record
from common.eventlog.tests.segments import TOPIC, partition_dir, segment_files, segment_log, set_committed

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
    new = [record(b"%d" % number * (7 * number), requests=number % 3) for number in range(8)]
    with segment_log(directory) as log:
        log.append(TOPIC, 0, new[:4])
        log.append(TOPIC, 0, new[4:])
    data, index = (file.read_bytes() for file in segment_files(directory))
    data_ends, index_ends = [0], [0]
    for each in new:
        data_ends.append(data_ends[-1] + len(each.value))
        index_ends.append(index.find(b"HRix", index_ends[-1] + 1) % (len(index) + 1))
    return _Sample(data, index, data_ends, index_ends)


def _crashed(sample: _Sample, data: bytes, index: bytes, *, committed: int) -> Path:
    directory = Path(tempfile.mkdtemp())
    with segment_log(directory):
        pass
    for file, content in zip(segment_files(directory), (data, index), strict=True):
        file.write_bytes(content)
    set_committed(directory, committed)
    return directory


@given(draw=st.data())
def test_a_tail_torn_at_any_byte_is_cut_back_to_the_last_whole_record(sample: _Sample, draw: st.DataObject) -> None:
    data_cut = draw.draw(st.integers(sample.data_ends[4], sample.data_ends[8]), label="data bytes")
    index_cut = draw.draw(st.integers(sample.index_ends[4], sample.index_ends[8]), label="index bytes")
    directory = _crashed(sample, sample.data[:data_cut], sample.index[:index_cut], committed=4)
    whole = max(
        count for count in range(9) if sample.data_ends[count] <= data_cut and sample.index_ends[count] <= index_cut
    )
    with segment_log(directory) as log:
        assert log.end_position(TOPIC) == {0: whole}
        assert b"".join(each.value for each in read_all(log, TOPIC)) == sample.data[: sample.data_ends[whole]]
        assert log.append(TOPIC, 0, [record(b"next")]) == [whole]
        assert examples_of(read_all(log, TOPIC))[-1] == b"next"
    files = [file.read_bytes() for file in segment_files(directory)]
    assert files[0][: sample.data_ends[whole]] == sample.data[: sample.data_ends[whole]]
    assert len(tfrecord.cut(files[0])[0]) == whole + 1
    shutil.rmtree(directory)


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
    with segment_log(directory) as log:
        assert log.end_position(TOPIC) == {0: whole}
        assert b"".join(each.value for each in read_all(log, TOPIC)) == sample.data[: sample.data_ends[whole]]
    shutil.rmtree(directory)


def test_a_lost_committed_file_costs_nothing(segments: SegmentLog, directory: Path) -> None:
    segments.append(TOPIC, 0, [record(b"a"), record(b"b")])
    segments.close()
    (partition_dir(directory) / "committed").unlink()
    with segment_log(directory) as again:
        assert examples_of(read_all(again, TOPIC)) == [b"a", b"b"]


def test_a_writer_that_died_after_the_index_was_written_leaves_whole_records(sample: _Sample) -> None:
    directory = _crashed(sample, sample.data, sample.index, committed=4)
    with segment_log(directory) as log:
        assert log.end_position(TOPIC) == {0: 8}
    assert (partition_dir(directory) / "committed").read_bytes() == (8).to_bytes(8, "little")
    shutil.rmtree(directory)


# Damage


@pytest.mark.parametrize("committed", [0, 4, 8], ids=lambda committed: f"committed says {committed}")
def test_a_flipped_bit_in_committed_records_is_found_and_nothing_is_cut_off(sample: _Sample, committed: int) -> None:
    # 0 is a `committed` that a machine's crash has set back: then only the later commit tells damage from a torn tail.
    for place in range(0, sample.index_ends[4], 5):
        index = bytearray(sample.index)
        index[place] ^= 4
        directory = _crashed(sample, sample.data, bytes(index), committed=committed)
        with closing(SegmentLog(directory)) as log, pytest.raises(DataLoss):
            log.append(TOPIC, 0, [record()])
        assert [file.read_bytes() for file in segment_files(directory)] == [sample.data, bytes(index)]
        shutil.rmtree(directory)


def test_a_value_with_a_flipped_bit_comes_as_it_is_and_its_frames_tell(segments: SegmentLog, directory: Path) -> None:
    segments.append(TOPIC, 0, [record(b"first"), record(b"second"), record(b"third")])
    data, _ = segment_files(directory)
    content = bytearray(data.read_bytes())
    content[content.index(b"second")] ^= 1
    data.write_bytes(content)
    first, second, third = segments.read(TOPIC, 0, 0, 3)
    assert examples_of([first, third]) == [b"first", b"third"]
    with pytest.raises(DataLoss, match="example 0 at byte 0 does not match the checksum"):
        examples_of([second])


@pytest.mark.parametrize("which", [0, 1])
def test_acknowledged_records_that_are_gone_are_reported_not_forgotten(
    segments: SegmentLog, directory: Path, which: int
) -> None:
    segments.append(TOPIC, 0, [record(b"a"), record(b"b")])
    segments.close()
    file = segment_files(directory)[which]
    file.write_bytes(file.read_bytes()[:-1])
    with closing(SegmentLog(directory)) as again:
        with pytest.raises(DataLoss, match="offsets below 2 were acknowledged"):
            again.append(TOPIC, 0, [record()])
        with pytest.raises(DataLoss):
            again.end_position(TOPIC)


def test_a_segment_missing_in_the_middle_is_reported(directory: Path) -> None:
    with segment_log(directory, segment_bytes=300) as log:
        for number in range(10):
            log.append(TOPIC, 0, [record(b"%d" % number * 100)])
        middle = sorted(partition_dir(directory).glob("*.index"))[2]
        middle.unlink()
        with pytest.raises(DataLoss, match=f"offset {int(middle.stem)}"):
            read_all(log, TOPIC)


@pytest.mark.parametrize("written", ['{"format": 2, "partition_count": 1}', '{"partition_count": 1}', "[]"])
def test_a_topic_of_another_format_is_refused_with_both_and_left_as_it_is(
    segments: SegmentLog, directory: Path, written: str
) -> None:
    segments.append(TOPIC, 0, [record(b"kept")])
    segments.close()
    (directory / TOPIC / "topic.json").write_text(written)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    again = SegmentLog(directory)
    for use in (lambda: again.end_position(TOPIC), lambda: again.append(TOPIC, 0, [record()])):
        with pytest.raises(DataLoss, match=r"has format (2|None); this release reads 1"):
            use()
    again.close()
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
