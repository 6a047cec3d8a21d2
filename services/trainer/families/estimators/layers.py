"""The layers between ids and numbers, and what a definition names of Keras for them. Variables are named after the
features they belong to, one table per feature."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.keras_names import ACTIVATIONS, INITIALIZERS, REGULARIZERS, Named

_OF_FROZEN = ContextVar("rows are gathered from tensors", default=False)
Regularizer: TypeAlias = keras.regularizers.Regularizer | None


class LinearTerms(keras.layers.Layer):
    """Sum over features of one weight per id (and per numeric column), without a bias: float32 [n, units].

    The tables are joined for the lookup, so that a step costs one gather however many features there are; an id of -1
    adds nothing.
    """

    def __init__(
        self, tables: Mapping[str, int], numeric: Mapping[str, int], *, units: int, regularizer: Regularizer, name: str
    ) -> None:
        """`tables`: ids by categorical feature. `numeric`: columns by numeric feature."""
        super().__init__(name=name, dtype="float32")
        self._sizes = dict(tables)
        self._tables = {
            feature: self.add_weight(
                shape=(size, units), initializer="zeros", name=f"{feature}_weights", regularizer=regularizer
            )
            for feature, size in [*tables.items(), *numeric.items()]
        }

    def call(self, columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
        terms = []
        if self._sizes:
            offset, shifted = 0, []
            for feature, size in self._sizes.items():
                ids = columns[feature]
                shifted.append(tf.where(ids < 0, -1, ids + offset))
                offset += size
            table = tf.concat([tf.convert_to_tensor(self._tables[feature]) for feature in self._sizes], axis=0)
            terms.append(tf.reduce_sum(rows_of(table, tf.concat(shifted, axis=1)), axis=1))
        numeric = [feature for feature in self._tables if feature not in self._sizes]
        if numeric:
            weights = tf.concat([tf.convert_to_tensor(self._tables[feature]) for feature in numeric], axis=0)
            terms.append(tf.concat([columns[feature] for feature in numeric], axis=1) @ weights)
        return tf.add_n(terms)

    def compute_output_shape(self, input_shape: Mapping[str, Sequence[int | None]]) -> tuple[int | None, int]:
        return (None, next(iter(self._tables.values())).shape[1])


class FactorTerms(keras.layers.Layer):
    """Sum over pairs of values of the product of their factors: float32 [n, 1].

    Rendle: Factorization Machines (2010), equation 5 as half of (the sum squared less the sum of squares), in linear
    time. A value is 1 for each id, -1 adds nothing; a numeric column's value is the number.
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        numeric: Mapping[str, int],
        *,
        dimension: int,
        initializer: keras.initializers.Initializer,
        regularizer: Regularizer,
        name: str,
    ) -> None:
        """`tables`: ids by categorical feature. `numeric`: columns by numeric feature."""
        super().__init__(name=name, dtype="float32")
        self._tables = {
            feature: self.add_weight(
                shape=(size, dimension), initializer=initializer, name=f"{feature}_factors", regularizer=regularizer
            )
            for feature, size in [*tables.items(), *numeric.items()]
        }
        self._numeric = tuple(numeric)

    def call(self, columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
        terms = []
        for feature, table in self._tables.items():
            if feature in self._numeric:
                terms.append(columns[feature][:, :, tf.newaxis] * tf.convert_to_tensor(table))
            else:
                terms.append(rows_of(table, columns[feature]))
        values = tf.concat(terms, axis=1)
        pairs = tf.square(tf.reduce_sum(values, axis=1)) - tf.reduce_sum(tf.square(values), axis=1)
        return 0.5 * tf.reduce_sum(pairs, axis=1, keepdims=True)

    def compute_output_shape(self, input_shape: Mapping[str, Sequence[int | None]]) -> tuple[int | None, int]:
        return (None, 1)


class LookedUp(keras.layers.Layer):
    """Rows of a table, combined over an example's ids; called once per feature that shares the table."""

    def __init__(self, dimension: int, *, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.dimension = dimension

    def call(self, ids: tf.Tensor, combiner: str, id_weights: tf.Tensor | None = None) -> tf.Tensor:
        """int32 ids [n, values], -1 for none, to float32 [n, dimension]; zeros when there is no id at all.

        `id_weights` float32 [n, values]: the combiners of tf.nn.embedding_lookup_sparse.
        """
        rows = self.rows(ids)
        if id_weights is not None:
            return _weighted(rows, tf.where(ids >= 0, id_weights, 0.0), combiner)
        if ids.shape[1] == 1:
            return rows[:, 0]
        total = tf.reduce_sum(rows, axis=1)
        if combiner == "sum":
            return total
        count = tf.reduce_sum(tf.cast(ids >= 0, tf.float32), axis=1, keepdims=True)
        return tf.math.divide_no_nan(total, count if combiner == "mean" else tf.sqrt(count))

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """float32 [n, values, dimension]; zeros for id -1."""
        raise NotImplementedError

    def compute_output_shape(self, ids_shape: Sequence[int | None]) -> tuple[int | None, int]:
        return (ids_shape[0], self.dimension)


class EmbeddingTable(LookedUp):
    """One learned table.

    In parts, row r is row r // parts of variable part_<r % parts>: their sizes differ by one at most.
    """

    def __init__(
        self,
        size: int,
        dimension: int,
        *,
        initializer: keras.initializers.Initializer,
        regularizer: Regularizer,
        name: str,
        parts: int = 1,
    ) -> None:
        super().__init__(dimension, name=name)
        self._parts = list[keras.Variable]()
        if parts == 1:
            self._parts.append(
                self.add_weight(shape=(size, dimension), initializer=initializer, regularizer=regularizer, name="table")
            )
            return
        whole = keras.ops.convert_to_numpy(initializer((size, dimension), dtype="float32"))
        for number, part in enumerate(part_names(parts)):
            rows = rows_of_part(whole, number, parts)
            self._parts.append(
                self.add_weight(
                    shape=rows.shape,
                    initializer=lambda shape, dtype, rows=rows: keras.ops.convert_to_tensor(rows, dtype),
                    regularizer=regularizer,
                    name=part,
                )
            )

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        parts = zip(self._parts, ids_by_part(ids, len(self._parts)), strict=True)
        return tf.add_n([rows_of(part, own) for part, own in parts])


class Counts(keras.layers.Layer):
    """How often each id occurs: int32 ids [n, values] to float32 [n, size]."""

    def __init__(self, size: int, *, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self._size = size

    def call(self, ids: tf.Tensor, id_weights: tf.Tensor | None = None) -> tf.Tensor:
        """`id_weights` float32 [n, values]: how much each counts; 1 without them."""
        columns = tf.one_hot(ids, self._size, dtype=tf.float32)
        if id_weights is not None:
            columns *= id_weights[..., tf.newaxis]
        return tf.reduce_sum(columns, axis=1)

    def compute_output_shape(self, ids_shape: Sequence[int | None]) -> tuple[int | None, int]:
        return (ids_shape[0], self._size)


def part_names(parts: int) -> list[str]:
    """Of the variables of a table in `parts` parts."""
    return ["table"] if parts == 1 else [f"part_{number}" for number in range(parts)]


def ids_by_part(ids: tf.Tensor, parts: int) -> list[tf.Tensor]:
    """Of each part the number of its row that an id looks up; -1 where that is another part's, or none."""
    if parts == 1:
        return [ids]
    return [tf.where(tf.logical_and(ids >= 0, ids % parts == number), ids // parts, -1) for number in range(parts)]


def rows_of_part(whole: NDArray[Any], number: int, parts: int) -> NDArray[Any]:
    """The rows of one part, in order."""
    return whole[number::parts]


def joined_rows(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The whole table of its parts."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for number, rows in enumerate(parts):
        whole[number :: len(parts)] = rows
    return whole


def _weighted(rows: tf.Tensor, weights: tf.Tensor, combiner: str) -> tf.Tensor:
    total = tf.reduce_sum(rows * weights[..., tf.newaxis], axis=1)
    if combiner == "sum":
        return total
    size = weights if combiner == "mean" else tf.square(weights)
    size = tf.reduce_sum(size, axis=1, keepdims=True)
    return tf.math.divide_no_nan(total, size if combiner == "mean" else tf.sqrt(size))


@contextmanager
def of_frozen() -> Iterator[None]:
    """For what is traced here, and whose variables are read `without_copy`: to gather rows where they lie copies the
    whole of a variable whose value a checkpoint holds as well."""
    token = _OF_FROZEN.set(True)
    try:
        yield
    finally:
        _OF_FROZEN.reset(token)


def rows_of(table: tf.Tensor | keras.Variable, ids: tf.Tensor) -> tf.Tensor:
    """float32 [n, values, dimension]; zeros for id -1.

    A variable's rows are gathered where they lie: once an optimizer has updated rows, TensorFlow copies the whole of a
    variable that is read as a tensor. Of a frozen model they are gathered from the tensor (`of_frozen`).
    """
    is_variable = isinstance(table, keras.Variable) and not _OF_FROZEN.get()
    rows = tf.gather(table.value if is_variable else tf.convert_to_tensor(table), tf.maximum(ids, 0))
    return rows * tf.cast(ids >= 0, tf.float32)[..., tf.newaxis]


def activation_of(named: Named) -> Callable[[Any], tf.Tensor]:
    function = getattr(keras.activations, ACTIVATIONS[named.name].keras_name)
    if not named.options:
        return function
    return lambda values: function(values, **named.options)


def initializer_of(named: Named) -> keras.initializers.Initializer:
    """Its draws follow from the round's seed, as those of every layer."""
    return getattr(keras.initializers, INITIALIZERS[named.name].keras_name)(**named.options)


def regularizer_of(named: Named | None, other: Regularizer) -> Regularizer:
    """The named one and the other, added up."""
    if named is None:
        return other
    found = getattr(keras.regularizers, REGULARIZERS[named.name].keras_name)(**named.options)
    return found if other is None else _Sum(found, other)


class _Sum(keras.regularizers.Regularizer):
    def __init__(self, *parts: keras.regularizers.Regularizer) -> None:
        self._parts = parts

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        return tf.add_n([part(values) for part in self._parts])
