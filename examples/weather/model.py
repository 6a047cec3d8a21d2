"""A recurrent network that reads the hours forwards and backwards, for two heads."""

from collections.abc import Mapping
from typing import Any

import keras

from common.schema import Schema


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """hours, float32 [n, steps, 5], to `warmth` (°F, as a change of the last hour's) and the logit of `rain`."""
    hours = keras.Input((None, 5), name="hours")
    mask = keras.Input((None,), dtype="bool", name="hours.mask")
    hour = keras.Input((), dtype="int64", name="hour")
    now = keras.Input((), name="temperature")
    steps = keras.layers.Rescaling([1 / 20, 1 / 20, 1 / 25, 1 / 8, 1 / 8], [-2.5, -2, -2.5, 0, -1])(hours)
    read = keras.layers.Bidirectional(keras.layers.GRU(parameters["units"]))(steps, mask=mask)
    clock = keras.layers.Embedding(24, 4)(hour)
    known = keras.layers.Dense(24, "relu")(keras.layers.Concatenate()([read, clock]))
    change = keras.layers.Dense(1)(known)
    warmth = keras.layers.Add(name="warmth")([keras.layers.Reshape((1,))(now), change])
    return keras.Model([hours, mask, hour, now], {"warmth": warmth, "rain": keras.layers.Dense(1)(known)})
