"""Schemas: what a stream may declare, in which words a bad one is refused, and which changes are compatible."""

from typing import Any

import pytest

from common.errors import Conflict, InvalidInput
from common.feature_keys import check_name
from common.schema import Feature, Schema
from common.schema_changes import check_compatible
from testing.rows import each_row

FULL: dict[str, Any] = {
    "features": [
        {"name": "distance", "dtype": "float32", "min": 0, "max": 3000},
        {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA"]},
        {"name": "pixels", "dtype": "float32", "shape": [2, 3]},
        {"name": "tags", "dtype": "string", "shape": [None]},
        {"name": "delay", "dtype": "float32", "required": False, "default": 0.0},
        {"name": "weight", "dtype": "float32"},
        {"name": "hour", "dtype": "int64"},
        {"name": "tailnum", "dtype": "string"},
    ],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
    "weight": "weight",
    "event_time": "hour",
    "key": "tailnum",
}


def _with(**changes: Any) -> dict[str, Any]:
    return FULL | changes


def _one(**changes: Any) -> dict[str, Any]:
    return {"features": [{"name": "a", "dtype": "float32"} | changes], "labels": []}


def test_a_schema_comes_back_from_its_mapping_and_its_json() -> None:
    schema = Schema.from_mapping(FULL)
    assert Schema.from_mapping(schema.to_mapping()) == schema
    assert Schema.from_json(schema.to_json()) == schema


def test_equal_schemas_give_equal_text() -> None:
    reordered = Schema.from_mapping(dict(reversed(FULL.items())))
    assert reordered.to_json() == Schema.from_mapping(FULL).to_json()


def test_features_know_how_many_values_they_hold() -> None:
    schema = Schema.from_mapping(FULL)
    counts = {feature.name: feature.value_count for feature in schema.columns}
    assert (counts["distance"], counts["pixels"], counts["tags"]) == (1, 6, None)
    assert schema.feature("tags").is_variable_length
    assert schema.feature("distance").is_scalar
    with pytest.raises(InvalidInput, match="has no feature 'speed'; it has distance, carrier"):
        schema.feature("speed")


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the schema is not JSON"):
        Schema.from_json("{")


def test_an_optional_feature_may_be_added() -> None:
    wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
    check_compatible(Schema.from_mapping(FULL), Schema.from_mapping(_with(features=[*FULL["features"], wind])))


@pytest.mark.covers("rec-schema")
@each_row(
    ("changes", "reason"),
    [
        ({"features": FULL["features"][1:]}, "distance was dropped"),
        ({"features": [*FULL["features"], {"name": "wind", "dtype": "float32"}]}, "wind is new and required"),
        ({"features": [{**FULL["features"][0], "dtype": "int64"}, *FULL["features"][1:]]}, "distance changed from"),
        ({"features": [{**FULL["features"][0], "max": 9}, *FULL["features"][1:]]}, "its max was 3000 and is 9"),
        ({"features": [{**FULL["features"][0], "shape": [2]}, *FULL["features"][1:]]}, "float32 to float32 [2]"),
        ({"labels": []}, "the labels changed"),
        ({"labels": [{**FULL["labels"][0], "name": "later"}]}, "the labels changed"),
        ({"key": None}, "key changed from 'tailnum' to None"),
    ],
)
def test_an_incompatible_change_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    changed = {key: value for key, value in _with(**changes).items() if value is not None}
    with pytest.raises(Conflict) as caught:
        check_compatible(Schema.from_mapping(FULL), Schema.from_mapping(changed))
    assert reason in caught.value.message


def _words(*words: str, **rest: Any) -> Schema:
    label = {"name": "kind", "dtype": "string", "vocabulary": list(words), **rest}
    return Schema.from_mapping({"features": [{"name": "x", "dtype": "float32", "min": 0, "max": 9}], "labels": [label]})


@pytest.mark.covers("rec-schema")
def test_a_stream_keeps_the_topic_that_it_reads() -> None:
    def reading(**kafka: Any) -> Schema:
        return Schema.from_mapping({**FULL, "source": {"kafka": {"topic": "a", "format": "json"} | kafka}})

    check_compatible(reading(), reading(servers="other:9092", fields={"distance": "km"}))
    with pytest.raises(Conflict, match="came from Kafka topic a and would come from Kafka topic b"):
        check_compatible(reading(), reading(topic="b"))
    with pytest.raises(Conflict, match="came from ingest and would come from Kafka topic a"):
        check_compatible(Schema.from_mapping(FULL), reading())


def test_other_names_and_words_come_and_go() -> None:
    """The log has the names and the numbers."""
    bare, called = Schema.from_mapping(_one()), Schema.from_mapping(_one(aliases=["a-b"], yes_no=True))
    assert Schema.from_json(called.to_json()) == called
    check_compatible(bare, called)
    check_compatible(called, bare)


def test_a_schema_may_widen() -> None:
    check_compatible(_words("a", "b"), _words("c", "b", "a"))
    check_compatible(_words("a", "b"), _words("a", "b", required=False, default="a"))
    wider = {"features": [{"name": "x", "dtype": "float32", "max": 10}], "labels": _words("a").to_mapping()["labels"]}
    check_compatible(_words("a"), Schema.from_mapping(wider))


def test_a_schema_may_not_lose_words_or_ask_for_more() -> None:
    for before, narrower, reason in (
        (_words("a", "b"), _words("a"), "the vocabulary of kind lost 'b'"),
        (_words("a", "b"), _words("a", "b", dtype="int64", vocabulary=[]), "kind changed from string to int64"),
        (_words("a", required=False, default="a"), _words("a"), "kind is required now"),
        (_words(), _words("a"), "kind has a vocabulary now"),
    ):
        with pytest.raises(Conflict, match=reason):
            check_compatible(before, narrower)


@each_row(("name", "called"), [("price/EUR", "price_EUR"), ("sepal length (cm)", "sepal_length_cm"), ("2nd", "_2nd")])
def test_a_column_name_that_is_none_gets_a_proposal(name: str, called: str) -> None:
    with pytest.raises(InvalidInput, match=f"call it {called}, and rename the column"):
        check_name("feature", name)


@each_row("name", ["", "a b", "-a", "a/b", "a" * 129, 3, None])
def test_a_wrong_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match="is not a name"):
        check_name("stream", name)


