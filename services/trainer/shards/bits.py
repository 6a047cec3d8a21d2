"""What shards hand to each other beside sums: rows of a batch, keys of their draws, the bits of counters."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_KEY_STEP = 0x9E3779B1
"""Odd, so that no two of 2^32 shards get the same key (Knuth's multiplicative constant, a prime near 2^32 / phi)."""
_SEED_NAME = "seed_generator_state"


def rows_of(values: Any, start: tf.Tensor, end: tf.Tensor) -> Any:
    """Of each tensor in a structure."""
    return tf.nest.map_structure(lambda tensor: tensor[start:end], values)


def is_seed(variable: keras.Variable) -> bool:
    """Whether it is the state of a generator of Keras's."""
    return bool(variable.name == _SEED_NAME)


def keyed(variable: keras.Variable, value: tf.Tensor, shard: int) -> tf.Tensor:
    """What a shard begins with: the value, or, of a generator's state [key, counter], one with a key of its own.

    The first shard keeps the key.
    """
    if not shard or not is_seed(variable):
        return value
    key = (tf.cast(value[0], tf.int64) + shard * _KEY_STEP) % 2**32
    return tf.stack([tf.cast(key, value.dtype), value[1]])


def as_floats(value: tf.Tensor) -> tf.Tensor:
    """The bits of whole numbers or truth values as float32 [n]; they are moved, never added."""
    whole = tf.cast(value, tf.int32) if value.dtype.size < 4 else value
    return tf.reshape(tf.bitcast(whole, tf.float32), [-1])


def from_floats(floats: tf.Tensor, variables: Sequence[keras.Variable]) -> None:
    """Sets them to the bits that `as_floats` gave of each, in a row."""
    place = 0
    for variable in variables:
        size = int(np.prod(variable.shape)) * (2 if tf.as_dtype(variable.dtype).size == 8 else 1)
        variable.assign(_restored(floats[place : place + size], variable))
        place += size


def _restored(floats: tf.Tensor, variable: keras.Variable) -> tf.Tensor:
    dtype = tf.as_dtype(variable.dtype)
    if dtype.size == 8:
        return tf.reshape(tf.bitcast(tf.reshape(floats, [-1, 2]), dtype), variable.shape)
    if dtype.size == 4:
        return tf.reshape(tf.bitcast(floats, dtype), variable.shape)
    return tf.cast(tf.reshape(tf.bitcast(floats, tf.int32), variable.shape), dtype)
