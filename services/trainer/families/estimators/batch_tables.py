"""Embedding tables that lie elsewhere: here are only the rows that the batch at hand looks up."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import Embedding
from common.definition.model import Definition
from common.definition.training import is_meant
from services.trainer.families.estimators.layers import LookedUp, ids_by_part, part_names, rows_of
from services.trainer.features.transform import ids_of


class BatchRows:
    """The rows of one variable that a batch looks up, for gradients too.

    Attributes:
        path: of the variable that has all rows.
        rows: float32 [n, dimension].
        numbers: int64 [n], ascending: which rows these are. Where the batch looks none up, one row of zeros, number -1.
    """

    def __init__(self, path: str, dimension: int) -> None:
        self.path = path
        self._nothing = np.zeros((1, dimension), np.float32)
        self.rows = tf.Variable(self._nothing, shape=[None, dimension], trainable=True)
        self.numbers = tf.Variable(np.array([-1]), shape=[None], trainable=False, dtype=tf.int64)

    def hold(self, numbers: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """In place of those of the batch before."""
        self.rows.assign(rows if len(numbers) else self._nothing)
        self.numbers.assign(numbers if len(numbers) else np.array([-1]))

    def places(self, numbers: tf.Tensor) -> tf.Tensor:
        """Where in `rows` rows of these numbers are; -1 stays -1."""
        found = tf.searchsorted(self.numbers, tf.reshape(tf.cast(numbers, tf.int64), [-1]))
        return tf.where(numbers < 0, -1, tf.reshape(found, tf.shape(numbers)))

    def of_table(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """The gradient of `rows` as one of the whole variable."""
        numbers = tf.gather(self.numbers, gradient.indices)
        real = tf.where(numbers >= 0)[:, 0]
        return tf.IndexedSlices(tf.gather(gradient.values, real), tf.gather(numbers, real), gradient.dense_shape)


class BatchTable(LookedUp):
    """An EmbeddingTable without its table.

    Args:
        columns: in which features look its rows up.
    """

    def __init__(self, dimension: int, *, name: str, parts: int, columns: frozenset[str]) -> None:
        super().__init__(dimension, name=name)
        self._columns = columns
        self.parts = tuple(BatchRows(f"{name}/{part}", dimension) for part in part_names(parts))

    def looked_up(self, columns: Mapping[str, tf.Tensor]) -> dict[str, NDArray[np.int64]]:
        """By path of the part: which rows a batch looks up, ascending."""
        ids = np.unique(np.concatenate([columns[name].numpy().reshape(-1) for name in self._columns]))
        ids = ids[ids >= 0].astype(np.int64)
        count = len(self.parts)
        return {part.path: ids[ids % count == number] // count for number, part in enumerate(self.parts)}

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        parts = zip(self.parts, ids_by_part(ids, len(self.parts)), strict=True)
        return tf.add_n([rows_of(tf.convert_to_tensor(part.rows), part.places(own)) for part, own in parts])


NO_TABLES: Mapping[str, BatchTable] = {}


def batch_tables(definition: Definition) -> dict[str, BatchTable]:
    """By name, those of an estimator's embedding tables whose rows can come with each batch.

    Not where a regulariser needs all rows in each step, where the table does not learn, or where XLA would compile for
    each number of rows anew: such tables are copied whole.
    """
    parameters = definition.estimator_parameters
    if parameters is None or parameters.l1 or parameters.l2 or definition.training.jit_compile:
        return {}
    towers = parameters.towers
    names = {*parameters.deep, *(towers.user + towers.item if towers else ())}
    specs = {name: spec for name in sorted(names) if isinstance(spec := definition.features[name], Embedding)}
    found = dict[str, BatchTable]()
    for spec in specs.values():
        columns = frozenset(ids_of(definition.features, name) for name in specs if specs[name].table == spec.table)
        table = BatchTable(spec.dimension, name=f"{spec.table}_table", parts=spec.parts, columns=columns)
        if not any(is_meant(part.path, pattern) for part in table.parts for pattern in definition.training.frozen):
            found[spec.table] = table
    return found
