"""Bytes, tensors, images and sequences at the door: what is taken, what is refused in which words, by every way in."""

import base64
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.errors import InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.images import LARGEST_PIXELS, fault_of_image
from common.kinds import ImageKind
from common.schema import Schema
from protos.example_pb2 import Example, FeatureLists, SequenceExample
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.layout import LockstepChecker
from services.ingest.tests.conftest import accepts, passed_by_lockstep
from testing.pictures import png
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "blob", "dtype": "bytes"},
            {"name": "pair", "dtype": "bytes", "shape": [2], "required": False, "default": "é"},
            {"name": "small", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape": [2, 3]}},
            {"name": "half", "dtype": "bytes", "tensor": {"dtype": "float16", "shape": [2]}},
            {"name": "photo", "dtype": "bytes", "required": False, "image": {"format": "png", "height": 4, "width": 4}},
            {"name": "steps", "dtype": "float32", "shape": [None, 2]},
            {"name": "words", "dtype": "string", "shape": [None], "required": False},
        ],
        "labels": [{"name": "y", "dtype": "int64"}],
    }
)
CODEC = ExampleCodec(SCHEMA)
_SCAN = {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "int16", "shape_field": "sizes"}}
SIZED = ExampleCodec(Schema.from_mapping({"features": [_SCAN, {"name": "sizes", "dtype": "int64", "shape": [2]}]}))
PNG = png(np.arange(16, dtype=np.uint8).reshape(4, 4))


def b64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


GOOD: dict[str, Any] = {
    "blob": b64(b"\xff\xd8\x00\xfe"), "pair": [b64(b""), b64(b"\x80")], "small": b64(bytes(range(6))),
    "half": b64(np.array([1.5, -2], "<f2").tobytes()), "photo": b64(PNG), "steps": [[1, 2], [0.0, -1]],
    "words": ["", "ü", "\x00"], "y": 1,
}  # fmt: skip


@pytest.mark.covers("rec-example", "rec-raw-tensor", "rec-image")
def test_every_kind_comes_back_bit_by_bit() -> None:
    found = CODEC.decode(CODEC.encode(GOOD))
    assert found["blob"] == [b"\xff\xd8\x00\xfe"]
    assert found["pair"] == [b"", b"\x80"]
    assert found["small"] == [bytes(range(6))]
    assert found["photo"] == [PNG]
    assert found["steps"] == [1.0, 2.0, 0.0, -1.0]
    assert found["words"] == [b"", "ü".encode(), b"\x00"]


def test_a_missing_value_is_the_default_and_for_an_image_no_bytes() -> None:
    found = CODEC.decode(CODEC.encode({k: v for k, v in GOOD.items() if k not in ("pair", "photo", "words")}))
    assert found["pair"] == ["é".encode()] * 2
    assert found["photo"] == [b""]
    assert found["words"] == []


