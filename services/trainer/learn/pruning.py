"""Zeros in kernels, made while training: `training.prune`.

After every step the smallest values of each kernel, by magnitude, are set to zero, as many as the step asks for. Which
they are follows from the values alone: a resumed or rebuilt round finds the same values, and nothing else is kept.

The share rises as target * (1 - (1 - progress)^3): Zhu and Gupta, To prune, or not to prune, 2017, equation 1.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.definition.training import Prune
from services.trainer.families.port import Arrays
from services.trainer.families.reasons import DefinitionFailedError

_KERNEL = "kernel"


def kernels_of(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    """Those that learn, of two dimensions or more: of dense, convolutional and recurrent layers; no embeddings. Raises
    DefinitionFailedError: there is none."""
    found = [variable for variable in variables if _is_kernel(variable.path) and len(variable.shape) > 1]
    if not found:
        raise DefinitionFailedError("training: prune makes zeros in kernels, and no kernel of this model learns")
    return found


def prune(kernels: Iterable[keras.Variable], section: Prune, step: tf.Tensor) -> None:
    """Assigns them; before `from_step` they stay.

    Args:
        step: int64 scalar, of the optimizer, after the update.
    """
    progress = (tf.cast(step, tf.float32) - section.from_step) / float(section.to_step - section.from_step)
    share = section.target * (1.0 - (1.0 - tf.clip_by_value(progress, 0.0, 1.0)) ** 3)
    for kernel in kernels:
        value = tf.convert_to_tensor(kernel.value)
        magnitudes = tf.abs(tf.reshape(value, [-1]))
        size = int(np.prod(kernel.shape))
        count = tf.cast(tf.math.ceil(share * float(size) - 1e-3), tf.int32)
        # Of equal magnitudes the first in memory go first: zeros of a step before are zeros again.
        places = tf.argsort(magnitudes, stable=True)[:count]
        zeros = tf.zeros([count], value.dtype)
        kept = tf.tensor_scatter_nd_update(tf.ones_like(magnitudes), places[:, tf.newaxis], zeros)
        kernel.assign(value * tf.reshape(kept, value.shape))


def report(arrays: Arrays) -> dict[str, Any]:
    """For the lineage: `zero_shares` by kernel, `bytes` of the model's arrays and what zlib makes of them."""
    model = {path.removeprefix("model/"): array for path, array in arrays.items() if path.startswith("model/")}
    kernels: Mapping[str, Any] = {
        path: weights for path, weights in model.items() if _is_kernel(path) and weights.ndim > 1
    }
    return {
        "zero_shares": {path: round(float(np.mean(weights == 0)), 4) for path, weights in sorted(kernels.items())},
        "bytes": sum(weights.nbytes for weights in model.values()),
        "compressed_bytes": sum(
            len(zlib.compress(np.ascontiguousarray(weights).tobytes(), 6)) for weights in model.values()
        ),
    }


def _is_kernel(path: str) -> bool:
    return path.rpartition("/")[2].endswith(_KERNEL)
