"""The fast ways give the answers of the slow one: same events accepted, same bytes, on valid, odd and broken input."""

import math
import random
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from common.errors import InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec, delimited, varint
from common.schema import Schema
from protos.example_pb2 import Example
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.layout import LockstepChecker
from services.ingest.tests.conftest import accepts, passed_by_lockstep
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "d", "dtype": "float32", "min": -1.5, "max": 0.1},
            {"name": "any_float", "dtype": "float32"},
            {"name": "month", "dtype": "int64", "min": 1, "max": 12},
            {"name": "huge", "dtype": "int64", "min": -(2**62), "max": 2.0**70},
            {"name": "id", "dtype": "int64"},
            {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA", "", "a longer word", "z\x00"]},
            {"name": "a_name_of_more_than_sixteen_letters", "dtype": "string"},
            {"name": "pixels", "dtype": "float32", "shape": [2, 2], "min": -8},
            {"name": "many", "dtype": "float32", "shape": [40]},
            {"name": "counts", "dtype": "int64", "shape": [2]},
            {"name": "tags", "dtype": "string", "shape": [None]},
            {"name": "delay", "dtype": "float32", "required": False, "default": 0.5},
            {"name": "place", "dtype": "string", "required": False, "default": "x"},
        ],
        "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
    }
)
SCALARS = Schema.from_mapping(
    {
        "features": [f.to_mapping() for f in SCHEMA.features if f.name not in ("counts", "tags")],
        "labels": [f.to_mapping() for f in SCHEMA.labels],
    }
)
CODEC, SCALAR_CODEC = ExampleCodec(SCHEMA), ExampleCodec(SCALARS)

_INTS = st.one_of(
    st.integers(0, 13), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63 - 1, -(2**63), 127, 128, 2**56, -1])
)
_FLOATS = st.one_of(
    st.sampled_from([0.0, 0.1, -1.5, 1.0, 0.2, 1e39, -0.0, math.nan, math.inf]), st.floats(width=32), st.integers(-2, 1)
)
_WORDS = st.one_of(st.sampled_from(["AA", "UA", "", "a longer word", "z\x00", "z", "AB", "x" * 123, "x" * 124]),
                   st.text(max_size=20), st.integers(120, 400).map("w".__mul__))  # fmt: skip
_ODD = st.sampled_from([None, True, [], "1", 1.5, {"a": 1}, [1], 2**64, "\ud800"])


def _value_of(name: str) -> st.SearchStrategy[Any]:
    feature = SCHEMA.feature(name)
    item = {"float32": _FLOATS, "int64": _INTS, "string": _WORDS}[feature.dtype]
    count = feature.value_count
    if feature.is_scalar:
        return item
    return st.lists(item, min_size=count or 0, max_size=count or 3)


_GOOD: dict[str, Any] = {
    "d": 0.1, "any_float": 3.0, "month": 12, "huge": -(2**62), "id": -1, "carrier": "UA",
    "a_name_of_more_than_sixteen_letters": "note", "pixels": [1.0, 2.0, 3.0, 4.0], "many": [0.5] * 40,
    "counts": [1, -2], "tags": ["a"], "delay": 1.0, "place": "y", "late": 1,
}  # fmt: skip


@st.composite
def _events(draw: st.DrawFn) -> list[Any]:
    """Events that are mostly good, with a few values exchanged, left out, or added."""
    events = []
    for _ in range(draw(st.integers(1, 6))):
        event = dict(_GOOD)
        for name in draw(st.lists(st.sampled_from(sorted(_GOOD)), max_size=3)):
            change = draw(st.sampled_from(["value", "value", "value", "odd", "gone"]))
            if change == "gone":
                event.pop(name, None)
                continue
            event[name] = draw(_value_of(name) if change == "value" else _ODD)
        if draw(st.integers(0, 20)) == 0:
            event["unknown"] = 1
        events.append(event)
    return events


def _slowly(codec: ExampleCodec, events: list[Any]) -> list[bytes] | None:
    try:
        return [codec.encode(event) for event in events]
    except InvalidInput:
        return None


