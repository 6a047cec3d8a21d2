"""How what each worker has computed reaches all of them, in two ways to travel.

Between the processes of one machine, rows travel through memory that they share (shared_memory.py); between machines,
and where there are GPUs, by TensorFlow's collective operations.

Sums are formed along one tree over the shards, whoever computes them (the sum that a ring of TensorFlow's forms on its
way depends on the rank from three workers on). A worker adds up what its shards make whole of the tree, so that it
sends the fewest rows that it can. Two workers send each other all of it. Each of more adds up a part of the row, and
then all gather the parts (reduce-scatter and all-gather, as a ring's, in the tree's order): a worker receives
2 (P - 1) / P rows, however many there are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.shards.cut import Node, children, owned_shards, parts_of, whole
from services.trainer.shards.shared_memory import SharedMemory

_GROUP_KEY = 7_001
_SIZE_CLASSES = 32


Combine = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Two rows, [m] each, to the one of all their shards; element by element."""


class Transport(Protocol):
    """What the workers of one step call alike, in the same order."""

    def begin(self) -> None: ...

    def gathered(self, rows: Sequence[tf.Tensor], size_class: tf.Tensor | int = 0) -> list[list[tf.Tensor]]:
        """Every worker's rows, in order of rank.

        Args:
            rows: [n] each and of one dtype, float32, int32 or int64; everywhere as long as here.
            size_class: below 32; what one operation sends may differ in length where this differs.
        """

    def dealt(self, rows: tf.Tensor) -> tf.Tensor:
        """[workers, ...]: of every worker's [workers, ...], the one for this worker."""


class Exchange:
    """Of worker `rank`; `shards` are of all workers, `owned` are computed here.

    Args:
        transport: None where one process computes all shards, one after the other.
    """

    def __init__(self, shards: int, transport: Transport | None = None, *, rank: int = 0, workers: int = 1) -> None:
        self.shards, self.workers, self._transport = shards, workers, transport
        self.owned = owned_shards(rank, workers=workers, shards=shards)
        owners = [owned_shards(other, workers=workers, shards=shards) for other in range(workers)]
        self._sent = [parts_of(whole(shards), owner) for owner in owners]
        self._rank = rank

    def begin(self) -> None:
        """A new step is being traced: the operations of all workers are numbered from here on alike."""
        if self._transport:
            self._transport.begin()

    def combined(self, rows: Sequence[tf.Tensor], combine: Combine, carried: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One [m] for each owned shard in; out: all shards' along the tree, and what the first shard carries.

        Args:
            rows: float32 or bfloat16.
            carried: [c] of the rows' dtype, of the first owned shard.
        """
        own = dict(zip(self.owned, rows, strict=True))
        parts = [_at(node, own, {}, combine) for node in self._sent[self._rank]]
        if not self._transport:
            return parts[0], carried
        parts += [tf.zeros_like(parts[0])] * (max(map(len, self._sent)) - len(parts))
        if self.workers == 2:
            found = self._gathered([*parts, carried])
            return self._added(found, combine), found[0][-1]
        size = tf.size(parts[0])
        piece = -(-size // self.workers)
        stacked = tf.pad(tf.stack(parts), [[0, 0], [0, piece * self.workers - size]])
        pieces = tf.transpose(tf.reshape(stacked, [len(parts), self.workers, piece]), [1, 0, 2])
        found = self._gathered([self._added(self._dealt(pieces), combine), carried])
        return tf.concat([added for added, _ in found], axis=0)[:size], found[0][-1]

    def all_slices(self, tables: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Of each table the rows of the owned shards in, those of all shards out, in their order."""
        if not self._transport:
            return list(tables)
        own = tf.stack([tf.size(table.indices) for table in tables])
        by_rank = [counts for (counts,) in self._gathered([own])]
        indices = self._of_any_length([tf.cast(table.indices, tf.int64) for table in tables], own, by_rank)
        widths = tf.stack([tf.reduce_prod(tf.shape(table.values)[1:]) for table in tables])
        flat = [tf.reshape(table.values, [-1]) for table in tables]
        values = self._of_any_length(flat, own * widths, [found * widths for found in by_rank])
        return [
            tf.IndexedSlices(
                tf.reshape(tf.concat(rows, axis=0), tf.concat([[-1], tf.shape(table.values)[1:]], axis=0)),
                tf.cast(tf.concat(places, axis=0), table.indices.dtype),
                table.dense_shape,
            )
            for table, rows, places in zip(tables, zip(*values, strict=True), zip(*indices, strict=True), strict=True)
        ]

    def _of_any_length(
        self, rows: Sequence[tf.Tensor], own: tf.Tensor, by_rank: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor]]:
        """Every worker's rows, in order of rank, whose lengths, int32 [n], differ; they travel as one, filled up to a
        power of two."""
        doublings = _doublings(tf.reduce_max(tf.stack([tf.reduce_sum(lengths) for lengths in by_rank])))
        missing = tf.bitwise.left_shift(1, doublings) - tf.reduce_sum(own)
        found = self._gathered([tf.pad(tf.concat(rows, axis=0), [[0, missing]])], doublings)
        return [
            tf.split(row[: tf.reduce_sum(lengths)], lengths, num=len(rows))
            for (row,), lengths in zip(found, by_rank, strict=True)
        ]

    def _added(self, seen: Sequence[Sequence[tf.Tensor]], combine: Combine) -> tf.Tensor:
        """From the rows that each worker sent, in order of rank."""
        known = {node: seen[rank][index] for rank, sent in enumerate(self._sent) for index, node in enumerate(sent)}
        return _at(whole(self.shards), {}, known, combine)

    def _gathered(self, rows: Sequence[tf.Tensor], size_class: tf.Tensor | int = 0) -> list[list[tf.Tensor]]:
        assert self._transport
        if rows[0].dtype != tf.bfloat16:
            return self._transport.gathered(rows, size_class)
        found = self._transport.gathered([_paired(row) for row in rows], size_class)
        return [[_unpaired(pair, tf.shape(row)) for pair, row in zip(by, rows, strict=True)] for by in found]

    def _dealt(self, rows: tf.Tensor) -> list[list[tf.Tensor]]:
        assert self._transport
        if rows.dtype == tf.bfloat16:
            paired = tf.stack([_paired(rows[rank]) for rank in range(self.workers)])
            dealt = self._transport.dealt(paired)
            found = [_unpaired(dealt[rank], tf.shape(rows)[1:]) for rank in range(self.workers)]
        else:
            found = tf.unstack(self._transport.dealt(rows), num=self.workers)
        return [[row[index] for index in range(rows.shape[1])] for row in found]


