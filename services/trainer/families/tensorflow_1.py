"""What a model_fn of TensorFlow 1's handbooks calls: `tf.compat.v1.layers`, `minimize(loss, global_step)`.

TensorFlow 2 keeps the optimizers of compat.v1, but `minimize` of a tensor only in graphs of its own, and no layers.
Within a call of the function, layers are Keras's of the same names, and gradients are those of the call's tape.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

_LAYERS: Mapping[str, str] = {
    "average_pooling1d": "AveragePooling1D", "average_pooling2d": "AveragePooling2D",
    "average_pooling3d": "AveragePooling3D", "batch_normalization": "BatchNormalization", "conv1d": "Conv1D",
    "conv2d": "Conv2D", "conv2d_transpose": "Conv2DTranspose", "conv3d": "Conv3D",
    "conv3d_transpose": "Conv3DTranspose", "dense": "Dense", "dropout": "Dropout", "flatten": "Flatten",
    "max_pooling1d": "MaxPooling1D", "max_pooling2d": "MaxPooling2D", "max_pooling3d": "MaxPooling3D",
    "separable_conv1d": "SeparableConv1D", "separable_conv2d": "SeparableConv2D",
}  # fmt: skip


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
    with (
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
