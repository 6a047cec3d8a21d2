"""Statistics of serialized tf.train.Examples by a stream's schema, without TensorFlow."""

import base64
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from common.examples.values import shortest
from common.schema import Schema
from common.statistics.sketches import FieldStatistics
from protos.example_pb2 import Example

_AT_ONCE = 2000
_MOST_VALUES = 4096
"""Per example; of larger values (pictures) only the missing are counted."""


def of_examples(examples: Iterable[bytes], schema: Schema) -> dict[str, FieldStatistics]:
    """By feature and label of the schema; without bytes, whose values are no words."""
    features = [feature for feature in (*schema.features, *schema.labels) if feature.dtype != "bytes"]
    fields = {feature.name: FieldStatistics(feature.dtype == "string") for feature in features}
    rest = iter(examples)
    while batch := [Example.FromString(content).features.feature for content in islice(rest, _AT_ONCE)]:
        for name, statistics in fields.items():
            kept = [values for row in batch if (values := _values(row.get(name)))]
            statistics.add_examples(len(batch), missing=len(batch) - len(kept))
            flat = [value for values in kept if len(values) <= _MOST_VALUES for value in values]
            if statistics.is_text:
                statistics.add_words(flat)
            else:
                statistics.add_numbers(np.array(flat, np.int64 if flat and isinstance(flat[0], int) else np.float64))
    return fields


def as_row(example: bytes, schema: Schema | None = None) -> dict[str, Any]:
    """{name: value} of what the event has, a list where there is not one value.

    Floats have the digits that a float32 needs, texts that are no UTF-8 have replacements, and what is bytes by the
    schema is {"b64": ...}, as ingest takes it.
    """
    found: dict[str, Any] = {}
    features = (*schema.features, *schema.labels) if schema else ()
    encoded = {feature.name for feature in features if feature.dtype == "bytes"}
    for name, feature in sorted(Example.FromString(example).features.feature.items()):
        write = _as_base64 if name in encoded else _as_text
        values = [
            write(value) if isinstance(value, bytes) else shortest(value) if isinstance(value, float) else value
            for value in _values(feature) or ()
        ]
        found[name] = values[0] if len(values) == 1 else values
    return found


def as_values(example: bytes) -> dict[str, Any]:
    """{name: value} of what the Example has, a list where there is not one value; bytes that are no UTF-8 are {"b64"}.
    Raises google.protobuf.message.DecodeError: it is none."""
    found: dict[str, Any] = {}
    for name, feature in Example.FromString(example).features.feature.items():
        values = [_exactly(value) for value in _values(feature) or ()]
        found[name] = values[0] if len(values) == 1 else values
    return found


def _exactly(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _as_base64(value)


def _as_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _as_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _values(feature: Any) -> Any:
    kind = feature.WhichOneof("kind") if feature is not None else None
    return getattr(feature, kind).value if kind else None
