"""How a block is put into an order and cut into batches.

With `training.fixed_batch` every batch has one shape: rows that only fill it up repeat the batch's last example and
weigh nothing, so a block of any size is the same program. With `training.bucket_by_sequence_length` a batch has lists
that are about as long, filled up to its own longest (bucketing.py). With `training.balance` rows of rarer classes are
taken again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.training import Training
from services.trainer import determinism
from services.trainer.families.heads import ByHead
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.keras_internals import layers_of
from services.trainer.learn.bucketing import Buckets

Cut = Callable[[Sequence[ByHead], tf.Tensor, tf.Tensor], list[dict[str, tf.Tensor]]]
"""Columns, labels and weights, and where a batch begins and ends, to its columns, labels and weights."""


def cut_for(section: Training, buckets: Buckets | None) -> Cut:
    if buckets:
        return lambda *given: buckets.cut(_cut(*given))
    return partial(_padded, section.batch_size) if section.fixed_batch else _cut


def batches_of(
    model: BuiltModel,
    examples: TrainingSet,
    rows: NDArray[np.int64],
    buckets: Buckets | None,
    *,
    seed: int,
    pass_index: int,
    block_index: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows in their order, and where the batches begin and end in it."""
    section, turn = model.definition.training, {"pass_index": pass_index, "block_index": block_index}
    ranked = next((head.name for head in model.heads if head.head.group), None)
    if ranked is not None:
        groups = examples.labels[ranked].numpy()[rows, 1].astype(np.int64)
        order, bounds = determinism.group_batches(groups, section.batch_size, seed=seed, **turn)
        return rows[order], bounds
    if section.balance:
        name = section.balance.head
        classes, weights = (part[name].numpy()[rows] for part in (examples.labels, examples.weights))
        again = taken_again(classes, weights > 0, at_most=section.balance.at_most, seed=seed, **turn)
        rows = np.concatenate([rows, rows[again]])
    order = determinism.block_order(seed, count=len(rows), **turn)
    if buckets:
        return buckets.batches(examples.columns, rows[order])
    return rows[order], determinism.batch_bounds(len(rows), section.batch_size, is_fixed=section.fixed_batch)


def taken_again(
    classes: NDArray[Any], is_labelled: NDArray[np.bool_], *, at_most: int, seed: int, pass_index: int, block_index: int
) -> NDArray[np.int64]:
    """Places that are taken again, so that each class has as many as the most frequent: each of its rows equally often,
    the rest drawn without replacement. A place is taken `at_most` times in all, and one without a label once."""
    random = determinism.drawing(seed, pass_index=pass_index, block_index=block_index)
    codes = np.unique(classes, return_inverse=True)[1]
    members = [np.flatnonzero((codes == code) & is_labelled) for code in range(codes.max(initial=-1) + 1)]
    most = max(map(len, members), default=0)
    found = [np.zeros(0, np.int64)]
    for own in filter(len, members):
        wanted = min(most, at_most * len(own)) - len(own)
        found += [np.tile(own, wanted // len(own)), random.permutation(own)[: wanted % len(own)]]
    return np.concatenate(found)


def refuse_padding(model: BuiltModel) -> None:
    """Raises DefinitionFailedError where rows without weight would count: in what is summed over a whole batch."""
    if not model.definition.training.fixed_batch:
        return
    why = ""
    if model.compiled_by_user.has_train_step:
        why = "the module's own train_step takes the steps"
    elif model.compiled_by_user.has_loss:
        why = "a compiled loss is divided by the number of rows"
    elif any(
        isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(model.network, include_self=True)
    ):
        why = "batch normalisation counts every row"
    if why:
        raise DefinitionFailedError(f"{model.definition.module}: training.fixed_batch is true, and {why}")


def _cut(parts: Sequence[ByHead], start: tf.Tensor, end: tf.Tensor) -> list[dict[str, tf.Tensor]]:
    return [{name: values[start:end] for name, values in part.items()} for part in parts]


def _padded(size: int, parts: Sequence[ByHead], start: tf.Tensor, end: tf.Tensor) -> list[dict[str, tf.Tensor]]:
    """The last row again where there are fewer, without weight."""
    rows = start + tf.range(size)
    columns, labels, weights = (
        {
            name: tf.ensure_shape(tf.gather(values, tf.minimum(rows, end - 1)), [size, *values.shape[1:]])
            for name, values in part.items()
        }
        for part in parts
    )
    is_real = tf.cast(rows < end, tf.float32)
    return [columns, labels, {name: given * is_real for name, given in weights.items()}]
