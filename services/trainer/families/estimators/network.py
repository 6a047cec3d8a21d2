"""Estimators but trees and two_tower: transformed columns in, logits or predictions out."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from common.definition.features import Embedding, FeatureSpec, Indicator, Numeric, id_count
from common.definition.identity import output_layer
from common.definition.model import Definition
from common.definition.parameters import EstimatorParameters
from services.trainer.families.estimators.layers import (
    Counts,
    EmbeddingTable,
    FactorTerms,
    LinearTerms,
    LookedUp,
    Regularizer,
    activation_of,
    initializer_of,
    regularizer_of,
)
from services.trainer.families.heads import BuiltHead
from services.trainer.features.transform import Transform, categorical, ids_of, is_weighted, weights_name

_CELLS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "simple_rnn": keras.layers.SimpleRNN}


def build_network(
    definition: Definition, transform: Transform, heads: Sequence[BuiltHead], tables: Mapping[str, LookedUp]
) -> keras.Model:
    """A functional model; inputs are named like the transform's columns. One tower with the outputs of all heads.

    Args:
        heads: each has `units` columns of the last layer, in order.
        tables: by name, embedding tables to take in place of new ones.

    Returns:
        One head: the model's output is its float32 [n, units]. Several: a dict of such, by head.
    """
    parameters = definition.estimator_parameters
    assert parameters is not None
    inputs = {name: column_input(definition.features, transform, name) for name in transform.outputs}
    units = sum(head.units for head in heads)
    parts, specs = [], definition.features
    wide = {name: inputs[name] for name in parameters.wide}
    columns = {name: transform.width(name) or 1 for name in wide if isinstance(specs[name], Numeric)}
    ids = {name: id_count(categorical(specs, name)) for name in wide if name not in columns}
    if wide:
        parts.append(LinearTerms(ids, columns, units=units, regularizer=regularizer_for(parameters), name="wide")(wide))
    if parameters.dimension:
        given = parameters.embedding_initializer
        initializer = keras.initializers.RandomNormal(stddev=0.01) if given is None else initializer_of(given)
        parts.append(
            FactorTerms(
                ids, columns, dimension=parameters.dimension, initializer=initializer,
                regularizer=regularizer_for(parameters), name="factors",
            )(wide)
        )  # fmt: skip
    if parameters.recurrent or parameters.deep:
        if parameters.recurrent:
            hidden = _recurrent_layers(specs, parameters, inputs, tables)
        else:
            deep = dense_columns(specs, parameters, parameters.deep, inputs, dict(tables))
            hidden = hidden_layers(deep, parameters, joined="deep_columns")
        last = keras.layers.Dense(units, use_bias=False, kernel_regularizer=regularizer_for(parameters), name="deep")
        parts.append(last(hidden))
    output = keras.layers.Add(name="sum")(parts) if len(parts) > 1 else parts[0]
    answers = Bias(units, name=output_layer(definition))(output)
    if len(heads) > 1:
        answers = _split(answers, heads)
    return keras.Model(inputs, answers, name="network")


def _split(answers: keras.KerasTensor, heads: Sequence[BuiltHead]) -> dict[str, keras.KerasTensor]:
    parts, start = dict[str, keras.KerasTensor](), 0
    for head in heads:
        parts[head.name] = answers[:, start : start + head.units]
        start += head.units
    return parts


class Bias(keras.layers.Layer):
    """One learned number per output, added to it."""

    def __init__(self, units: int, *, name: str) -> None:
        super().__init__(name=name)
        self._bias = self.add_weight(shape=(units,), initializer="zeros", name="bias")

    def call(self, values: keras.KerasTensor) -> keras.KerasTensor:
        return values + self._bias

    def compute_output_shape(self, shape: Sequence[int | None]) -> Sequence[int | None]:
        return shape


def needed_features(parameters: EstimatorParameters) -> tuple[str, ...]:
    """The features of the definition that the network takes."""
    return parameters.wide + parameters.deep


def column_input(specs: Mapping[str, FeatureSpec], transform: Transform, name: str) -> keras.KerasTensor:
    dtype = "float32" if name not in specs or isinstance(specs[name], Numeric) else "int32"
    return keras.Input(shape=(transform.width(name),), dtype=dtype, name=name)


def hidden_layers(
    columns: Sequence[keras.KerasTensor], parameters: EstimatorParameters, *, joined: str, prefix: str = ""
) -> keras.KerasTensor:
    """Dense layers over the columns side by side. `joined`: the name of these; `prefix`: of the layers' names."""
    hidden = keras.layers.Concatenate(name=joined)(columns) if len(columns) > 1 else columns[0]
    initializers = parameters.initializers or (parameters.initializer,) * len(parameters.hidden_units)
    for index, size in enumerate(parameters.hidden_units):
        hidden = keras.layers.Dense(
            size,
            activation=activation_of(parameters.activation),
            kernel_initializer=initializer_of(initializers[index]),
            kernel_regularizer=regularizer_of(parameters.regularizer, regularizer_for(parameters)),
            name=f"{prefix}hidden_{index}",
        )(hidden)
        if parameters.dropout:
            hidden = keras.layers.Dropout(parameters.dropout, name=f"{prefix}dropout_{index}")(hidden)
        if parameters.batch_norm:
            hidden = keras.layers.BatchNormalization(name=f"{prefix}batch_norm_{index}")(hidden)
    return hidden


