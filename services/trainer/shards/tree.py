"""The order in which what shards give is added up: a binary tree over their numbers, for any number of workers.

A node is the run of shards below it. Its left part is the largest power of two that is smaller than the run: of five
shards ((0 + 1) + (2 + 3)) + 4.
"""

from typing import TypeAlias

Node: TypeAlias = range


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
