"""Digits by a linear machine, by their nearest neighbours, by a random forest, or put into clusters by k-means.

Neighbours and leaves are not learned by gradients: `before_step` writes every batch into variables of the network, so
that they are in checkpoints, rebuilds and exports as other weights are.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.schema import Schema

_PIXELS, _CLASSES = 64, 10


@keras.saving.register_keras_serializable("classic")
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


@keras.saving.register_keras_serializable("classic")
class Forest(keras.layers.Layer):
    """Trees whose splits are drawn beforehand and whose leaves count classes (random ferns, Özuysal et al. 2010)."""

    def __init__(self, trees: int, depth: int) -> None:
        super().__init__()
        draw = np.random.default_rng(7)
        self._splits = draw.integers(0, _PIXELS, (trees, depth))
        self._limits = draw.uniform(1, 15, (trees, depth)).astype(np.float32)
        self.leaves = self.add_weight(
            shape=(trees, 2**depth, _CLASSES), initializer="ones", trainable=False, name="leaves"
        )
        self.sharpness = self.add_weight(shape=(), initializer="ones", name="sharpness")

    def _leaf_of(self, pixels: tf.Tensor) -> tf.Tensor:
        """int64 [n, trees]."""
        is_above = tf.gather(pixels, self._splits, axis=1) > self._limits
        return tf.reduce_sum(tf.cast(is_above, tf.int64) * 2 ** np.arange(self._splits.shape[1]), axis=2)

    def call(self, pixels: tf.Tensor) -> tf.Tensor:
        counts = tf.convert_to_tensor(self.leaves)
        trees = tf.range(counts.shape[0], dtype=tf.int64)
        found = self._leaf_of(pixels)
        counted = tf.gather_nd(counts, tf.stack([tf.broadcast_to(trees, tf.shape(found)), found], axis=2))
        shares = counted / tf.reduce_sum(counted, axis=2, keepdims=True)
        return self.sharpness * tf.reduce_mean(tf.math.log(shares), axis=1)

    def remember(self, pixels: tf.Tensor, labels: tf.Tensor) -> None:
        found = self._leaf_of(pixels)
        trees = tf.broadcast_to(tf.range(found.shape[1], dtype=tf.int64), tf.shape(found))
        classes = tf.broadcast_to(tf.cast(labels, tf.int64)[:, tf.newaxis], tf.shape(found))
        rows = tf.reshape(tf.stack([trees, found, classes], axis=2), [-1, 3])
        ones = tf.ones(tf.shape(rows)[0])
        self.leaves.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(self.leaves), rows, ones))


@keras.saving.register_keras_serializable("classic")
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
    """pixels, float32 [n, 64] from 0 to 16, to the logits of ten digits; k_means: to the nearest centre."""
    pixels = keras.Input((_PIXELS,), name="pixels")
    method = parameters["method"]
    if method == "k_means":
        centre, cluster = Centres(16)(pixels)
        return keras.Model(pixels, {"pixels": centre, "cluster": cluster})
    if method == "linear":
        return keras.Model(pixels, keras.layers.Dense(_CLASSES)(keras.layers.Rescaling(1 / 16)(pixels)))
    layer = Neighbours(4096, 5) if method == "nearest_neighbour" else Forest(200, 8)
    return keras.Model(pixels, layer(pixels))


def before_step(run: Any, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> None:
    """Every batch is remembered, by a clustering only the first."""
    for layer in run.network.layers:
        if isinstance(layer, Neighbours | Forest | Centres):
            layer.remember(features["pixels"], labels)
