import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataLoss
from common.eventlog import tfrecord

examples_lists = st.lists(st.binary(max_size=40), max_size=20)


def _frame_by_the_format(examples: list[bytes]) -> bytes:
    out = io.BytesIO()
    for example in examples:
        length = struct.pack("<Q", len(example))
        out.write(length + struct.pack("<I", tfrecord.masked_crc32c(length)))
        out.write(example + struct.pack("<I", tfrecord.masked_crc32c(example)))
    return out.getvalue()


def test_the_mask_is_the_one_of_leveldb() -> None:
    # CRC32C of "123456789" is 0xe3069283 (RFC 3720, appendix B.4); rotated and shifted by hand.
    assert tfrecord.masked_crc32c(b"123456789") == (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF


@given(examples_lists)
def test_what_is_framed_is_cut_again(examples: list[bytes]) -> None:
    value = tfrecord.frame(examples)
    assert value == _frame_by_the_format(examples)
    again, crcs = tfrecord.cut(value)
    assert again == examples
    assert crcs.dtype == np.uint32
    assert crcs.tolist() == [tfrecord.masked_crc32c(example) for example in examples]
    assert tfrecord.cut(memoryview(value))[0] == examples
    assert tfrecord.count(memoryview(value)) == tfrecord.count(value) == len(examples)


@pytest.mark.covers("rec-tfrecord")
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_a_flipped_bit_anywhere_is_found_and_its_example_named(examples: list[bytes], data: st.DataObject) -> None:
    value = bytearray(tfrecord.frame(examples))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= 1 << data.draw(st.integers(0, 7))
    starts = [len(tfrecord.frame(examples[:index])) for index in range(len(examples))]
    start = max(start for start in starts if start <= place)
    with pytest.raises(DataLoss, match=rf"at byte {start} "):
        tfrecord.cut(bytes(value))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_a_value_cut_short_is_refused(examples: list[bytes], data: st.DataObject) -> None:
    value = tfrecord.frame(examples)
    ends = {len(tfrecord.frame(examples[:index])) for index in range(len(examples) + 1)}
    end = data.draw(st.integers(1, len(value) - 1).filter(lambda at: at not in ends))
    with pytest.raises(DataLoss, match=f"end at {end}"):
        tfrecord.cut(value[:end])
    with pytest.raises(DataLoss, match=f"end at {end}"):
        tfrecord.count(value[:end])


def test_a_huge_length_is_refused_without_reading_past_the_end() -> None:
    length = struct.pack("<Q", 2**62)
    value = length + struct.pack("<I", tfrecord.masked_crc32c(length))
    with pytest.raises(DataLoss, match="end at 12"):
        tfrecord.cut(value)


@pytest.mark.covers("rec-tfrecord")
@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_tensorflow_reads_what_is_framed_and_the_other_way_round(tmp_path: Path) -> None:
    examples = [b"", b"a", bytes(range(256)) * 300]
    ours, theirs = tmp_path / "ours.tfrecord", tmp_path / "theirs.tfrecord"
    ours.write_bytes(tfrecord.frame(examples))
    script = (
        "import sys, tensorflow as tf\n"
        "with tf.io.TFRecordWriter(sys.argv[2]) as out:\n"
        "    for example in tf.data.TFRecordDataset(sys.argv[1]): out.write(example.numpy())\n"
    )
    subprocess.run([sys.executable, "-c", script, str(ours), str(theirs)], check=True, timeout=240)
    assert theirs.read_bytes() == ours.read_bytes()
    assert tfrecord.cut(theirs.read_bytes())[0] == examples


@pytest.mark.covers("rec-tfrecord")
@given(st.lists(st.binary(min_size=1, max_size=20), min_size=2, max_size=6), st.data())
def test_what_is_sound_around_a_flipped_bit_is_cut_out_and_the_rest_is_named(
    examples: list[bytes], data: st.DataObject
) -> None:
    frames = [tfrecord.frame([one]) for one in examples]
    number = data.draw(st.integers(0, len(frames) - 1))
    bit = data.draw(st.integers(0, 8 * len(frames[number]) - 1))
    flipped = bytearray(frames[number])
    flipped[bit // 8] ^= 1 << bit % 8
    value = b"".join([*frames[:number], bytes(flipped), *frames[number + 1 :]])
    sound, damaged = tfrecord.cut_sound(value)
    assert sound == {place: one for place, one in enumerate(examples) if place != number}
    (found,) = damaged
    assert (found.number, found.at) == (number, sum(map(len, frames[:number])))
    assert found.content == bytes(flipped)
    assert found.reason.startswith(f"record {number} at byte {found.at} is damaged")


def test_of_what_ends_inside_a_frame_the_end_is_what_is_damaged() -> None:
    value = tfrecord.frame([b"one", b"two"])
    sound, (damaged,) = tfrecord.cut_sound(value[:-1])
    assert (sound, damaged.number, damaged.content) == ({0: b"one"}, 1, tfrecord.frame([b"two"])[:-1])
