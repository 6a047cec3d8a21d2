"""The steps of a numeric feature's `transform` (common/definition/steps.py), in statistics and in every export.

float32 or float64 [n, columns] in and out; between a reshape and the end [n, ..., columns], and each row of columns is
taken by itself. What has no number has 0: the reciprocal of 0, a row of zeros normalized. A power is that of the size,
with the number's sign; exp takes 80 at most, whose power float32 holds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import tensorflow as tf

from common.definition.steps import Step

_MOST_EXPONENT = 80.0
Given = tuple[float, ...]


def applied(steps: Sequence[Step], values: tf.Tensor) -> tf.Tensor:
    """All of them, in order."""
    values = _taken(steps, values)
    return values if values.shape.rank == 2 else tf.reshape(values, [tf.shape(values)[0], math.prod(values.shape[1:])])


def _taken(steps: Sequence[Step], values: tf.Tensor) -> tf.Tensor:
    for step in steps:
        if step.name == "concat":
            values = tf.concat([_taken(part, values) for part in step.branches], axis=-1)
        elif step.name == "map":
            values = _mapped(step.branches[0], values)
        else:
            values = tf.cast(APPLY[step.name](values, step.given), values.dtype)
    return values


def _mapped(steps: Sequence[Step], values: tf.Tensor) -> tf.Tensor:
    """tf.map_fn over the first axis of every example, all at once."""
    count = int(values.shape[1])
    done = _taken(steps, tf.reshape(values, [-1, *values.shape[2:]]))
    return tf.reshape(done, [-1, count, *done.shape[1:]])


def _per_row(function: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor, Given], tf.Tensor]:
    return lambda x, given: function(x, axis=-1, keepdims=True)


def _plain(function: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor, Given], tf.Tensor]:
    return lambda x, given: function(x)


def _operand(x: tf.Tensor, given: Given) -> tf.Tensor:
    return tf.constant(given[0], x.dtype)


def _over(x: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(x, size)


def _pair_products(x: tf.Tensor, given: Given) -> tf.Tensor:
    """In the order (0, 1), (0, 2), ..., (1, 2), ..."""
    pairs = list(combinations(range(int(x.shape[-1])), 2))
    first, second = (tf.gather(x, [pair[place] for pair in pairs], axis=-1) for place in (0, 1))
    return first * second


def _unique(x: tf.Tensor, given: Given) -> tf.Tensor:
    """The values of a row, each where it first comes, closed up; zeros behind."""
    columns = int(x.shape[-1])
    earlier = tf.linalg.band_part(tf.ones([columns, columns], tf.bool), -1, 0) & ~tf.eye(columns, dtype=tf.bool)
    is_new = ~tf.reduce_any((x[..., :, tf.newaxis] == x[..., tf.newaxis, :]) & earlier, axis=-1)
    order = tf.argsort(tf.cast(~is_new, tf.int32), axis=-1, stable=True)
    return tf.gather(tf.where(is_new, x, tf.zeros_like(x)), order, axis=-1, batch_dims=x.shape.rank - 1)


def _resample(x: tf.Tensor, given: Given) -> tf.Tensor:
    """Linearly between the columns, the first and the last in their places."""
    places = np.linspace(0.0, int(x.shape[-1]) - 1.0, int(given[0]))
    below = np.floor(places).astype(np.int64)
    share = tf.constant(places - below, x.dtype)
    above = np.minimum(below + 1, int(x.shape[-1]) - 1)
    return tf.gather(x, below, axis=-1) * (1 - share) + tf.gather(x, above, axis=-1) * share


APPLY: Mapping[str, Callable[[tf.Tensor, Given], tf.Tensor]] = {
    "abs": _plain(tf.abs),
    "sign": _plain(tf.sign),
    "negative": _plain(tf.negative),
    "square": _plain(tf.square),
    "exp": lambda x, given: tf.exp(tf.minimum(x, tf.constant(_MOST_EXPONENT, x.dtype))),
    "reciprocal": lambda x, given: _over(tf.ones_like(x), x),
    "floor": _plain(tf.floor),
    "ceil": _plain(tf.math.ceil),
    "round": _plain(tf.round),
    "cast_int": lambda x, given: tf.sign(x) * tf.floor(tf.abs(x)),
    "sin": _plain(tf.sin),
    "cos": _plain(tf.cos),
    "tanh": _plain(tf.tanh),
    "sigmoid": _plain(tf.sigmoid),
    "relu": _plain(tf.nn.relu),
    "add": lambda x, given: x + _operand(x, given),
    "multiply": lambda x, given: x * _operand(x, given),
    "power": lambda x, given: tf.sign(x) * tf.pow(tf.abs(x), _operand(x, given)),
    "minimum": lambda x, given: tf.minimum(x, _operand(x, given)),
    "maximum": lambda x, given: tf.maximum(x, _operand(x, given)),
    "modulo": lambda x, given: tf.math.floormod(x, _operand(x, given)),
    "greater": lambda x, given: x > _operand(x, given),
    "equal": lambda x, given: tf.equal(x, _operand(x, given)),
    "sum": _per_row(tf.reduce_sum),
    "mean": _per_row(tf.reduce_mean),
    "max": _per_row(tf.reduce_max),
    "min": _per_row(tf.reduce_min),
    "prod": _per_row(tf.reduce_prod),
    "variance": _per_row(tf.math.reduce_variance),
    "norm": _per_row(tf.norm),
    "argmax": lambda x, given: tf.argmax(x, axis=-1)[..., tf.newaxis],
    "count_nonzero": _per_row(tf.math.count_nonzero),
    "l1_normalize": lambda x, given: _over(x, tf.reduce_sum(tf.abs(x), axis=-1, keepdims=True)),
    "l2_normalize": lambda x, given: _over(x, tf.norm(x, axis=-1, keepdims=True)),
    "softmax": lambda x, given: tf.nn.softmax(x, axis=-1),
    "cumsum": lambda x, given: tf.cumsum(x, axis=-1),
    "reverse": lambda x, given: tf.reverse(x, axis=[-1]),
    "sort": lambda x, given: tf.sort(x, axis=-1),
    "clip": lambda x, given: tf.clip_by_value(x, *(tf.constant(number, x.dtype) for number in given)),
    "take": lambda x, given: tf.gather(x, [int(number) for number in given], axis=-1),
    "mask": lambda x, given: x * tf.constant(given, x.dtype),
    "where": lambda x, given: tf.where(x > _operand(x, given), *(tf.constant(number, x.dtype) for number in given[1:])),
    "unique": _unique,
    "resample": _resample,
    "matmul": lambda x, given: x @ tf.reshape(tf.constant(given, x.dtype), [x.shape[-1], -1]),
    "difference": lambda x, given: x[..., 1:] - x[..., :-1],
    "pair_products": _pair_products,
    "reshape": lambda x, given: tf.reshape(x, [-1, *map(int, given)]),
    "transpose": lambda x, given: tf.linalg.matrix_transpose(x),
}
"""All but concat and map, which hold steps."""
