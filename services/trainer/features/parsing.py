"""Serialized Examples to raw tensors, by the stream's schema.

A raw tensor has shape [n] for a scalar feature, [n, *shape] for a fixed shape, and [n, longest] for any length, filled
up with what no event holds in such a list (common/schema.py), floats with 0.0. So -1 and the empty word in a list are
values like others, and a list answers the same alone, among longer ones, and in training. Absent optional features get
the schema's default.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from common.errors import InvalidInput
from common.schema import PADDING, Feature

Raw = Mapping[str, tf.Tensor]
DTYPES: Mapping[str, tf.DType] = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}
_PADDING: Mapping[str, float | int | str] = {"float32": 0.0, **PADDING}


@dataclass(frozen=True)
class Parsed:
    """Attributes:
    raw: tensors of the examples that parse, in order.
    kept: their indexes in what was given.
    refused: (index, reason) of the others.
    """

    raw: dict[str, tf.Tensor]
    kept: list[int]
    refused: list[tuple[int, str]]


def tensor_spec(feature: Feature) -> tf.TensorSpec:
    """Of a batch of the raw feature, any number of rows; named like the feature."""
    return tf.TensorSpec([None, *feature.shape], DTYPES[feature.dtype], name=feature.name)


def parse_spec(features: Sequence[Feature]) -> dict[str, object]:
    """What tf.io.parse_example needs for the features."""
    return {feature.name: _parse_spec_of(feature) for feature in features}


def is_padding(values: tf.Tensor) -> tf.Tensor:
    """bool, the shape of `values`, which are of a feature of any length; of floats, 0.0 may be a value all the same."""
    return tf.equal(values, _PADDING[values.dtype.name])


def parse(examples: Sequence[bytes], features: Sequence[Feature]) -> Parsed:
    """Parses all at once; when one does not parse, one by one, so that only the bad ones are set aside."""
    spec = parse_spec(features)
    try:
        raw = tf.io.parse_example(tf.constant(list(examples), tf.string, shape=[len(examples)]), spec)
        return Parsed(raw, list(range(len(examples))), [])
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return _parse_singly(examples, spec)


def _parse_singly(examples: Sequence[bytes], spec: Mapping[str, object]) -> Parsed:
    kept: list[int] = []
    refused: list[tuple[int, str]] = []
    for index, example in enumerate(examples):
        try:
            tf.io.parse_example([example], spec)
            kept.append(index)
        except UnicodeDecodeError:  # TensorFlow puts the bytes into its sentence
            refused.append((index, "not a tf.train.Example"))
        except tf.errors.InvalidArgumentError as error:
            refused.append((index, _reason(error.message)))
    good = tf.constant([examples[index] for index in kept], tf.string, shape=[len(kept)])
    return Parsed(tf.io.parse_example(good, spec), kept, refused)


def _reason(message: str) -> str:
    """TensorFlow's sentence without the names of its nodes and kernels."""
    return re.sub(r"\{\{.*?\}\}|\[Op:.*?\].*|Name: <unknown>, ", "", message).strip()[:300]


def _parse_spec_of(feature: Feature) -> object:
    dtype = DTYPES[feature.dtype]
    if feature.is_variable_length:
        return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True, default_value=_PADDING[feature.dtype])
    default: object = None
    if not feature.required:
        if feature.default is None:
            raise InvalidInput(f"feature {feature.name} is optional and has no default")
        default = [feature.default] * (feature.value_count or 0) if feature.shape else feature.default
    return tf.io.FixedLenFeature(feature.shape, dtype, default_value=default)
