"""A trunk of convolutions and a head, over images that the export decodes."""

from collections.abc import Mapping
from typing import Any

import keras

from common.schema import Schema


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """image, float32 [n, 16, 16, 1] from 0 to 1, to the logits of ten digits, float32 [n, 10]."""
    image = keras.Input((16, 16, 1), name="image")
    trunk = keras.Sequential(
        [
            keras.layers.Conv2D(12, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(24, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(24, "relu"),
        ],
        name="trunk",
    )
    return keras.Model(image, keras.layers.Dense(10, name="head")(trunk(image)))
