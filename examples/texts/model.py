"""Words by their vectors: TextVectorization learns the words in the first round and is part of the export."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.schema import Schema


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """text, string [n], to the logits of the packages, float32 [n, packages]."""
    text = keras.Input((), dtype="string", name="text")
    words = keras.layers.TextVectorization(
        max_tokens=parameters["words"], output_sequence_length=parameters["length"], name="words"
    )(text)
    vectors = keras.layers.Embedding(parameters["words"], parameters["dimension"])(words)
    hidden = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling1D()(vectors))
    return keras.Model(text, keras.layers.Dense(len(schema.feature("package").vocabulary or ()))(hidden))


def adapt(network: keras.Model, dataset: tf.data.Dataset) -> None:
    network.get_layer("words").adapt(dataset.map(lambda batch: batch["text"]))
