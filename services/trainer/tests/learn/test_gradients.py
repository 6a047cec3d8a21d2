"""Ids that repeat in a batch move their row as the dense gradient would, under every optimizer that Keras has."""

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.estimators.layers import EmbeddingTable
from services.trainer.learn.gradients import merge_before_apply, merged

WRAPPERS = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
OPTIMIZERS = sorted(
    name
    for name, found in vars(keras.optimizers).items()
    if inspect.isclass(found) and issubclass(found, keras.optimizers.Optimizer) and name not in WRAPPERS
)
IDS = [1, 3, 1, 1]


def trained(name: str, *, is_dense: bool, **options: Any) -> NDArray[np.float32]:
    """An estimator's table after three equal steps on a batch in which id 1 occurs three times."""
    layer = EmbeddingTable(5, 3, initializer=keras.initializers.Constant(0.5), regularizer=None, name="t", parts=1)
    (table,) = layer.trainable_variables
    optimizer = getattr(keras.optimizers, name)(learning_rate=0.1, **options)
    optimizer.build([table])
    merge_before_apply(optimizer)

    def step() -> None:
        factors = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [-1.0, 3.0, 0.5], [2.0, 2.0, 2.0]])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(IDS)[:, tf.newaxis], combiner="sum") * factors)
        gradient = tape.gradient(loss, table.value)
        assert isinstance(gradient, tf.IndexedSlices), "rows are gathered, not the whole table multiplied"
        optimizer.apply([tf.convert_to_tensor(gradient) if is_dense else gradient], [table])

    take = step if is_dense else tf.function(step)
    for _ in range(3):
        take()
    return np.asarray(table.numpy())


@pytest.mark.covers("api-embedding-lookup")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_repeated_id_moves_its_row_as_the_dense_gradient_does(name: str) -> None:
    np.testing.assert_allclose(trained(name, is_dense=False), trained(name, is_dense=True), rtol=1e-5, atol=1e-6)


def test_clipping_by_norm_sees_the_sum_of_a_row() -> None:
    options = {"global_clipnorm": 1.0}
    np.testing.assert_allclose(
        trained("SGD", is_dense=False, **options), trained("SGD", is_dense=True, **options), rtol=1e-5
    )


def test_merging_keeps_the_order_of_first_appearance_and_passes_other_gradients_on() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0], [8.0]]), tf.constant([7, 2, 7, 7]), tf.constant([9, 1]))
    once = merged(rows)
    assert isinstance(once, tf.IndexedSlices)
    assert once.indices.numpy().tolist() == [7, 2]
    assert once.values.numpy().tolist() == [[13.0], [2.0]]
    assert merged(None) is None
    dense = tf.ones(3)
    assert merged(dense) is dense