def _recurrent_layers(
    specs: Mapping[str, FeatureSpec],
    parameters: EstimatorParameters,
    inputs: Mapping[str, keras.KerasTensor],
    tables: Mapping[str, LookedUp],
) -> keras.KerasTensor:
    recurrent, known = parameters.recurrent, dict(tables)
    assert recurrent is not None
    context = dense_columns(specs, parameters, recurrent.context, inputs, known)
    steps = dict[str, LookedUp | int]()
    for name in sorted(recurrent.sequence):  # as dense_columns: rows of the first kernel keep their places
        spec = specs[name]
        if isinstance(spec, Embedding):
            steps[name] = _table_of(spec, specs, parameters, known)
        else:
            steps[name] = id_count(categorical(specs, name)) if isinstance(spec, Indicator) else 0
    columns = {name: inputs[ids_of(specs, name)] for name in steps}
    values, mask = SequenceColumns(steps, name="sequence_columns")(columns, context)
    regularizer = regularizer_for(parameters)
    last = len(parameters.hidden_units) - 1
    for index, size in enumerate(parameters.hidden_units):
        values = _CELLS[recurrent.cell](
            size,
            return_sequences=index < last,
            dropout=parameters.dropout,
            kernel_initializer=initializer_of(parameters.initializer),
            kernel_regularizer=regularizer_of(parameters.regularizer, regularizer),
            name=f"rnn_{index}",
        )(values, mask=mask)
    return values


def _table_of(
    spec: Embedding, specs: Mapping[str, FeatureSpec], parameters: EstimatorParameters, tables: dict[str, LookedUp]
) -> LookedUp:
    """The table that is there, or a new table, which is put in."""
    if spec.table not in tables:
        tables[spec.table] = EmbeddingTable(
            id_count(categorical(specs, spec.name)),
            spec.dimension,
            initializer=_table_initializer(parameters, spec.dimension),
            regularizer=regularizer_for(parameters),
            name=f"{spec.table}_table",
            parts=spec.parts,
        )
    return tables[spec.table]


def _table_initializer(parameters: EstimatorParameters, dimension: int) -> keras.initializers.Initializer:
    if parameters.embedding_initializer is None:
        return keras.initializers.TruncatedNormal(stddev=dimension**-0.5)
    return initializer_of(parameters.embedding_initializer)


def regularizer_for(parameters: EstimatorParameters) -> Regularizer:
    """L2 alone is Keras's L2: L1L2 adds the terms in another order."""
    if parameters.l1:
        return keras.regularizers.L1L2(parameters.l1, parameters.l2)
    return keras.regularizers.L2(parameters.l2) if parameters.l2 else None


def dense_columns(
    specs: Mapping[str, FeatureSpec],
    parameters: EstimatorParameters,
    names: Sequence[str],
    inputs: Mapping[str, keras.KerasTensor],
    tables: dict[str, LookedUp],
) -> list[keras.KerasTensor]:
    """What a network of the named features takes. `tables`: those that are there; new ones are put in."""
    columns = []
    # By name: rows of the first kernel must not change places when a definition lists its features in another order.
    for name in sorted(names):
        spec, source = specs[name], inputs[ids_of(specs, name)]
        weighted = {"id_weights": inputs[weights_name(name)]} if is_weighted(spec) else {}
        if isinstance(spec, Embedding):
            table = _table_of(spec, specs, parameters, tables)
            columns.append(table(source, combiner=spec.combiner, **weighted))
        elif isinstance(spec, Indicator):
            columns.append(Counts(id_count(categorical(specs, name)), name=f"{name}_counts")(source, **weighted))
        else:
            columns.append(source)
    return columns


class SequenceColumns(keras.layers.Layer):
    """Lists, step by step, beside what holds for the whole example: float32 [n, steps, columns], and bool [n, steps].

    An id is its row of a table, or a column for each id; a number is itself. The mask leaves out steps at which no list
    has a value. There is at least one step, since recurrent layers cannot run over none.

    Args:
        steps: by feature, in order of the columns: its table, how many ids it has, or 0 for a number.
    """

    def __init__(self, steps: Mapping[str, LookedUp | int], *, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self._steps = dict(steps)

    def build(self, columns_shape: object, context_shape: object = None) -> None:
        """Nothing: tables have their rows from the beginning."""

    def call(self, columns: Mapping[str, tf.Tensor], context: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """`columns`: int32 ids [n, values], -1 for none, or float32 numbers, NaN for none."""
        longest = tf.reduce_max(tf.stack([1, *(tf.shape(columns[name])[1] for name in self._steps)]))
        values, is_there = [], []
        for name, kind in self._steps.items():
            given = columns[name]
            filler = float("nan") if given.dtype.is_floating else -1
            given = tf.pad(given, [[0, 0], [0, longest - tf.shape(given)[1]]], constant_values=filler)
            found = ~tf.math.is_nan(given) if given.dtype.is_floating else given >= 0
            is_there.append(found)
            if isinstance(kind, LookedUp):
                values.append(kind.rows(given))
            elif kind:
                values.append(tf.one_hot(given, kind))
            else:
                values.append(tf.where(found, given, 0.0)[..., tf.newaxis])
        values += [tf.repeat(column[:, tf.newaxis], longest, axis=1) for column in context]
        return tf.concat(values, axis=2), tf.reduce_any(tf.stack(is_there), axis=0)

    def compute_output_spec(
        self, columns: Mapping[str, keras.KerasTensor], context: Sequence[keras.KerasTensor]
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        width = sum(kind.dimension if isinstance(kind, LookedUp) else kind or 1 for kind in self._steps.values())
        width += sum(int(column.shape[1]) for column in context)
        return keras.KerasTensor((None, None, width)), keras.KerasTensor((None, None), dtype="bool")
