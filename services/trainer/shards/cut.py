"""Which rows of a batch a shard has, which shards a worker computes, and in which order their sums are formed.

The number of shards K is part of a round's definition and fixes its arithmetic. The number of workers P is not: each
computes a run of neighbouring shards, and whoever computes them, they are added up along one binary tree over their
numbers. A node of the tree is the run of shards below it. Its left part is the largest power of two that is smaller
than the run: of five shards ((0 + 1) + (2 + 3)) + 4.
"""

from typing import TypeAlias

import tensorflow as tf

Node: TypeAlias = range


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


def whole(shards: int) -> Node:
    return range(shards)


def children(node: Node) -> tuple[Node, Node]:
    """Of a node of two shards at least."""
    left = node.start + 2 ** ((len(node) - 1).bit_length() - 1)
    return range(node.start, left), range(left, node.stop)


def parts_of(node: Node, owned: range) -> list[Node]:
    """The fewest nodes that hold the owned shards and no others, in their order."""
    if node.stop <= owned.start or owned.stop <= node.start:
        return []
    if owned.start <= node.start and node.stop <= owned.stop:
        return [node]
    left, right = children(node)
    return [*parts_of(left, owned), *parts_of(right, owned)]
