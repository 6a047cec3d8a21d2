"""What a module's network may take as an input: a feature of the stream, or which steps of one are there.

    keras.Input((), name="age"), keras.Input((1,), name="age") a scalar: [n], or a column [n, 1]
    keras.Input((None, 3), name="steps")                       a feature of any length, filled up with 0.0, -1 or ""
    keras.Input((None,), dtype="bool", name="steps.mask")      for each step whether it is one
    keras.Input((), dtype="int64", name="steps.length")        how many there are
    keras.Input((None,), ragged=True, name="tags")             a tf.RaggedTensor: nothing is filled up
    keras.Input((None,), sparse=True, name="tags")             a tf.SparseTensor [n, longest] of the values
    keras.Input((None, None), name="sentences")                a list of lists: [n, most rows, longest row], filled up;
                                                               ragged, sparse and .mask likewise, .length is the rows

or what the definition's section `features` makes of one: float32 [n, columns] of a numeric feature, int32 ids
[n, values] of another. Its name there goes before a name of the stream.

0.0, -1 and the empty word are values like others; only the mask and the length say where a list ends. A list that is
filled up has at least one step, so that recurrent layers can run over an empty one. Rows of a module that asks for mask
or length are predicted together with longer ones.
"""

from collections.abc import Iterable, Mapping

import keras
import tensorflow as tf

from common.definition.features import FeatureSpec, Numeric
from common.schema import PADDING, Feature, Schema
from services.trainer.features.parsing import DTYPES, Raw, in_rows, is_padding, lengths_of
from services.trainer.features.transform import width_of

FILLERS: Mapping[str, float | int | str] = {"float32": 0.0, "int64": -1, "string": "", "bytes": ""}
_MASK, _LENGTH = ".mask", ".length"
_ROWS = "/row_lengths"
"""Of the column beside a ragged list of lists; no feature has a slash in its name."""


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
        return keras.Input((None, None) if feature.row_lengths_name else (None,), dtype="bool", name=name)
    return keras.Input((), dtype="int64", name=name)


def of_section(specs: Mapping[str, FeatureSpec], name: str, schema: Schema) -> keras.KerasTensor:
    """The input that a feature of the definition's section is."""
    dtype = "float32" if isinstance(specs[name], Numeric) else "int32"
    return keras.Input((width_of(specs, name, schema),), dtype=dtype, name=name)


def features_of(schema: Schema, names: Iterable[str]) -> tuple[Feature, ...]:
    """The features that inputs of these names are made of, in order of name; shapes in other features included."""
    found: dict[str, Feature] = {}
    for name in names:
        feature = feature_behind(schema, name.removesuffix(_ROWS))
        assert feature is not None
        found[feature.name] = feature
        field = feature.tensor.shape_field if feature.tensor is not None else feature.row_lengths_name
        if field:
            found[field] = schema.feature(field)
    return tuple(found[name] for name in sorted(found))


def masked_names(features: Iterable[Feature], names: Iterable[str]) -> set[str]:
    """The features of any length whose mask or length is asked for."""
    wanted = set(names)
    return {
        feature.name
        for feature in features
        if feature.is_variable_length and wanted & {feature.name + _MASK, feature.name + _LENGTH}
    }


def list_names(inputs: Mapping[str, keras.KerasTensor]) -> set[str]:
    """The inputs that are ragged or sparse; their columns stay filled up as raw features are, until a call."""
    return {name for name, tensor in inputs.items() if is_list(tensor)}


def fits(tensor: keras.KerasTensor, expected: keras.KerasTensor) -> bool:
    """Whether it is the input that is expected; a scalar feature may be a column [n, 1], too."""
    is_column = expected.shape == (None,) and tensor.shape == (None, 1)
    return tensor.dtype == expected.dtype and (tensor.shape == expected.shape or is_column)


def is_list(tensor: keras.KerasTensor) -> bool:
    return bool(getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False))


def row_columns(inputs: Iterable[keras.KerasTensor]) -> dict[str, keras.KerasTensor]:
    """Columns beside the inputs: the row lengths of ragged lists of lists, which alone tell empty rows at the end."""
    names = [tensor.name + _ROWS for tensor in inputs if is_list(tensor) and tensor.ragged and len(tensor.shape) > 2]
    return {name: keras.KerasTensor((None, None), dtype="int64", name=name) for name in names}


def as_declared(
    tensor: keras.KerasTensor, columns: Mapping[str, tf.Tensor]
) -> tf.Tensor | tf.RaggedTensor | tf.SparseTensor:
    """A column in the form of its input."""
    values = columns[tensor.name]
    if not is_list(tensor):
        return values
    if tensor.ragged and tensor.name + _ROWS in columns:
        lengths = columns[tensor.name + _ROWS]
        rows = tf.RaggedTensor.from_tensor(lengths, lengths=lengths_of(lengths))
        return tf.RaggedTensor.from_tensor(values, lengths=(rows.row_lengths(), rows.flat_values))
    if tensor.ragged:
        return tf.RaggedTensor.from_tensor(values, lengths=lengths_of(values))
    places = tf.where(tf.logical_not(is_padding(values)))
    return tf.SparseTensor(places, tf.gather_nd(values, places), tf.shape(values, tf.int64))


def given(features: Iterable[Feature], columns: Mapping[str, keras.KerasTensor], raw: Raw) -> dict[str, tf.Tensor]:
    """The inputs by name, from decoded raw tensors of the features."""
    wanted, lists = set(columns), list_names(columns)
    inputs: dict[str, tf.Tensor] = {}
    for feature in features:
        if feature.is_variable_length:
            inputs |= _of_list(feature, raw, is_filled=feature.name not in lists)
        else:
            column = columns.get(feature.name)
            values = raw[feature.name]
            is_column = len(values.shape) == 1 and column is not None and len(column.shape) == 2
            inputs[feature.name] = tf.expand_dims(values, 1) if is_column else values
    return {name: inputs[name] for name in wanted}


def _of_list(feature: Feature, raw: Raw, *, is_filled: bool) -> dict[str, tf.Tensor]:
    """Everything that a module may ask of a feature of any length."""
    values, rows = raw[feature.name], None
    lengths = lengths_of(values)
    if feature.row_lengths_name:
        rows = raw[feature.row_lengths_name]
        values, lengths = in_rows(values, rows), lengths_of(rows)
    if is_filled:
        values = _with_a_step(values, feature)
    mask = tf.sequence_mask(lengths, tf.shape(values)[1]) if rows is None else tf.logical_not(is_padding(values))
    if is_filled:
        filler = tf.constant(FILLERS[feature.dtype], DTYPES[feature.dtype])
        values = tf.where(is_padding(values), filler, values)
    found = {"": values, _MASK: mask, _LENGTH: lengths} | ({} if rows is None else {_ROWS: rows})
    return {feature.name + suffix: value for suffix, value in found.items()}


def _with_a_step(values: tf.Tensor, feature: Feature) -> tf.Tensor:
    """At least one; of a list of lists at least one row of one value."""
    sizes = tf.shape(values)
    free = 2 if feature.row_lengths_name else 1
    missing = [tf.maximum(1 - sizes[axis], 0) if 0 < axis <= free else 0 for axis in range(values.shape.rank)]
    paddings = tf.stack([tf.zeros_like(tf.stack(missing)), tf.stack(missing)], axis=1)
    longer = tf.pad(values, paddings, constant_values=PADDING[feature.dtype])
    return tf.ensure_shape(longer, [None, *feature.shape])
