"""A JSON value -> an array, by TensorFlow Serving's rules: shapes from the value, types from the signature.

numpy converts the ordinary case in one call; what it refuses, or would be too lenient about, is read value by value,
which finds the words for the fault (TensorFlow Serving's: tensorflow_serving/util/json_tensor.cc).
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from common.counted import counted
from common.tensors import NUMPY_TYPES
from services.serving.rest_json.numbers import float_text
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, invalid
from services.serving.wire.replica_state import TensorSpec

_SHOWN_CHARACTERS = 256
_HIGHEST_RANK = 64
"""numpy's; TensorFlow's is higher."""
_INT32 = (-(2**31), 2**31 - 1)
_INTEGER_RANGES = {
    "DT_INT8": _INT32, "DT_INT16": _INT32, "DT_INT32": _INT32, "DT_UINT8": _INT32,
    "DT_UINT32": (0, 2**32 - 1), "DT_INT64": (-(2**63), 2**63 - 1), "DT_UINT64": (0, 2**64 - 1),
}  # fmt: skip
"""Accepted values per type; narrow types take int32 and wrap."""
_WORDS: dict[type, dict[object, str]] = {type(None): {None: "null"}, bool: {True: "true", False: "false"}}
_FLOATS = frozenset({"DT_FLOAT", "DT_DOUBLE"})
_NUMPY_DTYPES = {name: np.dtype(code) for name, code in NUMPY_TYPES.items()}
_JSON_NAMES = {
    "DT_FLOAT": "float", "DT_DOUBLE": "double", "DT_INT32": "int32", "DT_UINT8": "uint8", "DT_INT16": "int16",
    "DT_INT8": "int8", "DT_STRING": "string", "DT_INT64": "int64", "DT_BOOL": "bool", "DT_UINT32": "uint32",
    "DT_UINT64": "uint64", "DT_UINT16": "uint16", "DT_HALF": "half", "DT_BFLOAT16": "bfloat16",
    "DT_COMPLEX64": "complex64", "DT_COMPLEX128": "complex128",
}  # fmt: skip


def shown(value: object) -> str:
    """A value as it appears in messages: JSON with an indent of 4 and lists on one line, cut after 256 characters."""
    parts: list[str] = []
    left = _SHOWN_CHARACTERS
    for part in _printed(value, "\n"):
        parts.append(part[:left])
        left -= len(part)
        if left <= 0:
            break
    return "".join(parts)


def _printed(value: Any, line: str) -> Iterator[str]:
    """The parts of a value's print; `line` is a line break and the indent of the line the value begins on."""
    if isinstance(value, dict):
        inner = line + " " * 4
        before = "{" + inner
        for key, item in value.items():
            yield f"{before}{_quoted(key)}: "
            yield from _printed(item, inner)
            before = "," + inner
        yield line + "}" if value else "{}"
    elif isinstance(value, list):
        before = "["
        for item in value:
            yield before
            yield from _printed(item, line + " " * 4)
            before = ", "
        yield "]" if value else "[]"
    elif isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, float):
        yield float_text(value)
    else:
        yield _WORDS.get(value.__class__, {}).get(value) or str(value)


def _quoted(text: str) -> str:
    return orjson.dumps(text[:_SHOWN_CHARACTERS].encode(errors="surrogateescape").decode(errors="replace")).decode()


