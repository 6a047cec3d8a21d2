"""The definition's optimizer as Keras's, with a learning rate that follows the global step across rounds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.keras_names import OPTIMIZERS, SCHEDULES
from common.definition.learning_rate import LearningRate
from common.definition.training import Training
from services.trainer.families.port import Losses
from services.trainer.keras_internals import averages_of, calls_of, clip_by, momentums_of, own_variables, taught_by


def make_optimizer(training: Training, *, name: str = "") -> keras.optimizers.Optimizer:
    """Not yet built. Its `iterations` is the global step; float16 is trained under Keras's own scaling of the loss.

    `name`: in place of that of its kind.
    """
    spec = training.optimizer
    kind: Callable[..., keras.optimizers.Optimizer] = getattr(keras.optimizers, OPTIMIZERS[spec.name].keras_name)
    options: dict[str, Any] = dict(spec.options)
    if spec.clip_norm is not None:
        options["global_clipnorm"] = spec.clip_norm
    optimizer = kind(learning_rate=_Schedule(spec.learning_rate), name=name or spec.name, **options)
    if spec.clip_average_norm is not None:
        limit = spec.clip_average_norm
        clip_by(optimizer, lambda gradients: [clipped_by_average(one, limit) for one in gradients])
    if training.mixed_precision == "float16":
        return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale")
    return optimizer


def inner_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that takes the steps: inside a scaling of the loss, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def clipped_by_average(gradient: Any, limit: float) -> Any:
    """The gradient, scaled down where its norm over its number of elements is above the limit; None stays None."""
    if gradient is None:
        return None
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    values = gradient.values if is_sparse else gradient
    size = tf.reduce_prod(gradient.dense_shape) if is_sparse else tf.size(values)
    average = tf.norm(values) / tf.cast(size, values.dtype)
    scaled = values * (limit / tf.maximum(average, limit))
    return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape) if is_sparse else scaled


def slots_by_path(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """Every variable of a built optimizer: <optimizer>/<variable's path with _ for />_<slot>.

    Adafactor gives the slots of a variable, and of any other of its name, one path; they are told apart here by the
    lists that it keeps them in.
    """
    inner = inner_of(optimizer)
    if inner is not optimizer:
        return {slot.path: slot for slot in own_variables(optimizer)} | slots_by_path(inner)
    by_attribute = {
        id(slot): f"{optimizer.name}/{owner.path.replace('/', '_')}_{attribute.strip('_')}"
        for attribute, slots in vars(optimizer).items()
        if isinstance(slots, list) and len(slots) == len(taught_by(optimizer))
        for owner, slot in zip(taught_by(optimizer), slots, strict=True)
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

    @property
    def constant(self) -> float | None:
        """None where the rate follows the step."""
        rate = self._rate
        return float(np.float32(rate.initial)) if rate.schedule == "constant" and rate.warmup is None else None


def constant_of(rate: object) -> float | None:
    """Of an optimizer's rate: the number that the definition gives for every step; None where it gives none."""
    return rate.constant if isinstance(rate, _Schedule) else None


Optimizers = Sequence[keras.optimizers.Optimizer]
Variables = Mapping[str, keras.Variable]


def averages_by_path(optimizers: Optimizers, variables: Variables) -> dict[str, str]:
    """Where an optimizer keeps moving averages (EMA): path of the variable to path of its average."""
    paths = {id(variable): path for path, variable in variables.items()}
    pairs = [
        (variable, average)
        for optimizer in map(inner_of, optimizers)
        if getattr(optimizer, "use_ema", False)
        for variable, average in zip(taught_by(optimizer), averages_of(optimizer), strict=True)
    ]
    return {paths[id(variable)]: paths[id(average)] for variable, average in pairs}


def copies_by_path(optimizers: Optimizers, variables: Variables) -> dict[str, str]:
    """Slots that begin as copies of a variable: path of the slot to path of the variable."""
    paths = {id(variable): path for path, variable in variables.items()}
    copies = {average: path for path, average in averages_by_path(optimizers, variables).items()}
    for optimizer in map(inner_of, optimizers):
        if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
            pairs = zip(momentums_of(optimizer), taught_by(optimizer), strict=True)
            copies |= {paths[id(slot)]: paths[id(variable)] for slot, variable in pairs}
    return copies


def batches_per_step(optimizer: keras.optimizers.Optimizer) -> int:
    return optimizer.gradient_accumulation_steps or 1


def curve_of(optimizer: keras.optimizers.Optimizer, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
    """Of the losses of the last batches: the steps, and the mean loss of the batches that each step rests on."""
    together = batches_per_step(optimizer)
    # An optimizer that has a turn now and then (a GAN's) has counted fewer steps than there were batches.
    first = max(0, int(calls_of(optimizer)) - len(losses))
    steps, firsts, counts = np.unique(
        np.arange(first, first + len(losses)) // together, return_index=True, return_counts=True
    )
    if not len(losses) or together == 1:
        return steps.astype(np.int64), losses
    return steps.astype(np.int64), (np.add.reduceat(losses, firsts) / counts).astype(np.float32)
