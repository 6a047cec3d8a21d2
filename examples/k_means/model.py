"""Digits put into clusters by k-means."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.schema import Schema

_PIXELS = 64


@keras.saving.register_keras_serializable("k_means")
class Centres(keras.layers.Layer):
    """The nearest of k centres; under the squared error its gradient is online k-means (Bottou and Bengio 1995)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.has_begun = self.add_weight(shape=(), initializer="zeros", trainable=False, name="has_begun")
        self.centres = self.add_weight(shape=(count, _PIXELS), initializer="zeros", name="centres")

    def call(self, pixels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        centres = tf.convert_to_tensor(self.centres)
        distances = tf.reduce_sum(centres**2, axis=1) - 2 * tf.matmul(pixels, centres, transpose_b=True)
        nearest = tf.argmin(distances, axis=1)
        return tf.gather(centres, nearest), nearest

    def remember(self, pixels: tf.Tensor, labels: tf.Tensor) -> None:
        """The first batch is where the centres begin: each is an example."""
        centres = tf.convert_to_tensor(self.centres)
        begun = tf.concat([pixels, centres], axis=0)[: centres.shape[0]]
        self.centres.assign(tf.where(self.has_begun > 0, centres, begun))
        self.has_begun.assign(1.0)


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pixels, float32 [n, 64] from 0 to 16, to the nearest centre."""
    pixels = keras.Input((_PIXELS,), name="pixels")
    centre, cluster = Centres(parameters["clusters"])(pixels)
    return keras.Model(pixels, {"pixels": centre, "cluster": cluster})


def before_step(run: Any, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> None:
    """Only the first batch is remembered."""
    for layer in run.network.layers:
        if isinstance(layer, Centres):
            layer.remember(features["pixels"], labels)
