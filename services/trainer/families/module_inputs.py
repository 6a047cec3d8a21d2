"""What a module's network may take as an input: a feature of the stream, or which steps of one are there.

    keras.Input((None, 3), name="steps")                       a feature of any length, filled up with 0.0, -1 or ""
    keras.Input((None,), dtype="bool", name="steps.mask")      for each step whether it is one
    keras.Input((), dtype="int64", name="steps.length")        how many there are
    keras.Input((None,), ragged=True, name="tags")             a tf.RaggedTensor: nothing is filled up
    keras.Input((None,), sparse=True, name="tags")             a tf.SparseTensor [n, longest] of the values

0.0, -1 and the empty word are values like others; only the mask and the length say where a list ends. A module that
asks for one of them gets at least one step, so that its recurrent layers can run over an empty list, and its rows are
predicted together with longer ones.
"""

from collections.abc import Iterable, Mapping

import keras
import tensorflow as tf

from common.schema import Feature, Schema
from services.trainer.features.parsing import DTYPES, Raw, is_padding, lengths_of

FILLERS: Mapping[str, float | int | str] = {"float32": 0.0, "int64": -1, "string": "", "bytes": ""}
_MASK, _LENGTH = ".mask", ".length"


def feature_behind(schema: Schema, name: str) -> Feature | None:
    """The feature that an input is, or is about; None for neither."""
    known = {feature.name: feature for feature in schema.features}
    if name in known:
        return known[name]
    for suffix in (_MASK, _LENGTH):
        feature = known.get(name.removesuffix(suffix))
        if name.endswith(suffix) and feature is not None and feature.is_variable_length:
            return feature
    return None


def symbolic(schema: Schema, name: str) -> keras.KerasTensor:
    """The input of that name, which `feature_behind` knows."""
    feature = feature_behind(schema, name)
    assert feature is not None
    if name == feature.name:
        return keras.Input(schema.seen_shape(feature), dtype=feature.seen_dtype, name=name)
    if name.endswith(_MASK):
        return keras.Input((None,), dtype="bool", name=name)
    return keras.Input((), dtype="int64", name=name)


def features_of(schema: Schema, names: Iterable[str]) -> tuple[Feature, ...]:
    """The features that inputs of these names are made of, in order of name; shapes in other features included."""
    found: dict[str, Feature] = {}
    for name in names:
        feature = feature_behind(schema, name)
        assert feature is not None
        found[feature.name] = feature
        if feature.tensor is not None and feature.tensor.shape_field is not None:
            found[feature.tensor.shape_field] = schema.feature(feature.tensor.shape_field)
    return tuple(found[name] for name in sorted(found))


def masked_names(features: Iterable[Feature], names: Iterable[str]) -> set[str]:
    """The features of any length whose mask or length is asked for."""
    asked = set(names)
    return {
        feature.name
        for feature in features
        if feature.is_variable_length and asked & {feature.name + _MASK, feature.name + _LENGTH}
    }


def list_names(inputs: Mapping[str, keras.KerasTensor]) -> set[str]:
    """The inputs that are ragged or sparse; their columns stay filled up as raw features are, until a call."""
    return {name for name, tensor in inputs.items() if is_list(tensor)}


def is_list(tensor: keras.KerasTensor) -> bool:
    return bool(getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False))


def as_asked(tensor: keras.KerasTensor, values: tf.Tensor) -> tf.Tensor | tf.RaggedTensor | tf.SparseTensor:
    """A column in the form of its input."""
    if not is_list(tensor):
        return values
    if tensor.ragged:
        return tf.RaggedTensor.from_tensor(values, lengths=lengths_of(values))
    places = tf.where(tf.logical_not(is_padding(values)))
    return tf.SparseTensor(places, tf.gather_nd(values, places), tf.shape(values, tf.int64))


def given(features: Iterable[Feature], columns: Mapping[str, keras.KerasTensor], raw: Raw) -> dict[str, tf.Tensor]:
    """The inputs by name, from decoded raw tensors of the features."""
    asked, features, lists = set(columns), list(features), list_names(columns)
    masked = masked_names(features, asked)
    inputs: dict[str, tf.Tensor] = {}
    for feature in features:
        values = raw[feature.name]
        if feature.is_variable_length:
            lengths = lengths_of(values)
            if feature.name not in lists:
                filler = tf.constant(FILLERS[feature.dtype], DTYPES[feature.dtype])
                values = tf.where(is_padding(values), filler, values)
            if feature.name in masked and feature.name not in lists:
                values = _with_a_step(values, feature)
            inputs[feature.name + _LENGTH] = lengths
            inputs[feature.name + _MASK] = tf.sequence_mask(lengths, tf.shape(values)[1])
        inputs[feature.name] = values
    return {name: inputs[name] for name in asked}


def _with_a_step(values: tf.Tensor, feature: Feature) -> tf.Tensor:
    count = tf.shape(values)
    missing = tf.maximum(1 - count[1], 0)
    step = tf.fill([count[0], missing, *feature.shape[1:]], tf.constant(FILLERS[feature.dtype], values.dtype))
    return tf.ensure_shape(tf.concat([values, step], axis=1), [None, None, *feature.shape[1:]])
