"""A value of a wrong type at any key of a schema or a definition is refused in a sentence, whatever the value is."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import yaml

from common.definition.model import parse_definition
from common.schema import Schema
from common.schema_changes import check_compatible
from docs.generate.definition import FILES, samples
from testing.wrong_values import JSON_VALUES, YAML_VALUES, refusal_of, wrong

SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "distance", "dtype": "float32", "min": 0, "max": 3000, "aliases": ["dist ance"]},
        {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA"]},
        {"name": "pixels", "dtype": "float32", "shape": [2, 3]},
        {"name": "tags", "dtype": "string", "shape": [None]},
        {"name": "counts", "dtype": "float32", "shape": [None], "weights_of": "tags"},
        {"name": "delay", "dtype": "float32", "required": False, "default": 0.0},
        {"name": "rain", "dtype": "int64", "min": 0, "max": 1, "yes_no": True},
        {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape": [2, 2]}},
        {"name": "sizes", "dtype": "int64", "shape": [2]},
        {"name": "sized", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape_field": "sizes"}},
        {
            "name": "photo", "dtype": "bytes",
            "image": {
                "format": "png", "height": 4, "width": 4, "channels": 3, "resize": "bilinear", "scale": [0, 1],
            },
        },
        {"name": "sentences", "dtype": "string", "shape": [None, None]},
        {"name": "weight", "dtype": "float32"},
        {"name": "hour", "dtype": "int64"},
        {"name": "tail", "dtype": "string"},
    ],
    "labels": [
        {"name": "late", "dtype": "int64", "min": 0, "max": 1},
        {"name": "paid", "dtype": "int64", "required": False},
    ],
    "weight": "weight",
    "event_time": "hour",
    "key": "tail",
}  # fmt: skip
SOURCES: tuple[dict[str, Any], ...] = (
    {"topic": "t", "format": "avro", "servers": "a:1", "fields": {"delay": "a.b"}, "avro_schema": {"type": "record"}},
    {"topic": "t", "format": "avro", "schema_registry": "http://a:1"},
    {"topic": "t", "format": "protobuf", "protobuf_descriptor": "AAAA", "protobuf_message": "M"},
)


def _wrong_schemas() -> Iterator[tuple[str, Any]]:
    yield from wrong(SCHEMA, YAML_VALUES)
    for kafka in SOURCES:
        for place, source in wrong({"kafka": kafka}, YAML_VALUES):
            yield f"source.{place}", SCHEMA | {"source": source}


def test_a_schema_with_a_value_of_a_wrong_type_anywhere_is_refused_in_a_sentence_or_whole() -> None:
    """What is taken can be stored, read back and compared."""
    before = Schema.from_mapping(SCHEMA)

    def read(given: Any, place: str) -> None:
        taken = Schema.from_mapping(given)
        assert Schema.from_json(taken.to_json()) == taken, place
        taken.to_json().encode()
        check_compatible(before, taken)

    for place, given in _wrong_schemas():
        assert refusal_of(partial(read, given, place), place) != "nothing", place


def _wrong_definitions() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Of the samples that have every key of model.yaml; a section that several have is taken once."""
    taken: list[tuple[str, Any]] = []
    for sample in samples():
        whole: dict[str, Any] = yaml.safe_load(sample)
        files = {name: content for name, content in FILES.items() if name in sample}
        for key, section in whole.items():
            if (key, section) in taken:
                continue
            taken.append((key, section))
            others = _yaml({name: value for name, value in whole.items() if name != key})
            for place, given in wrong({key: section}, YAML_VALUES, every=7):
                if isinstance(given, dict) and key in given:
                    with suppress(UnicodeEncodeError):  # YAML has no half surrogate pairs
                        yield place, files | {"model.yaml": others + _yaml(given)}


def _yaml(document: dict[str, Any]) -> bytes:
    return yaml.dump(document, Dumper=yaml.CSafeDumper).encode() if document else b""


def test_a_definition_with_a_value_of_a_wrong_type_anywhere_is_refused_in_a_sentence() -> None:
    schema = Schema.from_mapping(SCHEMA)

    def read(files: dict[str, bytes]) -> None:
        parse_definition(files).check_schema(schema)

    for place, files in _wrong_definitions():
        assert refusal_of(partial(read, files), place) != "nothing", place


def test_a_document_that_is_no_mapping_is_refused_in_a_sentence() -> None:
    for given in JSON_VALUES:
        files = {"model.yaml": json.dumps(given).encode()}
        assert refusal_of(partial(Schema.from_mapping, given), repr(given)), given  # type: ignore[arg-type]  # is the point
        assert refusal_of(partial(parse_definition, files), repr(given)), given
