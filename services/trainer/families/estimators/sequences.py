"""What a recurrent network takes at each step (`rnn_*`): the columns of lists, side by side."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from services.trainer.families.estimators.layers import LookedUp


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
