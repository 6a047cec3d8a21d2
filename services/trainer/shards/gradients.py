"""The loss and the gradients of a batch, shard by shard.

    loss and dense gradients       each shard's part of the whole batch's mean, added in the order of the shards
    gradients of looked-up rows    the shards' rows in their order; equal ids are added up afterwards (learn)
    regularisation                 each shard has its share of rows of it: once in all
    moving averages (batch norm)   each shard goes on from the step's start; their mean, weighted by their rows
    draws (dropout)                shard k draws from the generator's key plus k times a constant
    other counters of layers       those of the first shard
    a shard without rows           adds nothing

With one shard this is the plain step, bit for bit, and nothing here is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from services.trainer.shards.cut import shard_bounds
from services.trainer.shards.exchange import Exchange

_KEY_STEP = 0x9E3779B1
"""Odd, so that no two of 2^32 shards get the same key (Knuth's multiplicative constant, a prime near 2^32 / phi)."""
_SEED_NAME = "seed_generator_state"


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
    """

    def __init__(
        self,
        exchange: Exchange,
        taught: Sequence[keras.Variable],
        running: Sequence[keras.Variable],
        devices: Sequence[str] = (),
    ) -> None:
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
            part = [_rows(values, start, end) for values in (columns, labels, weights)]
            whole = Whole(totals, tf.cast(end - start, tf.float32) / tf.cast(tf.maximum(rows, 1), tf.float32))
            with tf.device(self._devices[shard % len(self._devices)] if self._devices else None):
                for variable, value in zip([*self._averaged, *self._counted], starts, strict=True):
                    variable.assign(_keyed(value, shard) if variable.name == _SEED_NAME else value)
                with tf.GradientTape() as tape:
                    loss, added = loss_of(part[0], part[1], part[2], whole)
                    scaled = scale(loss)
                parts.append(self._part(tf.stack([loss, added]), tape.gradient(scaled, self._taught), whole))
        return self._summed(parts)

    def _part(self, losses: tf.Tensor, gradients: Sequence[Any], whole: Whole) -> "_Part":
        dense = [None if isinstance(one, tf.IndexedSlices) else one for one in gradients]
        summed = [losses, *(tf.reshape(one, [-1]) for one in dense if one is not None)]
        averaged = [
            whole.share * tf.reshape(tf.cast(variable.value.read_value(), tf.float32), [-1])
            for variable in self._averaged
        ]
        counted = [_as_floats(variable.value.read_value()) for variable in self._counted]
        sums = tf.concat([tf.cast(one, tf.float32) for one in [*summed, *averaged]], axis=0)
        sums = tf.where(whole.share > 0, sums, tf.zeros_like(sums))  # without rows a mean is NaN
        sparse = {index: one for index, one in enumerate(gradients) if isinstance(one, tf.IndexedSlices)}
        taught = tuple(index for index, one in enumerate(dense) if one is not None)
        return _Part(sums, tf.concat(counted, axis=0) if counted else tf.zeros([0]), sparse, taught)

    def _summed(self, parts: Sequence["_Part"]) -> tuple[tf.Tensor, list[tf.Tensor | tf.IndexedSlices | None]]:
        width = tf.size(parts[0].sums)
        rows = self._exchange.all_rows([tf.concat([part.sums, part.counts], axis=0) for part in parts])
        total = rows[0][:width]
        for row in rows[1:]:
            total = total + row[:width]
        first = parts[0]
        gradients: list[tf.Tensor | tf.IndexedSlices | None] = [None] * len(self._taught)
        sizes = [2, *(int(np.prod(self._taught[index].shape)) for index in first.taught)]
        sizes += [int(np.prod(variable.shape)) for variable in self._averaged]
        pieces = tf.split(total, sizes)
        for index, piece in zip(first.taught, pieces[1:], strict=False):
            variable = self._taught[index]
            gradients[index] = tf.cast(tf.reshape(piece, variable.shape), variable.dtype)
        for variable, piece in zip(self._averaged, pieces[1 + len(first.taught) :], strict=True):
            variable.assign(tf.cast(tf.reshape(piece, variable.shape), variable.dtype))
        self._set_counters(rows[0][width:])
        for index in first.sparse:
            slices = [part.sparse[index] for part in parts]
            gradients[index] = self._exchange.all_slices(
                tf.IndexedSlices(
                    tf.concat([one.values for one in slices], axis=0),
                    tf.concat([one.indices for one in slices], axis=0),
                    slices[0].dense_shape,
                )
            )
        return pieces[0], gradients

    def _set_counters(self, floats: tf.Tensor) -> None:
        place = 0
        for variable in self._counted:
            size = int(np.prod(variable.shape)) * (2 if tf.as_dtype(variable.dtype).size == 8 else 1)
            variable.assign(_from_floats(floats[place : place + size], variable))
            place += size


@dataclass(frozen=True)
class _Part:
    """Of one shard.

    Attributes:
        sums: float32: losses, dense gradients, moving averages, in a row.
        counts: the bits of counters and generators, as float32.
        sparse: by place in the list of variables.
        taught: the places of the dense ones.
    """

    sums: tf.Tensor
    counts: tf.Tensor
    sparse: Mapping[int, tf.IndexedSlices]
    taught: tuple[int, ...]


def _rows(values: Any, start: tf.Tensor, end: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[start:end], values)


def _keyed(state: tf.Tensor, shard: int) -> tf.Tensor:
    """A generator's state [key, counter] for one shard: the first keeps the key."""
    if not shard:
        return state
    key = (tf.cast(state[0], tf.int64) + shard * _KEY_STEP) % 2**32
    return tf.stack([tf.cast(key, state.dtype), state[1]])


def _as_floats(value: tf.Tensor) -> tf.Tensor:
    """The bits of whole numbers or truth values as float32 [n]; they are moved, never added."""
    whole = tf.cast(value, tf.int32) if value.dtype.size < 4 else value
    return tf.reshape(tf.bitcast(whole, tf.float32), [-1])


def _from_floats(floats: tf.Tensor, variable: keras.Variable) -> tf.Tensor:
    dtype = tf.as_dtype(variable.dtype)
    if dtype.size == 8:
        return tf.reshape(tf.bitcast(tf.reshape(floats, [-1, 2]), dtype), variable.shape)
    if dtype.size == 4:
        return tf.reshape(tf.bitcast(floats, dtype), variable.shape)
    return tf.cast(tf.reshape(tf.bitcast(floats, tf.int32), variable.shape), dtype)
