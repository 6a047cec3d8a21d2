"""Of each shard's gradients the largest entries travel, and the rest waits: sparsified SGD with memory (Stich,
Cordonnier and Jaggi, arXiv:1809.07599).

    what a shard sends     of each variable, the share of its entries with the largest magnitudes, with their places
    what it keeps          the other entries: added to its gradient of the next step
    the sum                the shards' entries in the shards' order, whoever computes them
    the last step of a call    everything travels, what was kept too: nothing waits where a block or a round ends, so a
                           resume point holds nothing of it, and other workers can go on
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from services.trainer.shards.exchange import Exchange


@dataclass(frozen=True)
class Turn:
    """A step's place among those of one call, boolean scalars."""

    is_first: tf.Tensor
    is_last: tf.Tensor


class Largest:
    """Args:
    share: of each variable's entries, above 0 and below 1; one entry at least.
    """

    def __init__(self, exchange: Exchange, share: float) -> None:
        self._exchange, self._share = exchange, share
        self._kept = tf.Variable(tf.zeros([0, 0]), trainable=False, shape=tf.TensorShape([None, None]))

    def summed(self, rows: Sequence[tf.Tensor], sizes: Sequence[int], turn: Turn) -> tf.Tensor:
        """float32 [m], of all shards.

        Args:
            rows: float32 [m] for each owned shard: its gradients, one variable's after the other's.
            sizes: of the variables, m in all.
        """
        shape = [len(rows), sum(sizes)]
        kept = tf.cond(
            turn.is_first,
            lambda: tf.zeros(shape),
            lambda: tf.ensure_shape(self._kept.read_value(), shape),
        )
        held = [row + waited for row, waited in zip(rows, tf.unstack(kept), strict=True)]

        def whole() -> tf.Tensor:
            self._exchange.begin()
            return self._exchange.combined(held, tf.add, tf.zeros([0]))[0]

        def largest() -> tf.Tensor:
            self._exchange.begin()
            places = [self._places(row, sizes) for row in held]
            values = [tf.gather(row, place) for row, place in zip(held, places, strict=True)]
            left = [tf.tensor_scatter_nd_update(row, place[:, tf.newaxis], tf.zeros_like(value))
                    for row, place, value in zip(held, places, values, strict=True)]  # fmt: skip
            self._kept.assign(tf.stack(left))
            return self._added(tf.concat(values, axis=0), tf.concat(places, axis=0), sum(sizes))

        total = tf.cond(turn.is_last, whole, largest)
        self._exchange.begin()
        return total

    def _places(self, row: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
        """int32: of the largest entries of each variable. What is not finite counts as the largest, so that the step
        in which it appears is the one at fault."""
        magnitudes = tf.where(tf.math.is_finite(row), tf.abs(row), tf.float32.max)
        found, start = [], 0
        for size, piece in zip(sizes, tf.split(magnitudes, sizes), strict=True):
            found.append(start + tf.math.top_k(piece, max(1, math.ceil(self._share * size)), sorted=False).indices)
            start += size
        return tf.concat(found, axis=0)

    def _added(self, values: tf.Tensor, places: tf.Tensor, size: int) -> tf.Tensor:
        (found,) = self._exchange.all_slices([tf.IndexedSlices(values, places, tf.constant([size]))])
        by_shard = [self._exchange.shards, -1]
        total = tf.zeros([size])
        for part, place in zip(
            tf.unstack(tf.reshape(found.values, by_shard), num=self._exchange.shards),
            tf.unstack(tf.reshape(found.indices, by_shard), num=self._exchange.shards),
            strict=True,
        ):
            total = tf.tensor_scatter_nd_add(total, place[:, tf.newaxis], part)
        return total