def test_names_may_hold_dots_and_dashes_after_the_first_letter() -> None:
    assert check_name("stream", "flights-v2.test_1") == "flights-v2.test_1"


def test_a_feature_comes_back_from_its_mapping() -> None:
    for mapping in FULL["features"]:
        assert Feature.from_mapping(mapping).to_mapping() == mapping


def test_a_schema_of_ten_thousand_features_is_read_and_looked_up_in_linear_time() -> None:
    """Quadratic, it held the registry's one writer for many seconds."""
    names = [f"f{number}" for number in range(20_000)]
    schema = Schema.from_mapping({"features": [{"name": name, "dtype": "float32"} for name in names], "labels": []})
    assert [schema.feature(name).name for name in names] == names


def _kind(**kind: Any) -> dict[str, Any]:
    return {"features": [{"name": "a", "dtype": "bytes", **kind}, {"name": "sizes", "dtype": "int64", "shape": [2]}]}


IMAGE = {"height": 8, "width": 9}


def test_kinds_survive_json_and_widen_only_where_what_was_written_can_be_read() -> None:
    jpeg = Schema.from_mapping(_kind(image=IMAGE | {"format": "jpeg"}))
    tensor = Schema.from_mapping(_kind(tensor={"dtype": "int8", "shape_field": "sizes"}))
    for schema in (jpeg, tensor):
        assert Schema.from_json(schema.to_json()) == schema
    assert [tensor.seen_shape(feature) for feature in tensor.features] == [(None, None), (2,)]
    check_compatible(jpeg, Schema.from_mapping(_kind(image=IMAGE)))
    for narrower, reason in (
        (_kind(image=IMAGE | {"format": "png"}), "a takes png images now and took jpeg before"),
        (_kind(image=IMAGE | {"format": "jpeg", "width": 8}), "a changed from bytes image"),
        (_kind(), "a changed from bytes image"),
    ):
        with pytest.raises(Conflict) as caught:
            check_compatible(jpeg, Schema.from_mapping(narrower))
        assert reason in caught.value.message


def test_weights_may_be_untied_from_their_ids_but_not_tied_to_them_later() -> None:
    ids, counts = {"name": "ids", "dtype": "int64", "shape": [None]}, {"name": "c", "dtype": "int64", "shape": [None]}
    free, tied = (Schema.from_mapping({"features": [ids, counts | link]}) for link in ({}, {"weights_of": "ids"}))
    assert Schema.from_json(tied.to_json()) == tied
    check_compatible(tied, free)
    with pytest.raises(Conflict, match="c is weights_of ids now and could hold any number before"):
        check_compatible(free, tied)
