"""docs/reference/stream.md: every key of stream.yaml, from the tables of the code that reads it."""

from collections.abc import Mapping

import yaml

from common.kinds import IMAGE_KEYS, TENSOR_KEYS
from common.schema import FEATURE_KEYS, SCHEMA_KEYS, Schema
from common.topic_source import SOURCE_KEYS
from docs.generate.markdown import bullet, code, page

_EXAMPLE = """\
stream: flights
features:
  - {name: scheduled_at, dtype: int64, min: 0}
  - {name: tail, dtype: string}
  - {name: carrier, dtype: string, vocabulary: [AA, UA]}
  - {name: distance, dtype: float32, min: 0, max: 10000}
  - {name: pixels, dtype: float32, shape: [784]}
  - {name: tags, dtype: string, shape: [null]}
  - {name: counts, dtype: float32, shape: [null], weights_of: tags}
  - {name: scan, dtype: bytes, tensor: {dtype: uint8, shape: [28, 28]}}
  - {name: photo, dtype: bytes, image: {format: jpeg, height: 96, width: 96, channels: 3}}
  - {name: delay, dtype: float32, required: false, default: 0.0, aliases: ["Delay (min)"]}
  - {name: rain, dtype: int64, min: 0, max: 1, yes_no: true}
  - {name: importance, dtype: float32, min: 0}
labels:
  - {name: late, dtype: int64, min: 0, max: 1}
weight: importance
event_time: scheduled_at
key: tail
late_labels: {key: tail, wait_seconds: 3600}
source: {kafka: {topic: airline.departures, format: json, fields: {tail: aircraft.tail}}}
"""
_STREAM = {"stream": "a name; required"}
_MEANING = {
    "stream": "the stream's name, in every URL and command.",
    "features": "what an event holds, below.",
    "labels": "what models learn to predict, in the same form as features.",
    "weight": "how much an example counts in training and in metrics.",
    "event_time": "when the event happened, in epoch seconds.",
    "key": "events of one key stay in one partition and keep their order.",
    "late_labels": "labels come by themselves, and find the prediction of their key within wait_seconds.",
    "source": "an existing Kafka topic that the stream reads, below. Such a stream takes no events at ingest.",
    "name": "of the feature, in events and requests.",
    "dtype": "what its values are.",
    "shape": "`[784]` holds 784 values, `[28, 28]` the same in C order.",
    "required": "an event without it is refused; false: an event may lack it, and is then read with the default.",
    "default": "one value, repeated over the shape.",
    "min": "lower bound of every value, inclusive. An event below it is refused.",
    "max": "upper bound of every value, inclusive. An event above it is refused.",
    "weights_of": "the feature of shape [null] of which an event holds as many values; an event with more or fewer is "
    "refused.",
    "aliases": "under which ingest, predictions, files and topics take the value, too. The log has the name. An alias "
    "is no feature's name and no other's alias.",
    "yes_no": "whether words and truth values are taken for 1 and 0.",
    "tensor": "what the bytes are the values of, little-endian and in C order; a model gets the values.",
    "image": "how the bytes are decoded; a model gets float32 [height, width, channels].",
    "vocabulary": "the words allowed. An event with another word is refused.",
}
_INTRODUCTION = """\
A stream's schema, in the definition's folder. What it is for, and how it may change:
[Define a stream](../guide/stream.md). Unknown keys are refused."""


def document() -> str:
    _check(_STREAM | dict(SCHEMA_KEYS) | dict(FEATURE_KEYS))
    return page(
        "stream.yaml", __name__, _INTRODUCTION, "## Top level", _keys(_STREAM | dict(SCHEMA_KEYS)),
        "## A feature or label", _keys(FEATURE_KEYS),
        "## tensor", _table(TENSOR_KEYS), "## image", _table(IMAGE_KEYS), "## source.kafka", _table(SOURCE_KEYS),
        "## An example with every key", code(_EXAMPLE, "yaml"),
    )  # fmt: skip


def _check(keys: Mapping[str, str]) -> None:
    """Every key has words and is in the example, which the reader takes."""
    if keys.keys() != _MEANING.keys():
        raise SystemExit(f"docs: stream.yaml: give words to {keys.keys() ^ _MEANING.keys()} in docs/generate/stream.py")
    mapping = yaml.safe_load(_EXAMPLE)
    shown = {key for feature in (*mapping["features"], *mapping["labels"]) for key in feature} | mapping.keys()
    if shown != keys.keys():
        raise SystemExit(f"docs: stream.yaml: the example in docs/generate/stream.py lacks {keys.keys() - shown}")
    del mapping["stream"]
    Schema.from_mapping(mapping)


def _table(keys: Mapping[str, str]) -> str:
    return "\n".join(bullet(f"`{key}`: {expected}") for key, expected in keys.items())


def _keys(keys: Mapping[str, str]) -> str:
    return "\n".join(bullet(f"`{key}` ({expected}): {_MEANING[key]}") for key, expected in keys.items())
