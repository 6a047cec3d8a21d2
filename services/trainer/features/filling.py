"""What values of different sizes take once a batch fills them up to the largest.

One event of a megabyte would have a block of ten thousand small ones take a hundred gigabytes. Rows that do this are
left out. Rows that are large like most others are not.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

MOST_BYTES = 2 << 30
"""Of one feature of one batch; more only where it is not eight times what the values take by themselves."""
_MOST_TIMES = 8
STRING_BYTES = 24
"""Of a tstring without what it points to (tensorflow/tsl/platform/ctstring_internal.h)."""


def rows_beyond(sizes: NDArray[np.int64], value_bytes: int) -> NDArray[np.int64]:
    """The rows to leave empty, so that the others can be filled up; the most unusual sizes first.

    Args:
        sizes: [n, rank], of each row's values.
    """
    known = np.maximum(sizes, 1).astype(np.float64)
    own = known.prod(axis=1)
    rows = np.arange(len(known))
    while len(rows):
        largest = known[rows].max(axis=0)
        if value_bytes * len(known) * largest.prod() <= max(MOST_BYTES, _MOST_TIMES * value_bytes * own[rows].sum()):
            break
        axis = int(np.argmax(largest / np.median(known[rows], axis=0)))
        rows = rows[known[rows, axis] < largest[axis]]
    return np.setdiff1d(np.arange(len(known)), rows)


def most_values(own: tf.Tensor, value_bytes: int) -> tf.Tensor:
    """int64: how many a batch may have once it is filled up. own: int64, of all rows by themselves."""
    return tf.maximum(tf.constant(MOST_BYTES // value_bytes, tf.int64), _MOST_TIMES * own)


def checked(sizes: tf.Tensor, value_bytes: int, name: str) -> tf.Operation:
    """Fails with InvalidArgument where `rows_beyond` would leave out rows. sizes: [n, rank]."""
    known = tf.cast(tf.maximum(sizes, 1), tf.float64)
    largest = tf.reduce_prod(tf.maximum(tf.reduce_max(known, axis=0), 1.0))
    own = tf.reduce_sum(tf.reduce_prod(known, axis=1))
    most = tf.cast(most_values(tf.cast(own, tf.int64), value_bytes), tf.float64)
    message = f"{name}: filled up to the largest, the batch takes more than {MOST_BYTES} bytes; send large rows alone"
    return tf.debugging.Assert(tf.cast(tf.shape(known)[0], tf.float64) * largest <= most, [message])


def reason(name: str, sizes: NDArray[np.int64]) -> str:
    """sizes: of the row that was left out."""
    return (
        f"feature {name}: its size {sizes.tolist()} is far from that of the other events of its block, which would "
        f"take more than {MOST_BYTES} bytes filled up to it"
    )
