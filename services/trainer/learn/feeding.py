"""How the batches of a block get to the steps (`training.input`); order, batches and so losses are the same.

| | what is handed over | calls |
|---|---|---|
| memory | the whole block; the graph cuts it | one |
| feed | a batch, gathered on the host | one a step |
| stream | nothing: the graph takes batches from a tf.data pipeline, which prepares the next ones meanwhile | one |

With feed and stream a device holds a few batches at a time.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.port import Losses, TrainingSet

Run = Callable[..., Any]
"""To float32 [steps, 2 + norms], a tensor or an array."""
_PREPARED = 2
_HOST = "CPU:0"


class Feeding:
    """Args:
    whole: takes columns, labels, weights, order and bounds.
    streamed: takes an iterator of batches (columns, labels, weights), and how many there are.
    """

    def __init__(self, mode: str, whole: Run, streamed: Run) -> None:
        self._mode, self._whole, self._streamed = mode, whole, streamed
        self.begin()

    def begin(self) -> None:
        self._calls = self._largest_bytes = 0

    def losses(self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> Losses:
        """Of each step, until one is not finite."""
        parts = examples.parts
        if self._mode == "memory":
            return np.asarray(self._whole(*parts, tf.constant(order), tf.constant(bounds)))
        if self._mode == "stream":
            return self._call(self._streamed, iter(_pipeline(parts, order, bounds)), tf.constant(len(bounds) - 1))
        found: list[Losses] = []
        for start, end in pairwise(bounds):
            with tf.device(_HOST):
                batch = _gathered(parts, tf.constant(order[start:end]))
                places = tf.range(end - start, dtype=tf.int64), tf.constant([0, end - start], tf.int32)
            found.append(self._call(self._whole, *batch, *places))
            if not np.isfinite(found[-1][0, 0]):
                break
        return np.concatenate(found)

    def facts(self) -> dict[str, Any]:
        """Empty where a block is handed over whole. Of `largest_call_bytes`, a string is its place alone."""
        if self._mode == "memory":
            return {}
        return {"input": self._mode, "calls": self._calls, "largest_call_bytes": self._largest_bytes}

    def _call(self, run: Run, *arguments: Any) -> Losses:
        self._calls += 1
        tensors = tf.nest.flatten(arguments, expand_composites=True)
        size = sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors if tensor.dtype != tf.resource)
        self._largest_bytes = max(self._largest_bytes, size)
        return np.asarray(run(*arguments))


def _gathered(parts: Any, rows: tf.Tensor) -> Any:
    return tuple({name: tf.gather(values, rows) for name, values in part.items()} for part in parts)


def _pipeline(parts: Any, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> tf.data.Dataset:
    with tf.device(_HOST):
        batches = tf.data.Dataset.from_tensor_slices((bounds[:-1], bounds[1:]))
        rows = tf.constant(order)
        return batches.map(lambda start, end: _gathered(parts, rows[start:end])).prefetch(_PREPARED)
