"""Floats in JSON: the shortest digits that read back as the same number of the same type, by orjson; NaN, Infinity and
-Infinity are bare words, as TensorFlow Serving writes them.
"""

import re

import numpy as np
import orjson

_NULL = re.compile(b"null")
"""orjson's text for a number that is not finite."""


def float_text(value: float | np.float32) -> str:
    """A number."""
    return float_array(np.asarray(value)).decode()


def float_array(array: np.ndarray) -> bytes:
    """JSON of an array of float32 or float64, of any shape; a scalar is a bare number."""
    text = orjson.dumps(array if array.ndim else array[()], option=orjson.OPT_SERIALIZE_NUMPY)
    if b"n" not in text:
        return text
    words = iter(array[~np.isfinite(array)].ravel().tolist())
    return _NULL.sub(lambda _: _word(next(words)), text)


def _word(value: float) -> bytes:
    return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"


def float_rows(array: np.ndarray) -> list[bytes]:
    """JSON of each row of an array of rank 1 or more."""
    depth = array.ndim - 1
    if not array.size:
        return [float_array(row) for row in array]
    whole = float_array(array)
    if not depth:
        return whole[1:-1].split(b",")
    opening, closing = b"[" * depth, b"]" * depth
    rows = whole[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [opening + row + closing for row in rows]
