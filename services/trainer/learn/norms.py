"""How large gradients and updates are, per layer, in one of every `training.norms_every_steps` steps.

    gradient_norm/<layer>    Euclidean norm of the layer's gradients, before they are clipped; `all` is the whole model
    update_ratio/<layer>     norm of what the step changed over the norm of what was there; 0 where all was 0

Steps that are not measured cost one comparison.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from services.trainer.learn.gradients import merged
from services.trainer.learn.several_optimizers import SeveralOptimizers

ALL = "all"


class Norms:
    """`names`: of what `around` gives, the step first; empty where nothing is asked for."""

    def __init__(self, variables: Sequence[keras.Variable], *, every: int | None) -> None:
        self._every = every or 0
        self._groups = list(dict.fromkeys(_layer(variable) for variable in variables))
        kinds = ("gradient_norm", "update_ratio")
        groups = [ALL, *self._groups]
        self.names = ("step", *(f"{kind}/{group}" for kind in kinds for group in groups)) if self._every else ()

    @property
    def unknown(self) -> tf.Tensor:
        """What stands for a step that is not measured."""
        return tf.fill([len(self.names)], float("nan"))

    def around(
        self,
        optimizer: keras.optimizers.Optimizer | SeveralOptimizers,
        gradients: Sequence[Any],
        variables: Sequence[keras.Variable],
    ) -> tf.Tensor:
        """Has the optimizer apply the gradients; float32 [names], NaN where the step is not measured."""

        def apply() -> None:
            optimizer.apply(gradients, variables)

        if not self._every:
            apply()
            return self.unknown
        step = tf.identity(optimizer.iterations)
        return tf.cond(
            step % self._every == 0,
            lambda: self._measured(step, optimizer, apply, gradients, variables),
            lambda: self._applied(apply),
        )

    def _applied(self, apply: Callable[[], None]) -> tf.Tensor:
        apply()
        return self.unknown

    def _measured(
        self,
        step: tf.Tensor,
        optimizer: keras.optimizers.Optimizer | SeveralOptimizers,
        apply: Callable[[], None],
        gradients: Sequence[Any],
        variables: Sequence[keras.Variable],
    ) -> tf.Tensor:
        scale = optimizer.scale_loss(tf.ones([]))
        slopes = [_square_sum(merged(gradient)) / tf.square(scale) for gradient in gradients]
        before = [tf.identity(variable.value) for variable in variables]
        with tf.control_dependencies(before):
            apply()
        moved = [_square_sum(variable.value - value) for variable, value in zip(variables, before, strict=True)]
        sizes = [_square_sum(value) for value in before]
        layers = [_layer(variable) for variable in variables]
        ratios = tf.math.divide_no_nan(self._by_group(moved, layers), self._by_group(sizes, layers))
        numbers = [tf.cast(step, tf.float32)[tf.newaxis], self._by_group(slopes, layers), ratios]
        return tf.concat(numbers, axis=0)

    def _by_group(self, squares: Sequence[tf.Tensor], layers: Sequence[str]) -> tf.Tensor:
        """float32 [1 + groups]: roots of the sums over all, and over each layer."""
        sums = [
            tf.add_n([tf.zeros([]), *(square for square, layer in zip(squares, layers, strict=True) if layer == group)])
            for group in self._groups
        ]
        return tf.sqrt(tf.stack([tf.add_n([tf.zeros([]), *sums]), *sums]))


def _layer(variable: keras.Variable) -> str:
    return str(variable.path.rpartition("/")[0] or variable.path)


def _square_sum(value: Any) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(getattr(value, "values", value), tf.float32)))
