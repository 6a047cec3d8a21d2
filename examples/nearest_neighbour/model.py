"""Digits by their nearest neighbours.

Neighbours are not learned by gradients: `before_step` writes every batch into variables of the network, so that they
are in checkpoints, rebuilds and exports as other weights are.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.schema import Schema

_PIXELS, _CLASSES = 64, 10


@keras.saving.register_keras_serializable("nearest_neighbour")
class Neighbours(keras.layers.Layer):
    """A ring of the latest examples; logits are the log of the share of each class among the nearest."""

    def __init__(self, capacity: int, nearest: int) -> None:
        super().__init__()
        self.nearest = nearest
        self.seen = self._kept((), "seen")
        self.pixels = self._kept((capacity, _PIXELS), "pixels")
        self.classes = self._kept((capacity, _CLASSES), "classes")
        self.sharpness = self.add_weight(shape=(), initializer="ones", name="sharpness")

    def _kept(self, shape: tuple[int, ...], name: str) -> keras.Variable:
        return self.add_weight(shape=shape, initializer="zeros", trainable=False, name=name)

    def call(self, pixels: tf.Tensor) -> tf.Tensor:
        ring = tf.convert_to_tensor(self.pixels)
        distances = tf.reduce_sum(ring**2, axis=1) - 2 * tf.matmul(pixels, ring, transpose_b=True)
        is_empty = tf.cast(tf.range(tf.shape(ring)[0]), tf.float32) >= self.seen
        distances = tf.where(is_empty[tf.newaxis, :], 1e9, distances)
        _, places = tf.math.top_k(-distances, self.nearest)
        votes = tf.reduce_mean(tf.gather(tf.convert_to_tensor(self.classes), places), axis=1)
        return self.sharpness * tf.math.log(votes + 0.01)

    def remember(self, pixels: tf.Tensor, labels: tf.Tensor) -> None:
        count, capacity = tf.shape(pixels)[0], self.pixels.shape[0]
        places = (tf.cast(self.seen, tf.int32) + tf.range(count)) % capacity
        rows = places[:, tf.newaxis]
        self.pixels.assign(tf.tensor_scatter_nd_update(tf.convert_to_tensor(self.pixels), rows, pixels))
        classes = tf.one_hot(labels, _CLASSES)
        self.classes.assign(tf.tensor_scatter_nd_update(tf.convert_to_tensor(self.classes), rows, classes))
        self.seen.assign_add(tf.cast(count, tf.float32))


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pixels, float32 [n, 64] from 0 to 16, to the logits of ten digits."""
    pixels = keras.Input((_PIXELS,), name="pixels")
    return keras.Model(pixels, Neighbours(parameters["capacity"], parameters["nearest"])(pixels))


def before_step(run: Any, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> None:
    """Every batch is remembered."""
    for layer in run.network.layers:
        if isinstance(layer, Neighbours):
            layer.remember(features["pixels"], labels)
