"""Activations, initializers and regularizers that a definition names, as Keras makes them."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from common.definition.keras_names import ACTIVATIONS, INITIALIZERS, REGULARIZERS, Named
from services.trainer.families.estimators.layers import Regularizer


def activation_of(named: Named) -> Callable[[Any], tf.Tensor]:
    function = getattr(keras.activations, ACTIVATIONS[named.name].keras_name)
    if not named.options:
        return function
    return lambda values: function(values, **named.options)


def initializer_of(named: Named) -> keras.initializers.Initializer:
    """Its draws follow from the round's seed, as those of every layer."""
    return getattr(keras.initializers, INITIALIZERS[named.name].keras_name)(**named.options)


def regularizer_of(named: Named | None, other: Regularizer) -> Regularizer:
    """The named one and the other, added up."""
    if named is None:
        return other
    found = getattr(keras.regularizers, REGULARIZERS[named.name].keras_name)(**named.options)
    return found if other is None else _Sum(found, other)


class _Sum(keras.regularizers.Regularizer):
    def __init__(self, *parts: keras.regularizers.Regularizer) -> None:
        self._parts = parts

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        return tf.add_n([part(values) for part in self._parts])
