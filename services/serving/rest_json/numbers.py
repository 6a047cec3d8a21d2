"""Floats as TensorFlow Serving writes them in JSON: %g with 6 digits if those read back equal, else with 9 for float32
and 17 for float64; `.0` after a whole number; NaN, Infinity and -Infinity as bare words.

Few numbers are written one by one. Many float32 are rounded at once, with numpy, to the decimal digits they will have,
after which orjson's shortest digits are the right ones; only what %g writes with an exponent is written one by one.
"""

import math
import re
import struct
from collections.abc import Iterator

import numpy as np
import orjson

_FEW = 40
"""Up to here one by one is quicker."""
_NINE_DIGITS = tuple(",".join(["%.9g"] * count) for count in range(_FEW + 1))
_EXPONENT_BELOW, _EXPONENT_FROM = 1e-4, 1e6
_POWERS = 10.0 ** np.arange(15)
"""Exact as float64."""
_FIRST_POWER = -4
_BOUNDS = np.array([10.0**k for k in range(_FIRST_POWER + 1, 6)])
_NULL = re.compile(b"null")
_single = struct.Struct("<f")


def float_text(value: float, *, is_single: bool) -> str:
    """One number; a float32 comes as the float64 of the same value."""
    text = "%.6g" % value  # noqa: UP031  (twice as fast as format)
    back = float(text)
    if back != value:
        if value != value or value in (np.inf, -np.inf):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        if not is_single:
            text = "%.17g" % value  # noqa: UP031
        elif not _is_same_single(back, value):
            text = "%.9g" % value  # noqa: UP031
    elif value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    return text if "." in text or "e" in text else text + ".0"


def _is_same_single(decimal: float, value: float) -> bool:
    """Whether a decimal reads as the float32 `value`."""
    if abs(decimal - value) > 1.2e-7 * abs(value) and abs(value) > 1e-37:
        return False
    try:
        return bool(_single.unpack(_single.pack(decimal))[0] == value)
    except OverflowError:
        return False


def float_array(array: np.ndarray) -> bytes:
    """JSON of an array of float32 or float64, of any shape; a scalar is a bare number."""
    is_single = array.dtype.itemsize == 4
    if not is_single:
        texts = [float_text(value, is_single=False) for value in array.ravel().tolist()]
    elif array.size <= _FEW:
        texts = _few(array.ravel().tolist())
    else:
        return _many(array)
    return _nested(texts, array.shape).encode()


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


def _few(values: list[float]) -> list[str]:
    """Float32, one by one, most of them with one formatting: a look at the 9 digits says whether 6 could do."""
    texts = (_NINE_DIGITS[len(values)] % tuple(values)).split(",") if values else []
    for index, text in enumerate(texts):
        count = len(text.lstrip("-0."))
        value = values[index]
        # All 9 digits are there, and the last three are too far from 000 for the first 6 to be the same float32.
        is_long = count == (9 if -1.0 < value < 1.0 else 10) and "060" < text[-3:] < "940"
        if not is_long and (count > 6 or "." not in text):
            texts[index] = float_text(value, is_single=True)
    return texts


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return texts[0]
    for axis in range(len(shape) - 1, 0, -1):
        size = shape[axis]
        starts = range(0, size * math.prod(shape[:axis]), size) if size else [0] * math.prod(shape[:axis])
        texts = [f"[{','.join(texts[start : start + size])}]" for start in starts]
    return f"[{','.join(texts)}]"


def _many(array: np.ndarray) -> bytes:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        exact = array.astype(np.float64)
    size = np.abs(exact)
    is_plain = ((size >= _EXPONENT_BELOW) & (size < _EXPONENT_FROM)) | (size == 0)
    others = None if is_plain.all() else exact[~is_plain]
    if others is not None:
        exact = np.where(is_plain, exact, 0.0)
    exponent = np.searchsorted(_BOUNDS, size, side="right") + _FIRST_POWER
    exponent[exponent > 5] = 5
    nine, six = _POWERS[8 - exponent], _POWERS[5 - exponent]
    short = np.rint(exact * six) / six
    digits = np.where(short.astype(np.float32) == exact.astype(np.float32), short, np.rint(exact * nine) / nine)
    if others is None:
        return orjson.dumps(digits, option=orjson.OPT_SERIALIZE_NUMPY)
    digits[~is_plain] = np.nan
    words: Iterator[bytes] = (float_text(value, is_single=True).encode() for value in others.tolist())
    return _NULL.sub(lambda _: next(words), orjson.dumps(digits, option=orjson.OPT_SERIALIZE_NUMPY))
