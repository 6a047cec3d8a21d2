"""Which rows of a batch a shard has, and which shards a worker computes.

The number of shards K is part of a round's definition and fixes its arithmetic. The number of workers P is not: each
computes a run of neighbouring shards, and whoever computes them, they are summed along one tree (tree.py).
"""

import tensorflow as tf


def shard_bounds(rows: tf.Tensor, shards: int) -> list[tf.Tensor]:
    """shards + 1 int32 scalars: shard k has the rows from the k-th to the next one.

    The sizes differ by at most one row; in a batch of fewer rows than shards the last shards are empty, never the
    first.
    """
    return [(rows * index + shards - 1) // shards for index in range(shards + 1)]


def owned_shards(rank: int, *, workers: int, shards: int) -> range:
    """The shards of one worker; together they are all, each once, in order of rank.

    Every worker has one at least, as long as there are no more workers than shards.
    """
    return range(shards * rank // workers, shards * (rank + 1) // workers)
