"""An autoencoder: 28 x 28 digits through 24 numbers and back, learned without labels."""

from collections.abc import Mapping
from typing import Any

import keras

from common.schema import Schema


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """`pixels`, float32 [n, 784] from 0 to 255, given back; beside it `code`, float32 [n, code_units], is served."""
    pixels = keras.Input(schema.seen_shape(schema.feature("pixels")), name="pixels")
    hidden = keras.layers.Dense(parameters["hidden_units"], "relu")(keras.layers.Rescaling(1 / 255)(pixels))
    code = keras.layers.Dense(parameters["code_units"], activity_regularizer=keras.regularizers.L2(1e-4), name="code")
    coded = code(hidden)
    again = keras.layers.Dense(parameters["hidden_units"], "relu")(coded)
    drawn = keras.layers.Rescaling(255)(keras.layers.Dense(784, "sigmoid")(again))
    return keras.Model(pixels, {"pixels": drawn, "code": coded})