class Collectives:
    """TensorFlow's operations, over the cluster that is up (rounds/teamwork.py), one after the other.

    TensorFlow keeps the shape that an instance had the first time, so what has another size is another instance.
    """

    def __init__(self, *, workers: int, timeout_seconds: float) -> None:
        self._workers, self._timeout_seconds = workers, timeout_seconds
        self._instance = 0
        self._last: list[tf.Operation] = []

    def begin(self) -> None:
        self._last = []

    def gathered(self, rows: Sequence[tf.Tensor], size_class: tf.Tensor | int = 0) -> list[list[tf.Tensor]]:
        found = self._in_turn(
            lambda key: tf.raw_ops.CollectiveGatherV2(
                input=tf.concat(rows, axis=0)[tf.newaxis],
                group_size=self._workers,
                group_key=_GROUP_KEY,
                instance_key=key + size_class,
                ordering_token=[],
                communication_hint="ring",
                timeout_seconds=self._timeout_seconds,
            )
        )
        sizes = tf.stack([tf.size(row) for row in rows])
        return [tf.split(found[rank], sizes, num=len(rows)) for rank in range(self._workers)]

    def dealt(self, rows: tf.Tensor) -> tf.Tensor:
        return self._in_turn(
            lambda key: tf.raw_ops.CollectiveAllToAllV2(
                input=rows,
                group_size=self._workers,
                group_key=_GROUP_KEY,
                instance_key=key,
                ordering_token=[],
                communication_hint="ring",
                timeout_seconds=self._timeout_seconds,
            )
        )

    def _in_turn(self, make: Callable[[int], tf.Tensor]) -> tf.Tensor:
        self._instance += 1
        with tf.control_dependencies(self._last):
            found = make(self._instance * _SIZE_CLASSES)
        self._last = [found.op]
        return found


class Shared:
    """Memory that the processes of this machine share."""

    def __init__(self, memory: SharedMemory, *, rank: int, timeout_seconds: float) -> None:
        self._memory, self._rank, self._timeout_seconds = memory, rank, timeout_seconds
        self._last: list[tf.Operation] = []

    def begin(self) -> None:
        self._last = []

    def gathered(self, rows: Sequence[tf.Tensor], size_class: tf.Tensor | int = 0) -> list[list[tf.Tensor]]:
        def exchange(*given: NDArray[Any]) -> list[NDArray[Any]]:
            return self._memory.gathered(given, self._rank, self._timeout_seconds)

        count = len(rows)
        others = self._called(exchange, rows, [row for _ in range(self._memory.workers - 1) for row in rows])
        found = [others[start : start + count] for start in range(0, len(others), count)]
        return [*found[: self._rank], list(rows), *found[self._rank :]]

    def dealt(self, rows: tf.Tensor) -> tf.Tensor:
        def exchange(given: NDArray[Any]) -> list[NDArray[Any]]:
            return [self._memory.dealt(given, self._rank, self._timeout_seconds)]

        return self._called(exchange, [rows], [rows])[0]

    def _called(
        self, exchange: Callable[..., object], rows: Sequence[tf.Tensor], like: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        with tf.control_dependencies(self._last):
            found = tf.numpy_function(exchange, rows, [row.dtype for row in like])
        self._last = [found[0].op]
        return [tf.ensure_shape(tensor, row.shape) for tensor, row in zip(found, like, strict=True)]


def _at(node: Node, rows: Mapping[int, tf.Tensor], known: Mapping[Node, tf.Tensor], combine: Combine) -> tf.Tensor:
    """A part of the tree, from what is known of it and the rows of single shards."""
    if node in known:
        return known[node]
    if len(node) == 1:
        return rows[node.start]
    left, right = children(node)
    return combine(_at(left, rows, known, combine), _at(right, rows, known, combine))


def _paired(row: tf.Tensor) -> tf.Tensor:
    """bfloat16, which neither way takes, two by two as int32 [n]."""
    flat = tf.reshape(row, [-1])
    return tf.bitcast(tf.reshape(tf.pad(flat, [[0, tf.size(flat) % 2]]), [-1, 2]), tf.int32)


def _unpaired(found: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.reshape(tf.bitcast(found, tf.bfloat16), [-1])[: tf.reduce_prod(shape)], shape)


def _doublings(count: tf.Tensor) -> tf.Tensor:
    """int32: the smallest n with 2^n >= count."""
    return tf.reduce_sum(tf.cast(count > [2**power for power in range(_SIZE_CLASSES - 1)], tf.int32))
