"""Steps that each shard takes by itself, and the mean of where they end: local SGD (Stich, arXiv:1805.09767), in the
supersteps of bulk-synchronous parallelism (Valiant, CACM 1990): compute, exchange, wait for all.

    weights, slots, moving averages    each shard goes on from the superstep's start with its rows of every batch; then
                                       their mean, weighted by the shards' rows, added along one tree (cut.py)
    the loss of a step                 the shards' own, weighted by their rows of its batch
    draws (dropout)                    shard k draws from the generator's key plus k times a constant
    counters, constant rates           those of the first shard
    a shard without rows in a batch    takes no step with it

A superstep ends early with its block, and where a round looks up (an evaluation, its last step, a batch at fault).
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from services.trainer.shards.bits import as_floats, from_floats, keyed, rows_of
from services.trainer.shards.cut import shard_bounds
from services.trainer.shards.exchange import Exchange

_RATE = "learning_rate"
TakeStep = Callable[..., tuple[tf.Tensor, tf.Tensor]]
"""Columns, labels and weights of a shard to its loss and what was added in it, float32 scalars; the variables move."""
BatchOf = Callable[[tf.Tensor], Any]
"""Number of a batch to its columns, labels and weights."""


class LocalSteps:
    """Args:
    variables: all that a step changes.
    most: steps of a superstep.
    """

    def __init__(self, exchange: Exchange, variables: Sequence[keras.Variable], most: int) -> None:
        self._exchange, self._most = exchange, most
        floats = [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]
        self._averaged = [variable for variable in floats if variable.name != _RATE]
        self._counted = [variable for variable in variables if not tf.as_dtype(variable.dtype).is_floating]

    def begin(self) -> None:
        """The graph of all supersteps is being traced."""
        self._exchange.begin()

    def superstep(self, take_step: TakeStep, batch_of: BatchOf, first: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """The batches from the first to the end, at most `most`: float32 [most, 2], losses and what was added in each;
        beyond the end zeros."""
        moved = [*self._averaged, *self._counted]
        starts = [variable.value.read_value() for variable in moved]
        rows, counts = [], []
        for shard in self._exchange.owned:
            for variable, value in zip(moved, starts, strict=True):
                variable.assign(keyed(variable, value, shard))
            row, counted = self._of_shard(shard, take_step, batch_of, first, end)
            rows.append(row)
            counts.append(counted)
        losses = 2 * self._most
        total, counted = self._exchange.combined(rows, tf.add, counts[0])
        self._assign(total[losses + 1 :] / total[losses], counted)
        return tf.reshape(total[:losses], [self._most, 2])

    def _of_shard(
        self, shard: int, take_step: TakeStep, batch_of: BatchOf, first: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One row of float32: its weighted losses, its rows, and where its variables have come to, times its rows; and
        the bits of its counters."""

        def step(number: tf.Tensor, seen: tf.Tensor, losses: tf.TensorArray) -> tuple[Any, ...]:
            batch = batch_of(number)
            rows = tf.shape(tf.nest.flatten(batch)[0])[0]
            bounds = shard_bounds(rows, self._exchange.shards)
            start, stop = bounds[shard], bounds[shard + 1]
            share = tf.cast(stop - start, tf.float32) / tf.cast(tf.maximum(rows, 1), tf.float32)
            taken = tf.cond(
                stop > start, lambda: tf.stack(take_step(*rows_of(batch, start, stop))), lambda: tf.zeros([2])
            )
            return number + 1, seen + stop - start, losses.write(number - first, share * taken)

        array = tf.TensorArray(tf.float32, size=end - first, element_shape=[2])
        _, seen, array = tf.while_loop(lambda number, *_: number < end, step, (first, tf.constant(0), array))
        losses = tf.pad(array.stack(), [[0, self._most - (end - first)], [0, 0]])
        with tf.control_dependencies([losses]):
            ended = [tf.cast(seen, tf.float32) * _flat(variable.value.read_value()) for variable in self._averaged]
            counted = [tf.zeros([0]), *(as_floats(variable.value.read_value()) for variable in self._counted)]
        row = [tf.reshape(losses, [-1]), tf.cast(seen, tf.float32)[tf.newaxis], *ended]
        return tf.concat(row, axis=0), tf.concat(counted, axis=0)

    def _assign(self, mean: tf.Tensor, counted: tf.Tensor) -> None:
        pieces = tf.split(mean, [int(np.prod(variable.shape)) for variable in self._averaged])
        for variable, piece in zip(self._averaged, pieces, strict=True):
            variable.assign(tf.cast(tf.reshape(piece, variable.shape), variable.dtype))
        from_floats(counted, self._counted)


def _flat(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(value, tf.float32), [-1])
