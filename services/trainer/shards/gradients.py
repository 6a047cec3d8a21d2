"""The loss and the gradients of a batch, shard by shard.

    loss and dense gradients       each shard's part of the whole batch's mean, added along one tree (cut.py)
    compressed gradients           bfloat16: each shard's, and each sum of the tree
    gradients of looked-up rows    the shards' rows in their order; equal ids are added up afterwards (learn)
    regularisation                 each shard has its share of rows of it: once in all
    moving averages (batch norm)   each shard goes on from the step's start; their mean, weighted by their rows
    draws (dropout)                shard k draws from the generator's key plus k times a constant
    other counters of layers       those of the first shard
    a shard without rows           adds nothing

With one shard this is the plain step, bit for bit, and nothing here is called.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from services.trainer.shards.bits import as_floats, from_floats, keyed, rows_of
from services.trainer.shards.cut import shard_bounds
from services.trainer.shards.exchange import Exchange


@dataclass(frozen=True)
class Whole:
    """What a shard's loss is a part of.

    Attributes:
        weights: float32 scalars, in the structure of the batch's weights: their sums over the whole batch.
        share: float32 scalar: the shard's rows among the batch's.
    """

    weights: Any
    share: tf.Tensor


LossOf = Callable[[Any, Any, Any, Whole], tuple[tf.Tensor, tf.Tensor]]
"""A shard's columns, labels and weights to its part of the batch's loss, float32 scalar; and what was added in it."""


class ShardedGradients:
    """Args:
    taught: what gradients are for.
    running: what the network changes beside them: moving averages, generators of draws, counters.
    devices: where the shards are computed, in turns; empty: wherever TensorFlow puts them.
    reduction: where the devices' parts are added up: `tree`, each sum where its first summand is, so that sums of
        different devices are formed at once; `one_device`, the first of them.
    compress: what gradients travel as: `none`, as float32, or `bfloat16`.
    """

    def __init__(
        self,
        exchange: Exchange,
        taught: Sequence[keras.Variable],
        running: Sequence[keras.Variable],
        devices: Sequence[str] = (),
        *,
        compress: str,
        reduction: str = "tree",
    ) -> None:
        self._reduction = reduction
        self._travel_as = tf.bfloat16 if compress == "bfloat16" else tf.float32
        self._exchange, self._taught, self._devices = exchange, taught, devices
        self._averaged = [variable for variable in running if tf.as_dtype(variable.dtype).is_floating]
        self._counted = [variable for variable in running if not tf.as_dtype(variable.dtype).is_floating]

    def __call__(
        self,
        loss_of: LossOf,
        columns: Any,
        labels: Any,
        weights: Any,
        *,
        scale: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    ) -> tuple[tf.Tensor, list[tf.Tensor | tf.IndexedSlices | None]]:
        """float32 [2]: the loss, what was added in it; and a gradient for each variable that is taught.

        `running` moves on by one step.

        Args:
            columns, labels, weights: structures of tensors with one row per example.
            scale: of the loss whose gradients are taken; the loss that is returned is not scaled.
        """
        self._exchange.begin()
        rows = tf.shape(tf.nest.flatten(weights)[0])[0]
        totals = tf.nest.map_structure(tf.reduce_sum, weights)
        bounds = shard_bounds(rows, self._exchange.shards)
        starts = [variable.value.read_value() for variable in [*self._averaged, *self._counted]]
        parts = list[_Part]()
        for shard in self._exchange.owned:
            start, end = bounds[shard], bounds[shard + 1]
            part = [rows_of(values, start, end) for values in (columns, labels, weights)]
            whole = Whole(totals, tf.cast(end - start, tf.float32) / tf.cast(tf.maximum(rows, 1), tf.float32))
            with tf.device(self._devices[shard % len(self._devices)] if self._devices else None):
                for variable, value in zip([*self._averaged, *self._counted], starts, strict=True):
                    variable.assign(keyed(variable, value, shard))
                with tf.GradientTape() as tape:
                    loss, added = loss_of(part[0], part[1], part[2], whole)
                    scaled = scale(loss)
                parts.append(self._part(tf.stack([loss, added]), tape.gradient(scaled, self._taught), whole))
        return self._summed(parts)

    def _part(self, losses: tf.Tensor, gradients: Sequence[Any], whole: Whole) -> "_Part":
        dense = [None if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
        taught = tuple(index for index, tensor in enumerate(dense) if tensor is not None)
        rows = [tf.reshape(tf.cast(dense[index], tf.float32), [-1]) for index in taught]
        averaged = [
            whole.share * tf.reshape(tf.cast(variable.value.read_value(), tf.float32), [-1])
            for variable in self._averaged
        ]
        counted = [as_floats(variable.value.read_value()) for variable in self._counted]
        sparse = {index: gradient for index, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)}
        return _Part(
            _where_any(whole, rows or [tf.zeros([0])]),
            _where_any(whole, [losses, *averaged]),
            tf.concat(counted, axis=0) if counted else tf.zeros([0]),
            sparse,
            taught,
        )

    def _summed(self, parts: Sequence["_Part"]) -> tuple[tf.Tensor, list[tf.Tensor | tf.IndexedSlices | None]]:
        first, gradients = parts[0], list[tf.Tensor | tf.IndexedSlices | None]([None] * len(self._taught))
        sizes = [int(np.prod(self._taught[index].shape)) for index in first.taught]
        taught, others, counts = self._exchanged(parts)
        pieces = tf.split(taught, sizes)
        for index, piece in zip(first.taught, pieces, strict=True):
            variable = self._taught[index]
            gradients[index] = tf.cast(tf.reshape(piece, variable.shape), variable.dtype)
        losses, *averages = tf.split(others, [2, *(int(np.prod(variable.shape)) for variable in self._averaged)])
        for variable, piece in zip(self._averaged, averages, strict=True):
            variable.assign(tf.cast(tf.reshape(piece, variable.shape), variable.dtype))
        from_floats(counts, self._counted)
        for index, found in self._all_slices(parts).items():
            gradients[index] = found
        return losses, gradients

    def _all_slices(self, parts: Sequence["_Part"]) -> dict[int, tf.IndexedSlices]:
        """By place in the list of variables."""
        own = {
            index: tf.IndexedSlices(
                tf.cast(tf.concat([part.sparse[index].values for part in parts], axis=0), self._travel_as),
                tf.concat([part.sparse[index].indices for part in parts], axis=0),
                slices.dense_shape,
            )
            for index, slices in parts[0].sparse.items()
        }
        if not own:
            return {}
        return {
            index: tf.IndexedSlices(tf.cast(found.values, slices.values.dtype), found.indices, found.dense_shape)
            for (index, slices), found in zip(
                parts[0].sparse.items(), self._exchange.all_slices([*own.values()]), strict=True
            )
        }

    def _exchanged(self, parts: Sequence["_Part"]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The sums of dense gradients, those of the rest, and the counts of the first shard. What is not compressed
        travels in one row."""
        counts = parts[0].counts
        if self._travel_as == tf.float32:
            width = tf.size(parts[0].taught_sums)
            rows = [part.flattened() for part in parts]
            total, counts = self._exchange.combined(rows, self._added, counts)
            return total[:width], total[width:], counts
        rounded = [part.rounded(self._travel_as) for part in parts]
        taught, _ = self._exchange.combined(rounded, self._rounding, tf.zeros([0], self._travel_as))
        total, counts = self._exchange.combined([part.sums for part in parts], self._added, counts)
        return tf.cast(taught, tf.float32), total, counts

    def _added(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        with self._where(first):
            return first + second

    def _rounding(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        with self._where(first):
            return tf.cast(tf.cast(first, tf.float32) + tf.cast(second, tf.float32), self._travel_as)

    def _where(self, tensor: tf.Tensor) -> AbstractContextManager[None]:
        return tf.device(self._devices[0]) if self._devices and self._reduction == "one_device" else _beside(tensor)


def _beside(tensor: tf.Tensor) -> AbstractContextManager[None]:
    """On the device that the tensor was asked to be on."""
    return tf.device(tensor.device or None)


def _where_any(whole: Whole, rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """In a row; of a shard without rows, whose means are NaN, zeros."""
    sums = tf.concat([tf.cast(row, tf.float32) for row in rows], axis=0)
    return tf.where(whole.share > 0, sums, tf.zeros_like(sums))


@dataclass(frozen=True)
class _Part:
    """Of one shard.

    Attributes:
        taught_sums: float32: dense gradients, in a row.
        sums: float32: losses, moving averages, in a row.
        counts: the bits of counters and generators, as float32.
        sparse: by place in the list of variables.
        taught: the places of the dense gradients.
    """

    taught_sums: tf.Tensor
    sums: tf.Tensor
    counts: tf.Tensor
    sparse: Mapping[int, tf.IndexedSlices]
    taught: tuple[int, ...]

    def flattened(self) -> tf.Tensor:
        with _beside(self.sums):
            return tf.concat([self.taught_sums, self.sums], axis=0)

    def rounded(self, dtype: tf.DType) -> tf.Tensor:
        with _beside(self.sums):
            return tf.cast(self.taught_sums, dtype)
