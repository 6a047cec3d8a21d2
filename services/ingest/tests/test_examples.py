"""Events as tf.train.Example: what is let in, what is refused in which words, and that the bytes are protobuf's."""

import json
import math
import struct
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec, varint
from common.examples.values import to_float32
from common.schema import PADDING, Schema
from protos.example_pb2 import Example
from services.ingest.codec.check_file import check_file
from services.ingest.codec.columns import ColumnarEncoder
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "distance", "dtype": "float32", "min": 0, "max": 0.1},
            {"name": "month", "dtype": "int64", "min": 1, "max": 12},
            {"name": "id", "dtype": "int64"},
            {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA"]},
            {"name": "note", "dtype": "string"},
            {"name": "pixels", "dtype": "float32", "shape": [2, 2]},
            {"name": "tags", "dtype": "string", "shape": [None]},
            {"name": "delay", "dtype": "float32", "required": False, "default": 0.5},
        ],
        "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
    }
)
CODEC = ExampleCodec(SCHEMA)
EVENT: dict[str, Any] = {
    "distance": 0.1, "month": 3, "id": -7, "carrier": "AA", "note": "naïve", "pixels": [[1, 2], [3, 4.5]],
    "tags": ["a", "b"], "late": 1,
}  # fmt: skip


def _refusal_of(**changes: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        CODEC.encode(EVENT | changes)
    return caught.value.message


def test_an_event_becomes_the_bytes_that_protobuf_reads() -> None:
    features = Example.FromString(CODEC.encode(EVENT)).features.feature
    assert list(features["distance"].float_list.value) == [to_float32(0.1)]
    assert list(features["id"].int64_list.value) == [-7]
    assert list(features["note"].bytes_list.value) == ["naïve".encode()]
    assert list(features["pixels"].float_list.value) == [1, 2, 3, 4.5]
    assert list(features["tags"].bytes_list.value) == [b"a", b"b"]
    assert set(features) == {column.name for column in SCHEMA.columns} - {"delay"}


def test_a_whole_float_is_an_integer_and_a_broken_one_is_refused() -> None:
    """What pandas writes for a column of integers with gaps."""
    codec = ExampleCodec(Schema.from_mapping({"features": [{"name": "n", "dtype": "int64"}]}))
    assert codec.encode({"n": 2.0}) == codec.encode({"n": 2})
    for refused in (2.5, 2.0**60, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="expected an integer"):
            codec.encode({"n": refused})


def test_bytes_come_as_base64_and_may_be_no_text() -> None:
    schema = Schema.from_mapping(
        {
            "features": [
                {"name": "image", "dtype": "string"},
                {"name": "parts", "dtype": "string", "shape": [None]},
                {"name": "kind", "dtype": "string", "vocabulary": ["a", "b"]},
            ]
        }
    )
    codec, jpeg = ExampleCodec(schema), b"\xff\xd8\xff\x00"
    event = {"image": {"b64": "/9j/AA=="}, "parts": [{"b64": "/9j/AA"}, "text"], "kind": {"b64": "YQ=="}}
    assert codec.decode(codec.encode(event)) == {"image": [jpeg], "parts": [jpeg, b"text"], "kind": [b"a"]}
    assert ColumnarEncoder(codec).encode([event, event]) in (None, [codec.encode(event)] * 2)
    for wrong, reason in (
        ({"b64": "%%"}, "image holds '%%' under b64, expected base64"),
        ({"b64": 3}, "image holds 3 under b64, expected a string"),
        ({"b64": "YQ==", "more": 1}, "image is an object, expected a string, or bytes as"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            codec.encode(event | {"image": wrong})


@given(
    st.fixed_dictionaries(
        {
            "distance": st.floats(0, 0.09375, width=32),
            "month": st.integers(1, 12),
            "id": st.integers(-(2**63), 2**63 - 1),
            "carrier": st.sampled_from(["AA", "UA"]),
            "note": st.text(max_size=300),
            "pixels": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
            "tags": st.lists(st.text(max_size=4).filter(lambda word: word != PADDING["string"]), max_size=4),
            "delay": st.floats(width=32, allow_nan=False, allow_infinity=False),
            "late": st.integers(0, 1),
        }
    )
)
def test_every_valid_event_comes_back_as_it_went_in(event: dict[str, Any]) -> None:
    encoded = CODEC.encode(event)
    parsed = Example.FromString(encoded)
    assert len(parsed.SerializeToString()) == len(encoded)
    decoded = CODEC.decode(encoded)
    for name, value in event.items():
        values = value if isinstance(value, list) else [value]
        assert decoded[name] == [item.encode() if isinstance(item, str) else item for item in values]
    assert CODEC.check(encoded) == encoded


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_those_of_protobuf(number: int) -> None:
    example = Example()
    example.features.feature["a"].int64_list.value.append(number)
    assert example.SerializeToString().endswith(varint(number))


@each_row(
    ("changes", "sentence"),
    [
        ({"distance": True}, "distance is true, expected a number"),
        ({"distance": "1"}, "distance is '1', expected a number"),
        ({"distance": [1]}, "distance is [1], expected a number"),
        ({"distance": math.nan}, "distance is NaN, expected a finite number"),
        ({"distance": math.inf}, "distance is Infinity, expected a finite number"),
        ({"distance": 1e39}, "distance is 1e+39, expected a number that float32 can hold"),
        ({"distance": 10**400}, "expected a number that float32 can hold"),
        ({"distance": -1}, "distance is -1.0, expected at least 0"),
        ({"distance": 0.11}, "expected at most 0.1"),
        ({"month": 13}, "month is 13, expected at most 12"),
        ({"month": 2.5}, "month is 2.5, expected an integer from -2^63 to 2^63-1"),
        ({"month": True}, "month is true, expected an integer"),
        ({"id": 2**63}, "id is 9223372036854775808, expected an integer from -2^63 to 2^63-1"),
        ({"id": -(2**63) - 1}, "expected an integer from -2^63 to 2^63-1"),
        ({"carrier": "ZZ"}, "carrier is 'ZZ', expected one of AA, UA"),
        ({"carrier": 5}, "carrier is 5, expected a string"),
        ({"note": "\ud800"}, "expected text that UTF-8 can write"),
        ({"note": {"a": 1}}, "note is an object, expected a string"),
        ({"pixels": [1, 2, 3]}, "pixels holds 3 values, expected 4 (flat, or nested as [2, 2])"),
        ({"pixels": [[1, 2], [3]]}, "pixels holds a list of 1 at depth 1, expected lists nested as [2, 2]"),
        ({"pixels": [[1, 2], 3]}, "pixels holds 2 values, expected 4"),
        ({"pixels": 1}, "pixels is 1, expected a list"),
        ({"tags": "a"}, "tags is 'a', expected a list"),
        ({"tags": ["a", 1]}, "tags is 1, expected a string"),
        ({"month": None}, "month is null"),
        ({"speed": 1}, "'speed' is not in the schema"),
    ],
)
@pytest.mark.covers("pipe-generator")
def test_a_bad_value_is_refused_by_name_with_what_was_expected(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in _refusal_of(**changes)


@each_row(("dtype", "value", "shown"), [("string", "\uffff", r"'\uffff'"), ("int64", -(2**63), "-9223372036854775808")])
def test_padding_cannot_be_a_value_of_a_list(dtype: str, value: str | int, shown: str) -> None:
    schema = Schema.from_mapping({"features": [{"name": "many", "dtype": dtype, "shape": [None]}]})
    one = Schema.from_mapping({"features": [{"name": "many", "dtype": dtype, "shape": [1]}]})
    refusal = f"many is {shown}, which fills up lists of any length and cannot be in one"
    assert PADDING[dtype] == value
    with pytest.raises(InvalidInput) as caught:
        ExampleCodec(schema).encode({"many": [value]})
    assert refusal in caught.value.message
    with pytest.raises(InvalidInput) as caught:
        ExampleCodec(schema).check(ExampleCodec(one).encode({"many": [value]}))
    assert refusal in caught.value.message


@pytest.mark.covers("rec-parse")
def test_all_faults_of_an_event_are_named_at_once() -> None:
    event = {name: value for name, value in EVENT.items() if name != "late"} | {"month": 0, "x": 1, "y": 2}
    with pytest.raises(InvalidInput) as caught:
        CODEC.encode(event)
    assert caught.value.message == "month is 0, expected at least 1; late is missing; 'x', 'y' are not in the schema"


@each_row("event", [3, None, "a", [1]])
def test_an_event_is_an_object(event: object) -> None:
    with pytest.raises(InvalidInput, match="expected an object of features"):
        CODEC.encode(event)


def test_a_missing_or_null_optional_feature_stays_absent_and_readers_take_its_default() -> None:
    absent, given = CODEC.encode(EVENT), CODEC.encode(EVENT | {"delay": 0.5})
    assert CODEC.encode(EVENT | {"delay": None}) == CODEC.check(absent) == absent
    assert "delay" not in Example.FromString(absent).features.feature
    assert CODEC.decode(absent) == CODEC.decode(given)
    assert CODEC.with_defaults(absent) == CODEC.with_defaults(given) == given


def test_an_example_may_hold_any_bytes_where_no_vocabulary_says_otherwise() -> None:
    example = Example.FromString(CODEC.encode(EVENT))
    example.features.feature["note"].bytes_list.value[0] = b"\xff\x00"
    assert CODEC.decode(example.SerializeToString())["note"] == [b"\xff\x00"]
    example.features.feature["carrier"].bytes_list.value[0] = b"\xff"
    with pytest.raises(InvalidInput, match=r"carrier is b'\\xff', expected one of AA, UA"):
        CODEC.check(example.SerializeToString())


@each_row(
    ("kind", "values", "sentence"),
    [
        ("int64_list", [1], "distance holds a list of int64, expected float32"),
        ("float_list", [], "distance holds 0 values, expected 1"),
        ("float_list", [0.0, 0.0], "distance holds 2 values, expected 1"),
        ("float_list", [math.nan], "distance is NaN, expected a finite number"),
        ("float_list", [-math.inf], "distance is -Infinity, expected a finite number"),
    ],
)
@pytest.mark.covers("rec-parse")
def test_a_bad_list_in_an_example_is_refused_in_words(kind: str, values: list[Any], sentence: str) -> None:
    example = Example.FromString(CODEC.encode(EVENT))
    feature = example.features.feature["distance"]
    feature.Clear()
    getattr(feature, kind).SetInParent()
    getattr(feature, kind).value.extend(values)
    with pytest.raises(InvalidInput) as caught:
        CODEC.check(example.SerializeToString())
    assert caught.value.message == sentence


@pytest.mark.covers("rec-example")
def test_a_feature_of_no_kind_is_absent() -> None:
    """As TensorFlow writes an empty one; trainer/tests/families/test_kinds.py asks TensorFlow what it is."""
    optional, required = Example.FromString(CODEC.encode(EVENT)), Example.FromString(CODEC.encode(EVENT))
    optional.features.feature["delay"].SetInParent()
    optional.features.feature["tags"].Clear()
    with pytest.raises(InvalidInput, match=r"^tags is missing$"):
        CODEC.check(optional.SerializeToString())
    del optional.features.feature["tags"]
    optional.features.feature["tags"].bytes_list.value.extend([b"a", b"b"])
    assert CODEC.check(optional.SerializeToString()) == CODEC.encode(EVENT)
    required.features.feature["distance"].Clear()
    with pytest.raises(InvalidInput, match=r"^distance is missing$"):
        CODEC.check(required.SerializeToString())


def test_bytes_that_are_no_example_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"not a serialized tf\.train\.Example"):
        CODEC.check(b"\xff\xff")


def test_an_odd_but_valid_example_is_put_into_canonical_form() -> None:
    entry = CODEC.column_of["month"].entry
    second_features = b"\x0a" + varint(len(entry([5]))) + entry([5])  # which wins, as it is the last
    assert CODEC.check(CODEC.encode(EVENT) + second_features) == CODEC.encode(EVENT | {"month": 5})


def test_a_bound_lets_its_own_value_in_although_float32_rounds_it() -> None:
    assert struct.unpack("<f", struct.pack("<f", 0.1))[0] > 0.1
    CODEC.encode(EVENT | {"distance": 0.1})


def test_the_key_is_the_same_for_equal_values() -> None:
    codec = ExampleCodec(Schema.from_mapping(SCHEMA.to_mapping() | {"key": "id"}))
    assert codec.key_of(codec.encode(EVENT)) == varint(-7)
    assert CODEC.key_of(CODEC.encode(EVENT)) == b""


@pytest.mark.covers("mode-multi-head")
def test_a_label_that_may_be_missing_is_left_out_and_one_without_a_place_is_refused() -> None:
    label = {"name": "late", "dtype": "int64", "required": False}
    schema = {"features": [{"name": "x", "dtype": "float32"}], "labels": [label]}
    codec = ExampleCodec(Schema.from_mapping(schema))
    for without in ({"x": 1.0}, {"x": 1.0, "late": None}):
        encoded = codec.encode(without)
        assert b"late" not in encoded
        assert codec.check(encoded) == encoded
    assert codec.decode(codec.encode({"x": 1.0, "late": 1})) == {"x": [1.0], "late": [1]}
    with pytest.raises(InvalidInput, match="stands for a missing label and cannot be one"):
        codec.encode({"x": 1.0, "late": -(2**63)})
    with pytest.raises(InvalidInput, match="feature x is optional and needs a default"):
        Schema.from_mapping({"features": [{"name": "x", "dtype": "float32", "required": False}]})


def test_a_file_is_checked_as_ingest_would_take_it(tmp_path: Path) -> None:
    schema, events, taken = (tmp_path / name for name in ("schema.json", "events.ndjson", "taken.tfrecord"))
    schema.write_text(SCHEMA.to_json())
    events.write_text("\n".join([*[json.dumps(EVENT)] * 5_000, "{oops", json.dumps(EVENT | {"month": 13})]))
    found = check_file(schema, events, taken)
    assert (found["accepted"], found["refused_count"]) == (5_000, 2)
    assert [item["index"] for item in cast(list[dict[str, Any]], found["refused"])] == [5_000, 5_001]
    assert taken.read_bytes() == tfrecord.frame([CODEC.encode(EVENT)]) * 5_000
