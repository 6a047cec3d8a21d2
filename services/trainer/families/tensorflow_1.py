"""What a model_fn of TensorFlow 1's handbooks calls: `tf.compat.v1.layers`, `tf.compat.v1.metrics`, `tf.estimator`,
`minimize(loss, global_step)`.

TensorFlow 2 keeps the optimizers and metrics of compat.v1 for graphs of its own, and no layers and no estimators.
Within a call of the function, layers and metrics are Keras's, and gradients are those of the call's tape.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from common.model_fn import EstimatorSpec, ModeKeys, RunConfig

_LAYERS: Mapping[str, str] = {
    "average_pooling1d": "AveragePooling1D", "average_pooling2d": "AveragePooling2D",
    "average_pooling3d": "AveragePooling3D", "batch_normalization": "BatchNormalization", "conv1d": "Conv1D",
    "conv2d": "Conv2D", "conv2d_transpose": "Conv2DTranspose", "conv3d": "Conv3D",
    "conv3d_transpose": "Conv3DTranspose", "dense": "Dense", "dropout": "Dropout", "flatten": "Flatten",
    "max_pooling1d": "MaxPooling1D", "max_pooling2d": "MaxPooling2D", "max_pooling3d": "MaxPooling3D",
    "separable_conv1d": "SeparableConv1D", "separable_conv2d": "SeparableConv2D",
}  # fmt: skip
_COMPARED: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "accuracy": lambda labels, predictions: tf.equal(labels, tf.cast(predictions, labels.dtype)),
    "mean_absolute_error": lambda labels, predictions: tf.abs(predictions - tf.cast(labels, predictions.dtype)),
    "mean_squared_error": lambda labels, predictions: tf.square(predictions - tf.cast(labels, predictions.dtype)),
}
"""Metrics that are the mean of these values: Keras's of these names would average over batches of any size."""
_OF_BOOLEANS = ("false_negatives", "false_positives", "precision", "recall", "true_negatives", "true_positives")
_METRICS: Mapping[str, str] = {
    "auc": "AUC", "false_negatives": "FalseNegatives", "false_positives": "FalsePositives", "precision": "Precision",
    "recall": "Recall", "root_mean_squared_error": "RootMeanSquaredError", "true_negatives": "TrueNegatives",
    "true_positives": "TruePositives",
}  # fmt: skip
_ESTIMATORS = SimpleNamespace(
    EstimatorSpec=EstimatorSpec, ModeKeys=ModeKeys, RunConfig=RunConfig,
    export=SimpleNamespace(PredictOutput=lambda outputs: SimpleNamespace(outputs=outputs)),
)  # fmt: skip


@contextmanager
def tensorflow_1(tape: tf.GradientTape | None, variables: Mapping[str, tf.Variable]) -> Iterator[None]:
    """Args:
    tape: persistent, records what the function computes; None in modes that train nothing, where optimizers do nothing.
    variables: those that the function has asked for, as the call goes on.
    """

    def compute_gradients(
        optimizer: Any, loss: tf.Tensor, var_list: Any = None, *_: Any, grad_loss: Any = None, **unused: Any
    ) -> list[tuple[Any, tf.Variable]]:
        assert tape is not None
        chosen = list(var_list or [variable for variable in variables.values() if variable.trainable])
        with tape.stop_recording():
            return list(zip(tape.gradient(loss, chosen, output_gradients=grad_loss), chosen, strict=True))

    @cache
    def global_step() -> tf.Variable:
        return tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")

    idle: dict[str, Any] = dict.fromkeys(("minimize", "compute_gradients", "apply_gradients"), lambda *_, **__: [])
    taught: dict[str, Any] = {"compute_gradients": compute_gradients} if tape is not None else idle
    layers = {name: _functional(name, getattr(keras.layers, layer)) for name, layer in _LAYERS.items()}
    steps: dict[str, Any] = dict.fromkeys(("get_global_step", "get_or_create_global_step"), global_step)
    names = ("mean", *_COMPARED, *_METRICS)
    metrics: dict[str, Any] = {name: _unmeasured if tape is not None else _metric(name) for name in names}
    with (
        patch.object(tf, "estimator", _ESTIMATORS, create=True),
        patch.object(tf.compat.v1, "estimator", _ESTIMATORS, create=True),
        patch.multiple(tf.compat.v1.metrics, **metrics),
        patch.multiple(tf.compat.v1.train, **steps),
        patch.multiple(tf.compat.v1.train.Optimizer, **taught),
        patch.dict(vars(tf.compat.v1.layers), layers),
    ):
        yield


def _functional(name: str, layer: Callable[..., Any]) -> Callable[..., tf.Tensor]:
    takes_training = name in ("dropout", "batch_normalization")

    def call(inputs: tf.Tensor, *arguments: Any, training: Any = False, **named: Any) -> tf.Tensor:
        if name == "dropout" and not arguments:
            named.setdefault("rate", 0.5)
        made = layer(*arguments, **named)
        return made(inputs, training=training) if takes_training else made(inputs)

    return call


def _unmeasured(*_: Any, **__: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """A metric in mode train, which counts nothing: its variables would be the model's."""
    return tf.constant(float("nan")), tf.constant(float("nan"))


def _metric(kind: str) -> Callable[..., tuple[keras.metrics.Metric, tf.Tensor]]:
    """Of compat.v1's signature; gives the Keras metric, updated, where compat.v1 has a value, and its value so far
    where that has an update."""

    def mean(values: tf.Tensor, weights: Any = None, **_: Any) -> tuple[keras.metrics.Metric, tf.Tensor]:
        metric = keras.metrics.Mean(name=kind)
        metric.update_state(tf.cast(values, tf.float32), weights)
        return metric, metric.result()

    def compared(
        labels: Any, predictions: Any, weights: Any = None, *, metrics_collections: Any = None,
        updates_collections: Any = None, name: Any = None, **options: Any,
    ) -> tuple[keras.metrics.Metric, tf.Tensor]:  # fmt: skip
        labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
        if kind in _COMPARED:
            return mean(_COMPARED[kind](labels, predictions), weights, **options)
        if kind in _OF_BOOLEANS:
            labels, predictions = tf.cast(labels, tf.bool), tf.cast(predictions, tf.bool)
        metric = getattr(keras.metrics, _METRICS[kind])(**options)
        metric.update_state(tf.cast(labels, tf.float32), tf.cast(predictions, tf.float32), weights)
        return metric, metric.result()

    return mean if kind == "mean" else compared