@given(_events())
@example([dict(_GOOD, d=-0.0, id=True)])
@example([dict(_GOOD, delay=None)])
@example([dict(_GOOD), 3])
def test_columns_encode_exactly_the_batches_that_the_codec_takes(events: list[Any]) -> None:
    assert ColumnarEncoder(CODEC).encode(events) == _slowly(CODEC, events)


def test_columns_take_events_with_and_without_their_optional_features() -> None:
    without = {name: value for name, value in _GOOD.items() if name not in ("delay", "place")}
    events = [_GOOD, without, dict(without, delay=None), dict(reversed(_GOOD.items()))]
    encoded = ColumnarEncoder(CODEC).encode(events)
    assert encoded is not None
    assert encoded == _slowly(CODEC, events)


def test_columns_do_not_take_true_for_a_one_that_was_seen_before() -> None:
    encoder = ColumnarEncoder(CODEC)
    assert encoder.encode([dict(_GOOD, late=1)]) is not None
    assert encoder.encode([dict(_GOOD, late=True)]) is None
    assert encoder.encode([dict(_GOOD, late=1.0)]) == encoder.encode([dict(_GOOD, late=1)]), "pandas writes 1.0"
    assert encoder.encode([dict(_GOOD, late=0.5)]) is None


@st.composite
def _examples(draw: st.DrawFn) -> list[bytes]:
    """Serialized examples: any values, any order of features, some features gone, and a few bytes changed."""
    examples = []
    for _ in range(draw(st.integers(1, 6))):
        proto = Example()
        for column in draw(st.permutations(SCALAR_CODEC.columns)) if draw(st.booleans()) else SCALAR_CODEC.columns:
            change = draw(st.integers(0, 15))
            if change == 0:
                continue
            value = draw(_value_of(column.name)) if change < 3 else _GOOD[column.name]
            _set(proto, column.name, draw(_ODD) if change == 3 else value)
        data = bytearray(_in_order(proto, draw(st.randoms(use_true_random=False))))
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            place = draw(st.integers(0, len(data) - 1)) if data else 0
            cut = draw(st.sampled_from([0, 1]))
            data[place : place + cut] = draw(st.binary(max_size=2))
        examples.append(bytes(data))
    return examples


def _set(proto: Example, name: str, value: Any) -> None:
    values = value if isinstance(value, list) else [value]
    feature = proto.features.feature[name]
    for item in values:
        try:
            if isinstance(item, str):
                feature.bytes_list.value.append(item.encode(errors="surrogatepass"))
            elif isinstance(item, float) or SCHEMA.feature(name).dtype == "float32":
                feature.float_list.value.append(float(item or 0))
            else:
                feature.int64_list.value.append(int(item or 0))
        except (TypeError, ValueError, OverflowError):
            feature.Clear()


def _in_order(proto: Example, shuffled: random.Random) -> bytes:
    names = list(proto.features.feature)
    shuffled.shuffle(names)
    entries = []
    for name in names:
        feature = proto.features.feature[name].SerializeToString()
        entries.append(delimited(b"\x0a", delimited(b"\x0a", name.encode()) + delimited(b"\x12", feature)))
    return delimited(b"\x0a", b"".join(entries))


@given(_examples())
def test_lockstep_never_passes_what_the_codec_refuses(examples: list[bytes]) -> None:
    for data, passed in zip(examples, passed_by_lockstep(SCALAR_CODEC, examples), strict=True):
        if passed:
            assert accepts(SCALAR_CODEC, data)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "d": st.floats(-1.5, 0, width=32),
                "any_float": st.floats(width=32, allow_nan=False, allow_infinity=False),
                "month": st.integers(1, 12),
                "huge": st.integers(-(2**62), 2**63 - 1),
                "id": st.integers(-(2**63), 2**63 - 1),
                "carrier": st.sampled_from(["AA", "UA", "", "a longer word", "z\x00"]),
                "a_name_of_more_than_sixteen_letters": st.one_of(
                    st.text(max_size=30), st.sampled_from([0, 1, 123, 200, 5000]).map("w".__mul__)
                ),
                "pixels": st.lists(st.floats(-8, 8, width=32), min_size=4, max_size=4),
                "many": st.just([0.25] * 40),
                "delay": st.floats(0, 1, width=32),
                "place": st.text(max_size=3),
                "late": st.integers(0, 1),
            }
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_lockstep_passes_every_example_of_the_usual_form(events: list[dict[str, Any]], order: random.Random) -> None:
    protos = [Example.FromString(SCALAR_CODEC.encode(event)) for event in events]
    examples = [_in_order(proto, order) for proto in protos] + [proto.SerializeToString() for proto in protos]
    assert all(passed_by_lockstep(SCALAR_CODEC, examples))


