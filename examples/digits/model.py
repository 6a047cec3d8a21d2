"""A small convolutional network over 28 x 28 digits."""

from collections.abc import Mapping
from typing import Any

import keras

from common.schema import Schema


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pixels, float32 [n, 784] from 0 to 255, to the logits of ten digits, float32 [n, 10]."""
    classes = int(schema.feature("digit").maximum or 0) + 1
    pixels = keras.Input(shape=(784,), name="pixels", dtype="float32")
    image = keras.layers.Reshape((28, 28, 1), name="image")(pixels)
    hidden = keras.layers.Rescaling(1.0 / 255.0, name="scale")(image)
    # In training only: a few digits go a long way when none is seen twice in the same place.
    hidden = keras.layers.RandomTranslation(0.08, 0.08, fill_mode="constant", name="shift")(hidden)
    hidden = keras.layers.RandomRotation(0.03, fill_mode="constant", name="turn")(hidden)
    for index, filters in enumerate(parameters["filters"]):
        hidden = keras.layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv_{index}")(hidden)
        hidden = keras.layers.MaxPooling2D(2, name=f"pool_{index}")(hidden)
    hidden = keras.layers.Flatten(name="flat")(hidden)
    hidden = keras.layers.Dense(parameters["hidden_units"], activation="relu", name="hidden")(hidden)
    hidden = keras.layers.Dropout(parameters["dropout"], name="dropout")(hidden)
    return keras.Model(pixels, keras.layers.Dense(classes, name="logits")(hidden), name="digits")
