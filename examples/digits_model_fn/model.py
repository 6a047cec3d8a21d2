"""A convolutional network over 28 x 28 digits as a model_fn."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.model_fn import EstimatorSpec, ModeKeys


def model_fn(
    features: Mapping[str, tf.Tensor], labels: tf.Tensor | None, mode: str, params: Mapping[str, Any]
) -> EstimatorSpec:
    """pixels, float32 [n, 784] from 0 to 255, to the logits of ten digits, float32 [n, 10]."""
    is_training = mode == ModeKeys.TRAIN
    image = tf.reshape(features["pixels"] / 255.0, [-1, 28, 28, 1])
    hidden = keras.layers.Conv2D(params["filters"], 3, padding="same", activation="relu")(image)
    hidden = keras.layers.MaxPooling2D(4)(hidden)
    hidden = keras.layers.Dense(params["hidden_units"], activation="relu")(keras.layers.Flatten()(hidden))
    hidden = keras.layers.Dropout(params["dropout"])(hidden, training=is_training)
    logits = keras.layers.Dense(10)(hidden)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, {"logits": logits}, export_outputs={"top3": {"digits": tf.math.top_k(logits, 3)[1]}})
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if is_training:
        return EstimatorSpec(
            mode, loss=tf.reduce_mean(losses), optimizer=keras.optimizers.Adam(params["learning_rate"])
        )
    top3 = keras.metrics.SparseTopKCategoricalAccuracy(3)
    top3.update_state(labels, logits)
    return EstimatorSpec(mode, loss=tf.reduce_mean(losses), eval_metric_ops={"top3": top3})
