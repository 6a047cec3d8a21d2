"""Local steps against the same arithmetic by hand."""

from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.shards.exchange import Combine, Exchange
from services.trainer.shards.local_steps import LocalSteps


class _Counted(Exchange):
    exchanges = 0

    def combined(self, rows: Sequence[tf.Tensor], combine: Combine, carried: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        self.exchanges += 1
        return super().combined(rows, combine, carried)


@pytest.mark.covers("dist-bsp")
def test_each_shard_steps_alone_and_the_mean_counts_its_rows() -> None:
    place, rate, steps = (
        keras.Variable(1.0),
        keras.Variable(0.1, name="learning_rate"),
        keras.Variable(0, dtype="int64"),
    )
    batches = [[1.0, 2.0, 9.0], [4.0]]  # the second leaves the second shard without a row
    exchange = _Counted(2)

    def take_step(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss = tf.reduce_mean(rows) * place.value
        place.assign(place.value - rate.value * tf.reduce_mean(rows) * place.value)
        steps.assign_add(1)
        return tf.identity(loss), tf.zeros([])

    @tf.function
    def superstep() -> tf.Tensor:
        ragged = tf.ragged.constant(batches, tf.float32)
        local = LocalSteps(exchange, [place, rate, steps], 3)
        return local.superstep(take_step, lambda n: [ragged[n]], tf.constant(0), tf.constant(2))

    losses = superstep().numpy()
    first = 1.0 * (1 - 0.1 * 1.5)
    second = 1.0 * (1 - 0.1 * 9.0)
    alone = first * (1 - 0.1 * 4.0)
    np.testing.assert_allclose(losses[:, 0], [2 / 3 * 1.5 + 1 / 3 * 9.0, 4.0 * first, 0.0], rtol=1e-6)
    np.testing.assert_allclose(place.numpy(), (3 * alone + 1 * second) / 4, rtol=1e-6)
    assert (steps.numpy(), rate.numpy()) == (2, np.float32(0.1))
    assert exchange.exchanges == 1, "once for a superstep, however many steps it has"
