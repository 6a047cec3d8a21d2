"""How what each worker has computed reaches all of them: one port, two adapters.

`Alone` computes all shards itself. `Collective` is one of several processes that TensorFlow's collective operations
connect (CollectiveGatherV2: whole copies travel, and each process adds them up itself; the sum that a ring forms on
its way depends on the rank from three workers on).

Sums are formed along one tree over the shards, whoever computes them. A worker adds up what its shards make whole of
the tree, so that it sends the fewest rows that it can.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from services.trainer.shards.cut import owned_shards
from services.trainer.shards.tree import Node, children, parts_of, whole

_GROUP_KEY = 7_001
_SIZE_CLASSES = 32


Combine = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Two rows, [m] each, to the one of all their shards."""


class Exchange(Protocol):
    @property
    def shards(self) -> int:
        """Of all workers."""

    @property
    def workers(self) -> int: ...

    @property
    def owned(self) -> range:
        """The shards that are computed here."""

    def begin(self) -> None:
        """A new step is being traced: the operations of all workers are numbered from here on alike."""

    def combined(self, rows: Sequence[tf.Tensor], combine: Combine) -> tf.Tensor:
        """One float32 or bfloat16 [m] for each owned shard in; out: all shards' along the tree."""

    def all_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """The rows of the owned shards in, those of all shards out, in their order."""


class Alone:
    """One process computes all shards, one after the other."""

    workers = 1

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.owned = range(shards)

    def begin(self) -> None:
        pass

    def combined(self, rows: Sequence[tf.Tensor], combine: Combine) -> tf.Tensor:
        return _at(whole(self.shards), dict(enumerate(rows)), {}, combine)

    def all_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        return slices


class Collective:
    """Worker `rank` of several; TensorFlow's cluster is up (workers.py)."""

    def __init__(self, shards: int, *, rank: int, workers: int, timeout_seconds: float = 120.0) -> None:
        self.shards, self.workers, self._timeout_seconds = shards, workers, timeout_seconds
        self.owned = owned_shards(rank, workers=workers, shards=shards)
        owners = [owned_shards(other, workers=workers, shards=shards) for other in range(workers)]
        self._sent = [parts_of(whole(shards), owner) for owner in owners]
        self._rank = rank
        self._instance = 0
        self._last: list[tf.Operation] = []

    def begin(self) -> None:
        self._last = []

    def combined(self, rows: Sequence[tf.Tensor], combine: Combine) -> tf.Tensor:
        own = dict(zip(self.owned, rows, strict=True))
        parts = [_at(node, own, {}, combine) for node in self._sent[self._rank]]
        filler = [tf.zeros_like(rows[0])] * (max(map(len, self._sent)) - len(parts))
        gathered = self._gathered(tf.stack([*parts, *filler]))
        known = {node: gathered[rank][index] for rank, sent in enumerate(self._sent) for index, node in enumerate(sent)}
        return _at(whole(self.shards), {}, known, combine)

    def all_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        counts = self._gathered(tf.reshape(tf.size(slices.indices), [1]))[:, 0]
        doublings = _doublings(tf.reduce_max(counts))
        missing = tf.bitwise.left_shift(1, doublings) - tf.size(slices.indices)
        indices = self._gathered(tf.pad(tf.cast(slices.indices, tf.int64), [[0, missing]]), doublings)
        wide = [[0, 0]] * (slices.values.shape.rank - 1)
        values = self._gathered(tf.pad(slices.values, [[0, missing], *wide]), doublings)
        parts = range(self.workers)
        return tf.IndexedSlices(
            tf.concat([values[rank][: counts[rank]] for rank in parts], axis=0),
            tf.cast(tf.concat([indices[rank][: counts[rank]] for rank in parts], axis=0), slices.indices.dtype),
            slices.dense_shape,
        )

    def _gathered(self, tensor: tf.Tensor, size_class: tf.Tensor | int = 0) -> tf.Tensor:
        """[workers, ...]: every worker's, in order of rank. One after the other, in the same order everywhere.

        TensorFlow keeps the shape that an instance had the first time, so what has another size is another instance.
        bfloat16, which the operation does not take, travels two by two as int32.
        """
        if tensor.dtype == tf.bfloat16:
            flat = tf.reshape(tensor, [-1])
            even = tf.pad(flat, [[0, tf.size(flat) % 2]])
            pairs = self._gathered(tf.bitcast(tf.reshape(even, [-1, 2]), tf.int32), size_class)
            ones = tf.reshape(tf.bitcast(pairs, tf.bfloat16), [self.workers, -1])[:, : tf.size(flat)]
            return tf.reshape(ones, tf.concat([[self.workers], tf.shape(tensor)], axis=0))
        self._instance += 1
        with tf.control_dependencies(self._last):
            found = tf.raw_ops.CollectiveGatherV2(
                input=tensor[tf.newaxis],
                group_size=self.workers,
                group_key=_GROUP_KEY,
                instance_key=self._instance * _SIZE_CLASSES + size_class,
                ordering_token=[],
                communication_hint="ring",
                timeout_seconds=self._timeout_seconds,
            )
        self._last = [found.op]
        return found


def _at(node: Node, rows: Mapping[int, tf.Tensor], known: Mapping[Node, tf.Tensor], combine: Combine) -> tf.Tensor:
    """A part of the tree, from what is known of it and the rows of single shards."""
    if node in known:
        return known[node]
    if len(node) == 1:
        return rows[node.start]
    left, right = children(node)
    return combine(_at(left, rows, known, combine), _at(right, rows, known, combine))


def _doublings(count: tf.Tensor) -> tf.Tensor:
    """int32: the smallest n with 2^n >= count."""
    return tf.reduce_sum(tf.cast(count > [2**power for power in range(_SIZE_CLASSES - 1)], tf.int32))
