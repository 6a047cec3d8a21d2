"""The definition's optimizer as Keras's, with a learning rate that follows the global step across rounds."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from common.definition.keras_names import OPTIMIZERS, SCHEDULES
from common.definition.learning_rate import LearningRate
from common.definition.training import Optimizer


def make_optimizer(spec: Optimizer) -> keras.optimizers.Optimizer:
    """Not yet built. Its `iterations` is the global step."""
    kind: Callable[..., keras.optimizers.Optimizer] = getattr(keras.optimizers, OPTIMIZERS[spec.name].keras_name)
    options: dict[str, Any] = dict(spec.options)
    if spec.clip_norm is not None:
        options["global_clipnorm"] = spec.clip_norm
    return kind(learning_rate=_Schedule(spec.learning_rate), name=spec.name, **options)


def slots_by_path(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """Every variable of a built optimizer: <optimizer>/<variable's path with _ for />_<slot>.

    Adafactor gives the slots of a variable, and of any other of its name, one path; they are told apart here by the
    lists that it keeps them in.
    """
    by_attribute = {
        id(slot): f"{optimizer.name}/{owner.path.replace('/', '_')}_{attribute.strip('_')}"
        for attribute, slots in vars(optimizer).items()
        if isinstance(slots, list) and len(slots) == len(optimizer._trainable_variables)
        for owner, slot in zip(optimizer._trainable_variables, slots, strict=True)
        if isinstance(slot, keras.Variable)
    }
    shared = {path for path, count in Counter(slot.path for slot in optimizer.variables).items() if count > 1}
    return {
        by_attribute.get(id(slot), slot.path) if slot.path in shared else slot.path: slot
        for slot in optimizer.variables
    }


def rate_at(rate: LearningRate, step: tf.Tensor) -> tf.Tensor:
    """float32 scalar: the formulas of common/definition/learning_rate.py."""
    step = tf.cast(step, tf.float32)
    if rate.warmup is None:
        return _scheduled(rate, step)
    warmup_steps, start = float(rate.warmup.steps), rate.warmup.start
    first = _scheduled(rate, tf.zeros([], tf.float32))
    rising = start + (first - start) * (step / warmup_steps)
    return tf.where(step < warmup_steps, rising, _scheduled(rate, tf.maximum(step - warmup_steps, 0.0)))


def _scheduled(rate: LearningRate, step: tf.Tensor) -> tf.Tensor:
    if rate.schedule in SCHEDULES:
        schedule = getattr(keras.optimizers.schedules, SCHEDULES[rate.schedule].keras_name)(**rate.options)
        return tf.cast(schedule(step), tf.float32)
    if rate.schedule == "sequence":
        return _in_turn(rate, step)
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


def _in_turn(rate: LearningRate, step: tf.Tensor) -> tf.Tensor:
    end = float(sum(part.steps for part in rate.parts))
    found = _scheduled(rate.parts[-1], tf.maximum(step - end, 0.0))
    for part in reversed(rate.parts[:-1]):
        end -= float(part.steps)
        found = tf.where(step < end + part.steps, _scheduled(part, tf.maximum(step - end, 0.0)), found)
    return found


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Always a schedule, also for a constant rate: so the optimizer has the same variables either way."""

    def __init__(self, rate: LearningRate) -> None:
        super().__init__()
        self._rate = rate

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return rate_at(self._rate, step)