def is_base64(value: object) -> bool:
    """An object whose single key `b64` holds a string."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def read_value(value: Any, spec: TensorSpec, *, strict: bool) -> np.ndarray:
    """An array of the signature's type; strings are object arrays of bytes. No dimension is added.

    Args:
        strict: the document holds true or false somewhere, which numpy would take for numbers among numbers.

    Raises:
        RequestFailed: the value is not of the type or not rectangular.
    """
    if not strict or (spec.dtype not in _INTEGER_RANGES and spec.dtype not in _FLOATS):
        array = _converted_at_once(value, spec.dtype)
        if array is not None:
            return array
    return _read_each(value, spec)


def _converted_at_once(value: Any, dtype: str) -> np.ndarray | None:
    """None where the careful way has to decide."""
    if dtype == "DT_STRING":
        return _strings_at_once(value)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    kind = array.dtype.kind
    if dtype in _FLOATS:
        if kind == "f" or kind in "iu":
            with np.errstate(over="ignore"):
                return array.astype(_NUMPY_DTYPES[dtype])
        return None
    if array.size == 0 and kind == "f" and dtype in _JSON_NAMES:
        return array.astype(_NUMPY_DTYPES[dtype]) if dtype in _INTEGER_RANGES or dtype == "DT_BOOL" else None
    if dtype == "DT_BOOL":
        return array if kind == "b" else None
    bounds = _INTEGER_RANGES.get(dtype)
    if bounds is None or kind not in "iu" or array.min() < bounds[0] or array.max() > bounds[1]:
        return None
    return array.astype(_NUMPY_DTYPES[dtype])


def _strings_at_once(value: Any) -> np.ndarray | None:
    """A string or a flat list of strings."""
    if isinstance(value, str):
        value = [value]
        shape: tuple[int, ...] = ()
    elif isinstance(value, list):
        shape = (len(value),)
    else:
        return None
    array = np.empty(len(value), object)
    for index, text in enumerate(value):
        if not isinstance(text, str):
            return None
        array[index] = text.encode(errors="surrogateescape")
    return array.reshape(shape)


def _read_each(value: Any, spec: TensorSpec) -> np.ndarray:
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > _HIGHEST_RANK:
        raise invalid(f"the value is nested {counted(len(shape), 'level')} deep, expected {_HIGHEST_RANK} at most")
    leaves = [_leaf(item, spec.dtype) for item in _leaves(value, 0, shape)]
    dtype = _NUMPY_DTYPES.get(spec.dtype)
    if dtype is None:  # an empty list of a type that the queue cannot carry
        raise RequestFailed(
            Code.UNIMPLEMENTED, f"Conversion of JSON Value: {shown(value)} to type: {_name(spec.dtype)}"
        )
    array = np.empty(len(leaves), dtype)
    with np.errstate(over="ignore"):
        if spec.dtype in _INTEGER_RANGES:
            wide = np.uint64 if spec.dtype == "DT_UINT64" else np.int64
            array[:] = np.array(leaves, wide).astype(dtype)
        else:
            array[:] = leaves
    return array.reshape(shape)


def _leaves(value: Any, level: int, shape: list[int]) -> Iterator[Any]:
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        yield value
        return
    if level >= len(shape):
        raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for item in value:
        yield from _leaves(item, level + 1, shape)


def _leaf(value: Any, dtype: str) -> Any:
    if dtype == "DT_STRING":
        return read_string(value)
    if dtype in _FLOATS and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if dtype == "DT_BOOL" and isinstance(value, bool):
        return value
    bounds = _INTEGER_RANGES.get(dtype)
    if bounds and isinstance(value, int) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]:
        return value
    if bounds is None and dtype not in _FLOATS and dtype != "DT_BOOL" and not isinstance(value, dict):
        raise RequestFailed(Code.UNIMPLEMENTED, f"Conversion of JSON Value: {shown(value)} to type: {_name(dtype)}")
    raise invalid(f"JSON Value: {shown(value)} Type: {kind(value)} is not of expected type: {_name(dtype)}")


def read_string(value: Any) -> bytes:
    """The bytes of a string or of a base64 object; raises RequestFailed for anything else."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if is_base64(value):
        text = value["b64"]
        try:
            return base64.b64decode(text if "=" in text else text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise invalid("Unable to base64 decode") from error
    if isinstance(value, dict):
        raise invalid(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    raise invalid(f"JSON Value: {shown(value)} Type: {kind(value)} is not of expected type: string")


def kind(value: object) -> str:
    """JSON's name of a value's type."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, dict):
        return "Object"
    if isinstance(value, list):
        return "Array"
    return "String" if isinstance(value, str) else "Number"


def _name(dtype: str) -> str:
    return _JSON_NAMES.get(dtype, dtype.removeprefix("DT_").lower())
