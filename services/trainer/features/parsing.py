"""Serialized Examples to raw tensors, by the stream's schema.

A raw tensor has shape [n] for a scalar feature, [n, *shape] for a fixed shape, and [n, longest, ...] for any length,
filled up with what no event holds in such a list (common/schema.py). So -1, 0.0 and the empty word in a list are values
like others, and a list answers the same alone, among longer ones, and in training. A list of lists is two such tensors,
its values and its row lengths (common/schema.py); `in_rows` puts them together. Absent optional features get the
schema's default, and a label that may be missing what fills up lists. Tensors and images are bytes here; decoding.py
makes values of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.schema import PADDING, Feature
from services.trainer.features.filling import MOST_BYTES, STRING_BYTES, checked, reason, rows_beyond

Raw = Mapping[str, tf.Tensor]
DTYPES: Mapping[str, tf.DType] = {"float32": tf.float32, "int64": tf.int64, "string": tf.string, "bytes": tf.string}
_MOST_BYTES_OF_A_STRING = STRING_BYTES // 2
"""What a byte of an Example may become: an empty string takes two there."""


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


def tensor_spec(feature: Feature, *, rows: int | None = None) -> tf.TensorSpec:
    """Of a batch of the raw feature, any number of rows unless it is given; named like the feature."""
    return tf.TensorSpec([rows, *feature.raw_shape], DTYPES[feature.dtype], name=feature.name)


def parse_spec(features: Sequence[Feature]) -> dict[str, object]:
    """What tf.io.parse_example needs for the features."""
    return {feature.name: _parse_spec_of(feature) for feature in features}


def parse_in_graph(serialized: tf.Tensor, features: Sequence[Feature]) -> dict[str, tf.Tensor]:
    """string [n], Examples or SequenceExamples, to raw tensors; what does not parse fails the whole.

    The context of a SequenceExample is read as an Example is. A list of any length comes from the feature lists where
    there is one of its name with steps, else from the context.
    """
    lists = [feature for feature in features if feature.is_variable_length and not feature.rows_of]
    if not lists:
        return dict(tf.io.parse_example(serialized, parse_spec(features)))
    wanted = {feature.name: _ragged(feature) for feature in lists}
    _, found, _ = tf.io.parse_sequence_example(serialized, sequence_features=wanted)
    sizes = _list_sizes(serialized, features) + _step_sizes(found, features)
    with tf.control_dependencies([checked(each, size_of(feature.dtype), feature.name) for feature, each in sizes]):
        serialized = tf.identity(serialized)
    raw = dict(tf.io.parse_example(serialized, parse_spec(features)))
    for feature in lists:
        flat = found[feature.name].merge_dims(1, 2).to_tensor(PADDING[feature.dtype])
        steps = tf.reshape(flat, [tf.shape(flat)[0], tf.shape(flat)[1] // feature.step_size, *feature.raw_shape[1:]])
        raw[feature.name] = _first_filled(steps, raw[feature.name], feature)
        rows = next((lengths for lengths in features if lengths.name == feature.row_lengths_name), None)
        if rows is not None:
            lengths = tf.cast(found[feature.name].row_lengths(axis=2), tf.int64).to_tensor(PADDING["int64"])
            raw[rows.name] = _first_filled(lengths, raw[rows.name], rows)
    return raw


def in_rows(values: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """[n, most rows, longest row] of the raw tensors of a list of lists, filled up as lists are.

    Each example's rows take its own values only, whatever the lengths say.
    """
    sizes = tf.where(is_padding(lengths), tf.zeros_like(lengths), lengths)
    places = tf.range(tf.maximum(tf.reduce_max(sizes), 0))
    starts = tf.cumsum(sizes, axis=1, exclusive=True)
    count = tf.shape(values, tf.int64)[1]
    places_in_all = starts[:, :, tf.newaxis] + places
    is_there = (places < sizes[:, :, tf.newaxis]) & (places_in_all < count)
    ended = tf.pad(values, [[0, 0], [0, 1]], constant_values=PADDING[values.dtype.name])
    return tf.gather(ended, tf.where(is_there, places_in_all, count), batch_dims=1)


def is_padding(values: tf.Tensor) -> tf.Tensor:
    """bool, the shape of `values`, which are of a feature of any length."""
    return tf.math.is_nan(values) if values.dtype.is_floating else tf.equal(values, PADDING[values.dtype.name])


def lengths_of(values: tf.Tensor) -> tf.Tensor:
    """int64 [n]: how many steps each list has, of raw values [n, longest, ...] of a feature of any length."""
    missing = is_padding(values)
    if missing.shape.rank > 2:
        missing = tf.reduce_all(missing, axis=list(range(2, missing.shape.rank)))
    return tf.reduce_sum(tf.cast(tf.logical_not(missing), tf.int64), axis=1)


def parse(examples: Sequence[bytes], features: Sequence[Feature]) -> Parsed:
    """Parses all at once; when one does not parse, one by one, so that only the bad ones are set aside. So are those
    whose lists are too long for the others (filling.py)."""
    spec = parse_spec(features)
    try:
        beyond = _beyond(examples, features)
        if not beyond:
            raw = tf.io.parse_example(tf.constant(list(examples), tf.string, shape=[len(examples)]), spec)
            return Parsed(raw, list(range(len(examples))), [])
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        beyond = _faults(examples, spec)
    left = [index for index in range(len(examples)) if index not in beyond]
    rest = parse([examples[index] for index in left], features)
    refused = [*beyond.items(), *((left[index], why) for index, why in rest.refused)]
    return Parsed(rest.raw, [left[index] for index in rest.kept], sorted(refused))


def size_of(dtype: str) -> int:
    """Bytes of a value in memory; of a string without what it points to."""
    return STRING_BYTES if DTYPES[dtype] == tf.string else int(DTYPES[dtype].size)


def _first_filled(first: tf.Tensor, second: tf.Tensor, feature: Feature) -> tf.Tensor:
    """Row by row the list of `first` where it has steps, else that of `second`; filled up to the longest of both."""
    longest = tf.maximum(tf.shape(first)[1], tf.shape(second)[1])
    rest = [[0, 0]] * (len(feature.raw_shape) - 1)
    padded = [
        tf.pad(values, [[0, 0], [0, longest - tf.shape(values)[1]], *rest], constant_values=PADDING[feature.dtype])
        for values in (first, second)
    ]
    has_steps = tf.reshape(lengths_of(padded[0]) > 0, [-1, *[1] * len(feature.raw_shape)])
    chosen = tf.where(has_steps, *padded)
    chosen.set_shape([None, *feature.raw_shape])
    return chosen


def absent_rows(examples: Sequence[bytes], features: Sequence[Feature]) -> dict[str, NDArray[np.bool_]]:
    """In which of the examples, which parse, a feature is absent that then has its default: bool [n] by feature."""
    optional = [
        feature
        for feature in features
        if not (feature.required or feature.is_variable_length or feature.may_be_missing)
    ]
    if not optional or not examples:
        return {feature.name: np.zeros(len(examples), np.bool_) for feature in optional}
    spec = {feature.name: tf.io.RaggedFeature(DTYPES[feature.dtype]) for feature in optional}
    found = tf.io.parse_example(tf.constant(list(examples), tf.string), spec)
    return {name: values.row_lengths().numpy() == 0 for name, values in found.items()}


def _faults(examples: Sequence[bytes], spec: Mapping[str, object]) -> dict[int, str]:
    """Why examples do not parse, by index."""
    faults: dict[int, str] = {}
    for index, example in enumerate(examples):
        try:
            tf.io.parse_example([example], spec)
        except UnicodeDecodeError:  # TensorFlow puts the bytes into its sentence
            faults[index] = "not a tf.train.Example"
        except tf.errors.InvalidArgumentError as error:
            faults[index] = _reason(error.message)
    return faults


def _beyond(examples: Sequence[bytes], features: Sequence[Feature]) -> dict[int, str]:
    """Why examples are left out, by index: their lists are too long for the others."""
    lists = [feature for feature in features if feature.is_variable_length]
    largest = len(examples) * max(map(len, examples), default=0) * _MOST_BYTES_OF_A_STRING
    if not lists or (largest <= MOST_BYTES and not any(feature.rows_of for feature in lists)):
        return {}
    beyond: dict[int, str] = {}
    for feature, found in _list_sizes(tf.constant(list(examples), tf.string, shape=[len(examples)]), features):
        sizes = found.numpy()
        for row in rows_beyond(sizes, size_of(feature.dtype)).tolist():
            beyond.setdefault(row, reason(feature.name, sizes[row]))
    return beyond


def _list_sizes(serialized: tf.Tensor, features: Sequence[Feature]) -> list[tuple[Feature, tf.Tensor]]:
    """int64 [n, 1] of each feature of any length: its values. Of a list of lists [n, 2], too: rows, and the longest."""
    lists = [feature for feature in features if feature.is_variable_length]
    found = tf.io.parse_example(serialized, {feature.name: _ragged(feature) for feature in lists})
    sizes = [(feature, found[feature.name].row_lengths()[:, tf.newaxis]) for feature in lists]
    for feature in lists:
        if feature.row_lengths_name in found:
            rows = found[feature.row_lengths_name]
            sizes.append((feature, tf.stack([rows.row_lengths(), _longest(rows)], axis=1)))
    return sizes


def _step_sizes(found: Mapping[str, tf.RaggedTensor], features: Sequence[Feature]) -> list[tuple[Feature, tf.Tensor]]:
    """The same of the feature lists of SequenceExamples, ragged [n, steps, values]."""
    by_name = {feature.name: feature for feature in features}
    sizes = []
    for name, steps in found.items():
        lengths = tf.RaggedTensor.from_row_splits(steps.row_lengths(axis=2).flat_values, steps.row_splits)
        sizes.append((by_name[name], tf.reduce_sum(lengths, axis=1)[:, tf.newaxis]))
        if by_name[name].row_lengths_name in by_name:
            sizes.append((by_name[name], tf.stack([lengths.row_lengths(), _longest(lengths)], axis=1)))
    return sizes


def _ragged(feature: Feature) -> tf.io.RaggedFeature:
    return tf.io.RaggedFeature(DTYPES[feature.dtype], row_splits_dtype=tf.int64)


def _longest(rows: tf.RaggedTensor) -> tf.Tensor:
    """int64 [n] of row lengths; 0 where there is none."""
    return tf.maximum(tf.reduce_max(rows, axis=1), 0)


def _reason(message: str) -> str:
    """TensorFlow's sentence without the names of its nodes and kernels."""
    return re.sub(r"\{\{.*?\}\}|\[Op:.*?\].*|Name: <unknown>, ", "", message).strip()[:300]


def _parse_spec_of(feature: Feature) -> object:
    dtype = DTYPES[feature.dtype]
    if feature.is_variable_length:
        return tf.io.FixedLenSequenceFeature(
            list(feature.raw_shape[1:]), dtype, allow_missing=True, default_value=PADDING[feature.dtype]
        )
    default: object = None
    if not feature.required:
        default = PADDING[feature.dtype] if feature.may_be_missing else feature.default
        default = [default] * (feature.value_count or 0) if feature.shape else default
    return tf.io.FixedLenFeature(feature.shape, dtype, default_value=default)
