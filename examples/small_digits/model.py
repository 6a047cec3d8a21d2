"""8 x 8 digits by three networks: a softmax, dense layers, a convolution."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from common.schema import Schema

_HIDDEN: Mapping[str, Callable[[], list[Any]]] = {
    "softmax": list,
    "dense": lambda: [keras.layers.Dense(64, "relu"), keras.layers.Dense(32, "relu")],
    "convolution": lambda: [
        keras.layers.Reshape((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
    ],
}


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pixels, float32 [n, 64] from 0 to 16, to the logits of ten digits, float32 [n, 10]."""
    pixels = keras.Input((64,), name="pixels")
    hidden = keras.layers.Rescaling(1 / 16)(pixels)
    for layer in _HIDDEN[parameters["network"]]():
        hidden = layer(hidden)
    return keras.Model(pixels, keras.layers.Dense(10, name="logits")(hidden))
