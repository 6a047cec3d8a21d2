"""Making requests fit a single call of the model: rows up to an allowed batch size, inner sizes up to the longest.

Rows follow TensorFlow Serving's batching session. So do inner sizes of a version without a schema: the padding
repeats the request's first value (tensorflow/serving, batching/batching_util.cc), which then counts as another value of
the list. A version with a schema names the value that its graph takes for "nothing there"
(common/definition/inputs.py); its lists are filled up with that or not at all.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


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
        fillers: the padding then, by input; None: the request's own first value.
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
