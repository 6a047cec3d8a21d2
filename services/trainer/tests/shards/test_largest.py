"""Which entries of gradients travel, and where the others stay."""

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.shards.exchange import Alone
from services.trainer.shards.largest import Largest, Turn

_SIZES = [4, 2]
_FIRST = [[1.0, -8.0, 2.0, 0.5, 0.1, 0.3], [4.0, 1.0, -1.0, 0.0, -0.2, 0.1]]
_SECOND = [[1.5, 0.0, 0.0, 0.0, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


@tf.function
def _steps(largest: Largest, steps: tf.Tensor) -> tf.Tensor:
    """[steps, shards, 6] to their sums, [steps, 6], as a block's graph takes them."""
    count = tf.shape(steps)[0]

    def step(number: tf.Tensor, sums: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        turn = Turn(tf.equal(number, 0), tf.equal(number + 1, count))
        return number + 1, sums.write(number, largest.summed(tf.unstack(steps[number], num=2), _SIZES, turn))

    array = tf.TensorArray(tf.float32, size=count, element_shape=[6])
    return tf.while_loop(lambda number, sums: number < count, step, (tf.constant(0), array))[1].stack()


@pytest.fixture
def largest() -> Largest:
    """Of four entries the two largest travel, of two the larger one."""
    return Largest(Alone(2), 0.3)


def test_of_each_shard_and_variable_the_largest_travel_and_the_others_wait(largest: Largest) -> None:
    first, second, last = _steps(largest, tf.constant([_FIRST, _SECOND, np.zeros((2, 6))], tf.float32)).numpy()
    np.testing.assert_allclose(first, [4.0, -8.0 + 1.0, 2.0, 0.0, -0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(second, [2.5, 0.0, -1.0, 0.5, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(last, np.zeros(6), atol=1e-6)


def test_with_a_calls_last_step_everything_travels_and_the_next_call_begins_with_nothing(largest: Largest) -> None:
    sums = _steps(largest, tf.constant([_FIRST, _SECOND], tf.float32)).numpy()
    np.testing.assert_allclose(sums.sum(axis=0), np.add(_FIRST, _SECOND).sum(axis=0), rtol=1e-6)
    (alone,) = _steps(largest, tf.constant([_SECOND], tf.float32)).numpy()
    np.testing.assert_allclose(alone, np.sum(_SECOND, axis=0), rtol=1e-6)


def test_what_is_not_finite_travels_in_its_own_step(largest: Largest) -> None:
    steps = np.array([_FIRST, _SECOND], np.float32)
    steps[0, 0, 3] = np.nan
    assert np.isnan(_steps(largest, tf.constant(steps)).numpy()[0, 3])
