"""The definition's optimizer as Keras's, with a learning rate that follows the global step across rounds."""

from collections.abc import Callable

import keras
import tensorflow as tf

from common.definition.training import OPTIMIZERS, LearningRate, Optimizer


def make_optimizer(spec: Optimizer) -> keras.optimizers.Optimizer:
    """Not yet built. Its `iterations` is the global step."""
    kind: Callable[..., keras.optimizers.Optimizer] = getattr(keras.optimizers, OPTIMIZERS[spec.name].keras_class)
    return kind(
        learning_rate=_Schedule(spec.learning_rate), global_clipnorm=spec.clip_norm, name=spec.name, **spec.options
    )


def rate_at(rate: LearningRate, step: tf.Tensor) -> tf.Tensor:
    """float32 scalar: the formulas of common/definition/training.py."""
    step = tf.cast(step, tf.float32)
    initial = tf.constant(rate.initial, tf.float32)
    if rate.schedule == "constant":
        return initial
    progress = step / float(rate.decay_steps)
    if rate.schedule == "exponential":
        return initial * tf.pow(rate.decay_rate, progress)
    if rate.schedule == "inverse_time":
        return initial / (1.0 + rate.decay_rate * progress)
    share = 0.5 * (1.0 + tf.cos(tf.constant(3.141592653589793) * tf.minimum(progress, 1.0)))
    return initial * (rate.floor + (1.0 - rate.floor) * share)


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Always a schedule, also for a constant rate: so the optimizer has the same variables either way."""

    def __init__(self, rate: LearningRate) -> None:
        super().__init__()
        self._rate = rate

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return rate_at(self._rate, step)
