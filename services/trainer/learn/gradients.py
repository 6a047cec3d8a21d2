"""Gradients as an optimizer may take them.

The gradient of a lookup is `tf.IndexedSlices` with one row per looked-up id: an id that occurs n times in a batch has n
rows. Keras 3 squares such rows before it adds them up: Adam's second moment then is the sum of squares where it should
be the square of the sum, and the row moves about sqrt(n) times too far. So equal ids are added up first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from services.trainer.families.reasons import DefinitionFailedError

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def merged(gradient: Gradient) -> Gradient:
    """IndexedSlices with each index once, in the order of first appearance; anything else as it is.

    Rows of one index are added in the order of the batch, so equal batches give equal bits.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(rows, indices, gradient.dense_shape)


def _whole(gradient: Gradient) -> Gradient:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def merge_before_apply(optimizer: keras.optimizers.Optimizer) -> None:
    """Has every way into the optimizer merge first: `apply` is what apply_gradients and a user's train_step end in.

    Keras adds accumulated gradients, divides scaled ones and cuts values off only where they are whole tensors.
    """
    apply = optimizer.apply
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    whole = bool(inner.gradient_accumulation_steps or optimizer.loss_scale_factor or inner.clipvalue)
    ready = _whole if whole or inner is not optimizer else merged

    def merging(
        grads: Sequence[Gradient], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> tf.Tensor | None:
        return apply([ready(gradient) for gradient in grads], trainable_variables)

    optimizer.apply = merging


def checked(loss: tf.Tensor, tensors: list[Any]) -> tf.Tensor:
    """The loss, or NaN where any of the tensors holds a value that is not finite (or values beyond any sum)."""
    sums = [tf.reduce_sum(tf.cast(getattr(tensor, "values", tensor), tf.float32)) for tensor in tensors]
    return tf.where(tf.math.is_finite(tf.add_n([tf.zeros([]), *sums])), loss, tf.constant(float("nan")))


@contextmanager
def taught_by_gradients_alone(variables: Sequence[keras.Variable], shards: int) -> Iterator[None]:
    """A layer that assigns its own weights when it is called would do so once for each shard that a process has."""
    assigned = list[str]()
    for variable in variables:
        variable.assign = lambda *_, path=variable.path: assigned.append(path)
    try:
        yield
    finally:
        for variable in variables:
            del variable.assign
    if assigned:
        raise DefinitionFailedError(
            f"a layer assigns {assigned[0]} when it is called, as keras.layers.SpectralNormalization does, and "
            f"training.shards is {shards}: each shard would do so again; leave shards out, or take local_steps"
        )
