"""28 x 28 digits to unit vectors, by Inception blocks (Szegedy et al. 2015) and triplets (Schroff et al. 2015)."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.schema import Schema

_MARGIN = 0.3


def _inception(image: Any, filters: int) -> Any:
    """Four views of one image beside each other: 1 x 1, 3 x 3, two 3 x 3, and the largest of 3 x 3."""
    layers = keras.layers
    narrow = layers.Conv2D(filters, 1, activation="relu")(image)
    wide = layers.Conv2D(filters, 3, padding="same", activation="relu")(narrow)
    wider = layers.Conv2D(filters, 3, padding="same", activation="relu")(wide)
    pooled = layers.Conv2D(filters, 1, activation="relu")(layers.MaxPooling2D(3, 1, padding="same")(image))
    return layers.MaxPooling2D(2)(layers.Concatenate()([narrow, wide, wider, pooled]))


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pixels, float32 [n, 784] from 0 to 255, to `vector`, float32 [n, dimension] of length 1, and `digit`'s logits."""
    pixels = keras.Input((784,), name="pixels")
    hidden = keras.layers.Rescaling(1 / 255)(keras.layers.Reshape((28, 28, 1))(pixels))
    hidden = keras.layers.MaxPooling2D(2)(hidden)
    for filters in parameters["branches"]:
        hidden = _inception(hidden, filters)
    vector = keras.layers.UnitNormalization(name="vector")(
        keras.layers.Dense(parameters["dimension"])(keras.layers.Flatten()(hidden))
    )
    return keras.Model(pixels, {"vector": vector, "digit": keras.layers.Dense(10)(keras.layers.Rescaling(5.0)(vector))})


def loss(labels: tf.Tensor, outputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """float32 [n]: each against its farthest like and its nearest unlike in the batch, and a little of the classes."""
    vector = outputs["vector"]
    distances = 2.0 - 2.0 * tf.matmul(vector, vector, transpose_b=True)
    is_like = labels[:, tf.newaxis] == labels[tf.newaxis, :]
    farthest = tf.reduce_max(tf.where(is_like, distances, 0.0), axis=1)
    nearest = tf.reduce_min(tf.where(is_like, 4.0, distances), axis=1)
    of_classes = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["digit"])
    return tf.nn.softplus((farthest - nearest + _MARGIN) * 4.0) + 0.3 * of_classes