def test_lockstep_passes_examples_without_their_optional_features() -> None:
    proto = Example.FromString(SCALAR_CODEC.encode({k: v for k, v in _GOOD.items() if k not in ("counts", "tags")}))
    del proto.features.feature["delay"]
    assert passed_by_lockstep(SCALAR_CODEC, [proto.SerializeToString()]) == [True]
    del proto.features.feature["month"]
    assert passed_by_lockstep(SCALAR_CODEC, [proto.SerializeToString()]) == [False]


def test_lockstep_leaves_odd_forms_to_the_codec() -> None:
    event = {name: value for name, value in _GOOD.items() if name not in ("counts", "tags")}
    good = SCALAR_CODEC.encode(event)
    entry = SCALAR_CODEC.column_of["month"].entry([5])
    body = good[len(varint(len(good))) + 1 :]
    twice = delimited(b"\x0a", body + entry)
    late_packed, late_single = b"\x12\x05\x1a\x03\x0a\x01\x01", b"\x12\x06\x1a\x04\x0a\x02\x81\x00"
    assert body.endswith(late_packed)
    unpacked = delimited(b"\x0a", body[: -len(late_packed) - 7] + b"\x0c\x0a\x04late\x12\x04\x1a\x02\x08\x01")
    assert accepts(SCALAR_CODEC, unpacked)
    padded = delimited(b"\x0a", body[: -len(late_packed) - 7] + b"\x0e\x0a\x04late" + late_single)
    assert accepts(SCALAR_CODEC, padded)
    odd = [b"", b"\x0a\x00", good + good, twice, good + b"\x10\x01", unpacked, padded]
    assert passed_by_lockstep(SCALAR_CODEC, [good, *odd]) == [True] + [False] * len(odd)
    assert accepts(SCALAR_CODEC, twice)
    assert SCALAR_CODEC.decode(twice)["month"] == [5]
    nine_bytes = Example.FromString(good)
    nine_bytes.features.feature["late"].int64_list.value[:] = [2**56]
    assert passed_by_lockstep(SCALAR_CODEC, [nine_bytes.SerializeToString()]) == [False]
    bounded = SCALARS.to_mapping() | {"labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 10_000}]}
    nine_bytes.features.feature["late"].int64_list.value[:] = [2**14]
    assert passed_by_lockstep(ExampleCodec(Schema.from_mapping(bounded)), [nine_bytes.SerializeToString()]) == [False]


def test_lockstep_works_across_its_blocks() -> None:
    event = {name: value for name, value in _GOOD.items() if name not in ("counts", "tags")}
    good = SCALAR_CODEC.encode(event)
    large = SCALAR_CODEC.encode(dict(event, place="w" * 5000))
    examples = [large] * 500 + [good] * 3000 + [good[:-1] + b"\x02", good]
    assert passed_by_lockstep(SCALAR_CODEC, examples) == [True] * 3500 + [False] + [True]


@each_row("key", ["id", "place"])
def test_lockstep_finds_the_keys_that_the_codec_finds(key: str) -> None:
    codec = ExampleCodec(Schema.from_mapping(SCALARS.to_mapping() | {"key": key}))
    event = {name: value for name, value in _GOOD.items() if name not in ("counts", "tags")}
    ids, words = [0, -1, 300, 2**63 - 1], ["", "w" * 123, "w" * 128, "w" * 3000]
    examples = [codec.encode(dict(event, id=number, place=word)) for number, word in zip(ids, words, strict=True)] * 500
    frames = tfrecord.frame(examples)
    passed = LockstepChecker(codec).passed(frames, np.array([len(item) for item in examples], dtype=np.int64))
    assert passed.mask.all()
    spans = zip(passed.key_starts.tolist(), passed.key_ends.tolist(), strict=True)
    assert [frames[start:end] for start, end in spans] == [codec.key_of(item) for item in examples]
