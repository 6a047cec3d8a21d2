"""`training.quantize_aware`: layers compute as if their kernels and inputs had 8 bits, so that the network learns to.

TensorFlow's own fake-quantisation operations round to 8 bits and pass the gradient through (Jacob and others:
Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018). They are part of
what is exported; LiteRT's converter takes its int8 ranges from them. A kernel's range is symmetric and its own; that of
an input is a moving mean of the least and greatest value of each batch, which is part of the checkpoint.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.keras_internals import is_training, kernel_of, layers_of, taking_state

_LAYERS = (keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.DepthwiseConv2D)
_MOMENTUM = 0.99
_STATE = "quantized_range"


def make_aware(network: keras.Model, place: str) -> None:
    """Has every dense and convolutional layer of the network compute so. Raises DefinitionFailedError: there is
    none."""
    layers = [layer for layer in layers_of(network) if isinstance(layer, _LAYERS)]
    if not layers:
        raise DefinitionFailedError(f"{place}: training.quantize_aware is true, and no layer is dense or a convolution")
    for layer in layers:
        with taking_state(layer):
            seen = layer.add_weight(name=_STATE, shape=(3,), initializer="zeros", trainable=False, dtype="float32")
        seen.assign([-1.0, 1.0, 0.0])
        _wrap(layer, seen)


def _wrap(layer: keras.layers.Layer, seen: keras.Variable) -> None:
    """`seen`: least, greatest, and whether there was a batch yet."""
    call: Callable[..., Any] = layer.call

    @wraps(call)
    def quantized(inputs: tf.Tensor, *args: Any, **named: Any) -> Any:
        if is_training(layer):
            seen.assign(_moved(seen.value, inputs))
        given = _rounded(inputs, seen.value[0], seen.value[1])
        kernel = kernel_of(layer)
        greatest = tf.maximum(tf.reduce_max(tf.abs(kernel.value)), 1e-8)
        rounded = _rounded(kernel.value, -greatest, greatest, narrow_range=True)
        with keras.StatelessScope(state_mapping=[(kernel, rounded)]):
            return call(given, *args, **named)

    object.__setattr__(layer, "call", quantized)  # no state of the layer's, so Keras need not track it


def _rounded(values: tf.Tensor, low: tf.Tensor, high: tf.Tensor, *, narrow_range: bool = False) -> tf.Tensor:
    """To 8 bits of low..high. The gradient is TensorFlow's, on the CPU: a GPU sums it in no certain order."""

    @tf.custom_gradient
    def rounded(values: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> Any:
            with tf.device("CPU:0"):
                return tf.raw_ops.FakeQuantWithMinMaxVarsGradient(
                    gradients=upstream, inputs=values, min=low, max=high, narrow_range=narrow_range
                )

        return tf.quantization.fake_quant_with_min_max_vars(values, low, high, narrow_range=narrow_range), gradient

    return rounded(values, low, high)


def _moved(seen: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """The range holds 0, which padding and ReLU need exactly, and is never empty."""
    batch = tf.stack([tf.minimum(tf.reduce_min(inputs), 0.0), tf.maximum(tf.reduce_max(inputs), 1e-6)])
    moved = tf.where(seen[2] > 0, _MOMENTUM * seen[:2] + (1.0 - _MOMENTUM) * batch, batch)
    return tf.concat([moved, [1.0]], axis=0)
