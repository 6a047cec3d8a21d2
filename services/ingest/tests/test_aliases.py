"""Aliases and words for 1 and 0: taken by every way in, the log has the names and numbers; none hides another field."""

import asyncio
from typing import Any

import pytest

from common.errors import InvalidInput
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.registry.catalog import Stream
from common.schema import Schema
from protos.example_pb2 import Example, SequenceExample
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.validation import Validator
from testing.rows import each_row

SCHEMA = Schema.from_mapping({
    "features": [
        {"name": "distance_km", "dtype": "float32", "aliases": ["distance-km", "Distance (km)"]},
        {"name": "user_id", "dtype": "string", "aliases": ["user.id"]},
        {"name": "rain", "dtype": "int64", "yes_no": True},
        {"name": "share", "dtype": "float32", "yes_no": True, "required": False, "default": 0.5},
        {"name": "tags", "dtype": "string", "shape": [None], "aliases": ["#tags"]},
    ],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1, "yes_no": True, "aliases": ["too late"]}],
    "key": "user_id",
})  # fmt: skip
CODEC = ExampleCodec(SCHEMA)
PLAIN = {"distance_km": 2.5, "user_id": "u", "rain": 1, "share": 0.0, "tags": ["a"], "late": 0}
AS_SENT = {"distance-km": 2.5, "user.id": "u", "rain": "Yes", "share": False, "#tags": ["a"], "too late": "NO"}


@each_row("event", [AS_SENT, AS_SENT | {"user": {"id": "u"}}, PLAIN | {"rain": True, "late": " f "}])
def test_an_event_is_taken_as_it_is_called_and_said(event: dict[str, Any]) -> None:
    given = {name: value for name, value in event.items() if name != "user.id" or "user" not in event}
    assert CODEC.encode(given) == CODEC.encode(PLAIN)
    assert ColumnarEncoder(CODEC).encode([given, PLAIN]) == [CODEC.encode(PLAIN)] * 2


def test_an_example_is_taken_as_it_is_called_and_said() -> None:
    example = Example.FromString(CODEC.encode(PLAIN))
    features = example.features.feature
    features["Distance (km)"].CopyFrom(features.pop("distance_km"))
    features["late"].bytes_list.value.append(b"no")
    assert CODEC.check(example.SerializeToString()) == CODEC.encode(PLAIN)
    sequence = SequenceExample()
    for name, feature in Example.FromString(CODEC.encode(PLAIN)).features.feature.items():
        if name != "tags":
            sequence.context.feature[name].CopyFrom(feature)
    sequence.feature_lists.feature_list["#tags"].feature.add().bytes_list.value.append(b"a")
    assert CODEC.check(sequence.SerializeToString()) == CODEC.encode(PLAIN)


@each_row(
    ("changes", "sentence"),
    [
        ({"distance-km": 3.5}, "distance_km is there twice, as 'distance_km' and 'distance-km'; send one of them"),
        ({"user": {"id": "v"}}, "user_id is there twice, as 'user_id' and 'user.id'; send one of them"),
        ({"rain": "maybe"}, "rain is 'maybe', expected an integer"),
        ({"distance_km": "yes"}, "distance_km is 'yes', expected a number"),
        ({"distance km": 1}, "'distance km' is not in the schema; did you mean distance_km?"),
    ],
)
def test_what_is_doubtful_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CODEC.encode(PLAIN | changes)
    assert sentence in caught.value.message


def test_a_request_keeps_the_keys_of_events_with_aliases_and_names_what_is_twice() -> None:
    stream = Stream("s", 1, SCHEMA.to_json(), created_at=0.0)
    validator = Validator(stream, max_event_bytes=1000)
    checked = asyncio.run(validator.check_json([AS_SENT, PLAIN, PLAIN | AS_SENT], with_keys=True))
    assert checked.examples == [CODEC.encode(PLAIN)] * 2
    assert checked.keys == [b"u", b"u"]
    assert [one.index for one in checked.rejected] == [2]

    example = Example.FromString(checked.examples[0])
    example.features.feature["user.id"].CopyFrom(example.features.feature.pop("user_id"))
    framed = tfrecord.frame([example.SerializeToString(), checked.examples[0]])
    again = asyncio.run(validator.check_examples(framed, with_keys=True))
    assert again.examples == checked.examples
    assert again.keys == [b"u", b"u"]