@each_row(
    ("name", "value", "sentence"),
    [
        ("blob", "text", 'blob is \'text\', expected bytes as {"b64": "..."}'),
        ("blob", {"b64": "*"}, "blob holds '*' under b64, expected base64"),
        ("blob", {"b64": None}, "blob holds null under b64"),
        ("pair", [b64(b"x")], "pair holds 1 value, expected 2"),
        ("small", b64(bytes(5)), "small holds 5 bytes, expected 6: uint8 [2, 3]"),
        ("small", b64(b""), "small holds 0 bytes, expected 6"),
        ("half", b64(bytes(6)), "half holds 6 bytes, expected 4: float16 [2]"),
        ("half", b64(np.array([1, np.nan], "<f2").tobytes()), "half holds NaN or an infinity"),
        ("photo", b64(b"<svg/>"), "photo is 6 bytes that begin with 3c 73 76 67 2f 3e, expected a png image"),
        ("photo", b64(b"\xff\xd8\xff\xe0 JFIF \xff\xd9"), "photo is a jpeg image, expected a png image"),
        ("photo", b64(PNG[: len(PNG) // 2]), "photo is a png image that is cut off after"),
        ("photo", b64(PNG[:16] + struct.pack(">II", 2**31 - 1, 9) + PNG[24:]), "of 2147483647 x 9 pixels"),
        ("steps", [[1, 2], [3]], "steps holds 1 value in step 1, expected 2"),
        ("steps", [1, 2], "steps holds one value in step 0, expected a list of 2"),
        ("steps", [[[1], [2]]], "steps is [1], expected a number"),
        ("steps", [[1, float("nan")]], "steps is NaN, expected a finite number"),
        ("words", [["x"]], "words is ['x'], expected a string"),
    ],
)
@pytest.mark.covers("rec-raw-tensor", "rec-image", "rec-sequence")
def test_a_value_that_does_not_fit_is_refused_with_both_forms(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CODEC.encode(GOOD | {name: value})
    assert sentence in caught.value.message


def test_an_event_that_is_huge_in_a_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"has the shape \[0, 1000000000\], expected at most 16777216 values"):
        SIZED.encode({"scan": b64(b""), "sizes": [0, 10**9]})
    lists = ExampleCodec(Schema.from_mapping({"features": [{"name": "rows", "dtype": "int64", "shape": [None, None]}]}))
    with pytest.raises(InvalidInput, match="rows has 9,001 rows, the longest of 9000 values, expected a product of at"):
        lists.encode({"rows": [[1] * 9000] + [[]] * 9000})


@each_row(("sides", "frames"), [((0x2000, 0x2001), 1), ((1024, 1024), 65)])
def test_the_frames_of_a_gif_count_whatever_size_its_header_says(sides: tuple[int, int], frames: int) -> None:
    """1 x 1 in the header, and frames of more than the 64 MiB of pixels that an image may have."""
    frame = b"\x21\xf9\x04\0\0\0\0\0" + b"\x2c" + struct.pack("<4HB", 0, 0, *sides, 0x80) + bytes(6)
    frame += b"\x02\x02\x44\x01\0"
    start = b"GIF89a" + struct.pack("<2H3B", 1, 1, 0x81, 0, 0) + bytes(12)
    pixels = sides[0] * sides[1] * frames
    assert fault_of_image(start + frame * frames + b";", "any") == (
        f"is a gif image whose frames have {pixels} pixels, expected at most {LARGEST_PIXELS} pixels in all"
    )
    small = b"\x2c" + struct.pack("<4HB", 0, 0, 2, 2, 0) + b"\x02\x02\x44\x01\0"
    assert fault_of_image(start + small * 3 + b";", "gif") is None


def _bmp(bits: int, *, form: int = 0, header: int = 40, table: bytes = b"") -> bytes:
    size = 14 + header + len(table)
    fields = struct.pack("<IiiHHIIiiII", header, 2, 1, 1, bits, form, 0, 0, 0, 0, 0)[:header]
    return b"BM" + struct.pack("<IHHI", size + 8, 0, 0, size) + fields + table + bytes(8)


GRAYS = b"".join(bytes([gray, gray, gray, 0]) for gray in range(256))


@each_row(
    ("image", "fault"),
    [
        (_bmp(24), ""),
        (_bmp(32), ""),
        (_bmp(32, form=3, table=bytes.fromhex("0000ff00 00ff0000 ff000000")), ""),
        (_bmp(8, table=GRAYS), ""),
        (_bmp(8, table=GRAYS[::-1]), "with a table of colours, expected one of grays in order"),
        (_bmp(8, form=1, table=GRAYS), "of 8 bits a pixel in form 1, expected 8, 24 or 32 bits, not compressed"),
        (_bmp(32, form=3, table=bytes.fromhex("ff000000 00ff0000 0000ff00")), "of 32 bits a pixel in form 3, expected"),
        (_bmp(1), "of 1 bits a pixel in form 0, expected"),
        (_bmp(16), "of 16 bits a pixel in form 0, expected"),
        (_bmp(24, header=16), "with a header of 16 bytes, expected 40 or more"),
    ],
)
def test_a_bmp_that_the_decoder_would_read_otherwise_is_refused(image: bytes, fault: str) -> None:
    found = fault_of_image(image, "any")
    assert (found or "").startswith(f"is a bmp image {fault}") if fault else found is None


def test_a_jpeg_of_four_inks_is_no_gray_image() -> None:
    def jpeg(components: int) -> bytes:
        return b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 8, 8, 2, 2, components) + b"\xff\xd9"

    gray, colours = (ImageKind("any", 2, 2, channels) for channels in (1, 3))
    assert gray.fault_of(jpeg(4)) == "is a jpeg image of four inks (CMYK), expected gray or colours for channels: 1"
    assert [gray.fault_of(jpeg(1)), gray.fault_of(jpeg(3)), colours.fault_of(jpeg(4))] == [None] * 3


def test_bytes_that_are_no_segment_hide_no_jpegs_size() -> None:
    def frame(side: int) -> bytes:
        return b"\xff\xc0" + struct.pack(">HBHH", 17, 8, side, side) + bytes(10)

    hidden = frame(0xFFFF)
    skipped = b"\xff\x00" + struct.pack(">H", 2 + len(hidden)) + hidden
    assert fault_of_image(b"\xff\xd8" + frame(8) + b"\xff\xd9", "jpeg") is None
    fault = fault_of_image(b"\xff\xd8" + skipped + frame(8) + b"\xff\xd9", "jpeg")
    assert fault == "is a jpeg image without a size in its header"
    fault = fault_of_image(b"\xff\xd8" + hidden + b"\xff\xd9", "jpeg")
    assert (fault or "").startswith("is a jpeg image of 65535 x 65535 pixels")


@pytest.mark.covers("rec-raw-tensor")
def test_a_tensor_has_the_shape_that_its_event_says() -> None:
    event = {"scan": b64(bytes(12)), "sizes": [2, 3]}
    assert SIZED.decode(SIZED.encode(event)) == {"scan": [bytes(12)], "sizes": [2, 3]}
    assert ColumnarEncoder(SIZED).encode([event]) is None, "columns are checked one by one, so the codec looks at it"
    for sizes, sentence in (([2, 2], "scan holds 12 bytes, expected 8: int16 [2, 2]"), ([-1, -6], "has the shape")):
        with pytest.raises(InvalidInput, match=sentence.replace("[", r"\[").replace("]", r"\]")):
            SIZED.encode(event | {"sizes": sizes})
        raw = Example.FromString(SIZED.encode(event))
        raw.features.feature["sizes"].int64_list.value[:] = sizes
        with pytest.raises(InvalidInput, match="scan h"):
            SIZED.check(raw.SerializeToString())
        assert not passed_by_lockstep(SIZED, [raw.SerializeToString()])[0]


def _sequence(event: dict[str, Any], **lists: list[list[float]]) -> SequenceExample:
    """The event with `lists` as steps in place of its own."""
    made = SequenceExample(context=Example.FromString(CODEC.encode(event)).features)
    for name, steps in lists.items():
        del made.context.feature[name]
        made.feature_lists.feature_list[name].SetInParent()
        for step in steps:
            made.feature_lists.feature_list[name].feature.add().float_list.value[:] = step
    return made


@each_row("steps", [[], [[1.0, 2.0]], [[1.0, 2.0], [0.0, -1.0], [3.0, 4.0]]])
@pytest.mark.covers("rec-sequence")
def test_a_sequence_example_is_the_same_event_as_nested_lists(steps: list[list[float]]) -> None:
    sequence = _sequence(GOOD, steps=steps)
    assert CODEC.check(sequence.SerializeToString()) == CODEC.encode(GOOD | {"steps": steps})


@pytest.mark.covers("rec-sequence")
def test_a_sequence_example_that_does_not_fit_is_refused_by_name() -> None:
    def refusal(sequence: SequenceExample) -> str:
        data = sequence.SerializeToString()
        assert passed_by_lockstep(CODEC, [data]) == [False]
        with pytest.raises(InvalidInput) as caught:
            CODEC.check(data)
        return caught.value.message

    assert "steps holds 1 value in step 1, expected 2" in refusal(_sequence(GOOD, steps=[[1, 2], [3]]))
    twice = _sequence(GOOD)
    twice.feature_lists.CopyFrom(_sequence(GOOD, steps=[[1, 2]]).feature_lists)
    assert "steps is in the context and in the feature lists" in refusal(twice)
    fixed = _sequence(GOOD)
    fixed.context.feature.pop("y")
    fixed.feature_lists.feature_list["y"].feature.add().int64_list.value.append(1)
    assert "y is a list of steps, expected a feature of the context" in refusal(fixed)
    mixed = _sequence(GOOD, steps=[[1, 2]])
    mixed.feature_lists.feature_list["steps"].feature.add().int64_list.value.append(1)
    assert "steps holds steps of different kinds" in refusal(mixed)
    other = _sequence(GOOD)
    other.feature_lists.CopyFrom(FeatureLists(feature_list={"what": mixed.feature_lists.feature_list["steps"]}))
    assert "'what' is not in the schema" in refusal(other)


_BYTES = st.one_of(st.binary(max_size=8), st.sampled_from([PNG, PNG[:40], bytes(6), bytes(4), b"\xef\xbf\xbf"]))
_VALUES: st.SearchStrategy[Any] = st.one_of(
    _BYTES.map(b64), st.lists(_BYTES.map(b64), max_size=3), st.sampled_from([None, "x", 1, {"b64": 1}, {}, []]),
    st.lists(st.lists(st.floats(width=32), max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(sorted(GOOD)), _VALUES, max_size=2), min_size=1, max_size=4))
@example([{}, {"photo": None}])
@example([{"steps": []}, {"words": ["\uffff"]}])
def test_columns_encode_exactly_the_batches_that_the_codec_takes(changes: list[dict[str, Any]]) -> None:
    events = [GOOD | change for change in changes]
    try:
        slowly = [CODEC.encode(event) for event in events]
    except InvalidInput:
        slowly = None
    assert ColumnarEncoder(CODEC).encode(events) == slowly


@given(st.sampled_from(["blob", "pair", "small", "half", "photo", "words"]), st.lists(_BYTES, max_size=3),
       st.integers(0, 60), st.integers(0, 255), st.booleans())  # fmt: skip
def test_the_lockstep_passes_only_examples_that_the_codec_accepts(
    name: str, values: list[bytes], at: int, octet: int, is_damaged: bool
) -> None:
    changed = Example.FromString(CODEC.encode(GOOD))
    changed.features.feature[name].bytes_list.value[:] = values
    data = bytearray(changed.SerializeToString())
    if is_damaged:
        data[at] = octet
    damaged = bytes(data)
    accepted = accepts(CODEC, damaged)
    assert accepted or not passed_by_lockstep(CODEC, [damaged])[0]


def test_the_lockstep_passes_tensors_of_integers_without_a_closer_look() -> None:
    plain = Schema.from_mapping({"features": [f.to_mapping() for f in SCHEMA.features if f.name in ("blob", "small")]})
    codec = ExampleCodec(plain)
    good = codec.encode({"blob": b64(b"\x00\xff"), "small": GOOD["small"]})
    assert passed_by_lockstep(codec, [good, good]) == [True, True]


@pytest.mark.covers("feat-weighted")
@each_row(
    ("event", "sentence"),
    [
        ({"counts": [0.5]}, "counts holds 1 weight, ids 0 values; expected one weight for each"),
        ({"ids": [7, 7]}, "counts holds 0 weights, ids 2 values; expected one weight for each"),
        ({"ids": [7, 8], "counts": [0.5]}, "counts holds 1 weight, ids 2 values; expected one weight for each"),
        ({"ids": [7, 8], "counts": [0.5, 2]}, ""),
        ({"ids": [], "counts": []}, ""),
        ({}, ""),
    ],
)
def test_every_id_has_its_weight_by_every_way_in(event: dict[str, list[float]], sentence: str) -> None:
    ids = {"name": "ids", "dtype": "int64", "shape": [None], "required": False}
    counts = {"name": "counts", "dtype": "float32", "shape": [None], "required": False}
    free = ExampleCodec(Schema.from_mapping({"features": [ids, counts]}))
    tied = ExampleCodec(Schema.from_mapping({"features": [ids, counts | {"weights_of": "ids"}]}))
    serialized, whole = free.encode(event), free.encode({"ids": [], "counts": []} | event)
    framed = tfrecord.frame([serialized])
    is_passed = LockstepChecker(tied).passed(framed, np.array([len(serialized)])).mask[0]
    columns = ColumnarEncoder(tied).encode([event, event])
    if not sentence:
        assert tied.encode(event) == tied.check(serialized) == serialized
        assert tied.check(whole) == whole
        return
    assert columns is None
    assert not is_passed
    with pytest.raises(InvalidInput, match=sentence):
        tied.encode(event)
    for given_bytes in (serialized, whole):
        with pytest.raises(InvalidInput, match=sentence):
            tied.check(given_bytes)
