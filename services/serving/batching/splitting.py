"""Requests whose rows run in several batches: the head fills the batch that is open, the rest makes batches of its own
(TensorFlow Serving's enable_large_batch_splitting, described in tensorflow_serving/batching/README.md).

The batches of a request may run in any order and at the same time. It is answered once, by the last of them,
or by the first that finds that it has to run by itself.
"""

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from services.serving.wire.prediction import Arrays, Prediction


class SplitRequest:
    """A request while its parts run. Thread-safe."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        """The whole of it."""
        self._lock = threading.Lock()
        self._outputs: dict[int, Arrays] = {}
        self._missing_rows = prediction.rows
        self._is_begun = False
        self.is_settled = False
        """Whether somebody answers it, or has; its other parts need not run any more."""

    def begin(self) -> bool:
        """True for the first of its parts that runs."""
        with self._lock:
            is_first, self._is_begun = not self._is_begun, True
            return is_first

    def claim(self) -> bool:
        """True for the only caller that is to run it by itself."""
        with self._lock:
            is_mine, self.is_settled = not self.is_settled, True
            return is_mine

    def add(self, start: int, rows: int, outputs: Arrays) -> list[Arrays] | None:
        """Takes the outputs of the rows from `start` on; all of them, in order, for the caller that is to answer."""
        with self._lock:
            if self.is_settled:
                return None
            self._outputs[start] = outputs
            self._missing_rows -= rows
            if self._missing_rows:
                return None
            self.is_settled = True
            return [part for _, part in sorted(self._outputs.items())]


def rows_of(prediction: Prediction, start: int, stop: int) -> Prediction:
    """The same request with the rows from `start` to before `stop` only; views of its inputs."""
    inputs = {name: array[start:stop] for name, array in prediction.inputs.items()}
    return dataclasses.replace(prediction, inputs=inputs, rows=stop - start)


def joined(parts: Sequence[Arrays]) -> dict[str, np.ndarray] | None:
    """The outputs of a request's parts along dimension 0; None where their inner sizes differ, as a model may do that
    makes its outputs as wide as its batch needs them."""
    first = parts[0]
    if any(part[name].shape[1:] != array.shape[1:] for name, array in first.items() for part in parts):
        return None
    return {name: np.concatenate([part[name] for part in parts]) for name in first}
