"""Requests whose rows run in several batches: the head fills the batch that is open, the rest makes batches of its own
(TensorFlow Serving's enable_large_batch_splitting, described in tensorflow_serving/batching/README.md).

The batches of a request may run in any order and at the same time. It is answered once, by the last of them,
or by the first that finds that it has to run by itself. And the reverse: several requests as a single call of the
model, rows padded up to an allowed batch size, inner sizes up to the longest.
"""

import dataclasses
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

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


def padded_size(rows: int, allowed_sizes: Sequence[int]) -> int:
    """The smallest allowed size that holds the rows; `rows` itself when there is none, or nothing to hold."""
    index = bisect_left(allowed_sizes, rows)
    return allowed_sizes[index] if rows and index < len(allowed_sizes) else rows


def merge(
    members: Sequence[Mapping[str, np.ndarray]],
    size: int,
    *,
    pads_inner: bool,
    fillers: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Puts the inputs of several requests together along dimension 0, padded to `size` rows.

    Args:
        members: the inputs of each request, by name: equal ranks and dtypes; equal inner sizes unless `pads_inner`.
        size: rows of the result, at least as many as the members have. The padding repeats the first row of the last
            request with rows.
        pads_inner: inner sizes grow to the longest.
        fillers: the padding then, by input, of a version with a schema, which names the value that its graph takes for
            "nothing there" (common/definition/inputs.py); None: the request's own first value, as TensorFlow Serving
            pads (tensorflow/serving, batching/batching_util.cc), which then counts as another value of the list.
    """
    return {
        name: _merge([inputs[name] for inputs in members], size, pads_inner, (fillers or {}).get(name))
        for name in members[0]
    }


def _merge(arrays: list[np.ndarray], size: int, pads_inner: bool, filler: Any) -> np.ndarray:
    if pads_inner:
        inner = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
        arrays = [array if array.shape[1:] == inner else _stretched(array, inner, filler) for array in arrays]
    missing = size - sum(len(array) for array in arrays)
    if missing > 0:
        row = next(array for array in reversed(arrays) if len(array))[:1]
        arrays = [*arrays, np.repeat(row, missing, axis=0)]
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _stretched(array: np.ndarray, inner: tuple[int, ...], filler: Any) -> np.ndarray:
    if isinstance(filler, str):
        filler = filler.encode()
    stretched = np.full((len(array), *inner), _filler(array) if filler is None else filler, array.dtype)
    stretched[tuple(slice(0, length) for length in array.shape)] = array
    return stretched


def _filler(array: np.ndarray) -> Any:
    """The first value; an array without values is padded with zeros or empty strings."""
    if array.size:
        return array.flat[0]
    return b"" if array.dtype.hasobject else np.zeros((), array.dtype)[()]
