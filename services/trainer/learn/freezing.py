"""Which variables of a network learn, and how fast: `training.frozen` and `training.learning_rates`."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from common.definition.training import is_meant
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.keras_internals import decay_by, decays, layers_of, place_of, taught_by


def freeze(network: keras.Model, patterns: Sequence[str]) -> None:
    """Takes the variables that a pattern means out of training; gradients and slots are only for the others.

    A layer all of whose variables are meant is frozen as a layer: batch normalisation then keeps its moving statistics
    and normalises with them. Raises DefinitionFailedError: a pattern means no variable."""
    _check(patterns, network.variables, "frozen")
    for variable in _meant(network.variables, patterns):
        variable.trainable = False
    for layer in layers_of(network):
        own = layer.variables
        if patterns and own and len(_meant(own, patterns)) == len(own):
            layer.trainable = False


def rate_factors(variables: Iterable[keras.Variable], factors: Mapping[str, float]) -> dict[str, float]:
    """{path: factor} of the variables that a pattern means. Raises DefinitionFailedError: a pattern means no variable
    that learns."""
    variables = list(variables)
    _check(factors, variables, "learning_rates")
    found = {v.path: next((f for p, f in factors.items() if is_meant(v.path, p)), None) for v in variables}
    return {path: factor for path, factor in found.items() if factor is not None}


def scale_rates(optimizer: keras.optimizers.Optimizer, factors: Mapping[str, float]) -> None:
    """Has the optimizer move these variables, and decay their weights, at its rate times their factor.

    A factor on the gradient would do nothing under Adam and its kin, which divide by its size.
    """
    if not factors:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    update = inner.update_step

    def update_scaled(gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        path = taught_by(inner)[place_of(inner, variable)].path
        factor = factors.get(path)
        update(gradient, variable, learning_rate if factor is None else learning_rate * factor)

    def decay(variables: Iterable[keras.Variable]) -> None:
        if inner.weight_decay is None:
            return
        for variable in variables:
            if decays(inner, variable):
                share = inner.weight_decay * tf.cast(inner.learning_rate, tf.float32) * factors.get(variable.path, 1.0)
                variable.value.assign_sub(variable.value * tf.cast(share, variable.dtype))

    inner.update_step = update_scaled
    decay_by(inner, decay)


def _meant(variables: Iterable[keras.Variable], patterns: Sequence[str]) -> list[keras.Variable]:
    return [variable for variable in variables if any(is_meant(variable.path, pattern) for pattern in patterns)]


def _check(patterns: Collection[str], variables: Sequence[keras.Variable], key: str) -> None:
    for pattern in patterns:
        if not _meant(variables, [pattern]):
            raise DefinitionFailedError(
                f"training: {key} names {pattern!r}, which means none of the model's variables: "
                f"{', '.join(sorted(variable.path for variable in variables))}"
            )
