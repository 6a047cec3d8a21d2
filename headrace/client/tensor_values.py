"""Arrays as TensorFlow Serving's two doors carry them: JSON values and TensorProto messages.

Strings are object arrays of bytes; str is taken as UTF-8. DT_BFLOAT16 needs ml_dtypes (which TensorFlow brings).
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from common.errors import InvalidInput, Unavailable
from common.tensors import NUMPY_TYPES
from headrace.client.bodies import plain

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = {name: np.dtype(text) for name, text in NUMPY_TYPES.items() if text != "bfloat16"}
_STRING = "DT_STRING"


@dataclass(frozen=True)
class SignatureTypes:
    """{name: TensorFlow's type name} of a signature's inputs and outputs."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    defaults: frozenset[str] = frozenset()
    """The inputs that may be left out."""
    name_of: Mapping[str, str] = field(default_factory=dict)
    """{alias: input}."""
    yes_no: frozenset[str] = frozenset()
    """The inputs that take words and truth values for 1 and 0."""


def numpy_dtype(type_name: str) -> "np.dtype[Any]":
    """Raises InvalidInput for a type that no array here has."""
    if type_name == "DT_BFLOAT16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise InvalidInput("DT_BFLOAT16 needs the package ml_dtypes") from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        return _DTYPES[type_name]
    except KeyError:
        raise InvalidInput(f"tensors of type {type_name} cannot be sent or read here") from None


def type_name_of(array: Array) -> str:
    """Raises InvalidInput for an array that TensorFlow has no type for."""
    if array.dtype.kind in "OSU":
        return _STRING
    if array.dtype.name == "bfloat16":
        return "DT_BFLOAT16"
    for name, dtype in _DTYPES.items():
        if array.dtype == dtype:
            return name
    raise InvalidInput(f"arrays of {array.dtype.name} cannot be sent")


def as_input(name: str, value: Any, type_name: str | None) -> Array:
    """The value as an array of the signature's type; of numpy's choice where that is not known. Raises InvalidInput: it
    is ragged, or would lose what makes it different (1.5 as an integer)."""
    if isinstance(value, list) and len({len(row) for row in value if isinstance(row, list)}) > 1:
        raise InvalidInput(
            f"input {name} has lists of different lengths, which are no tensor: ask over http, which fills them up, or "
            f"fill them up at their ends as the version's padding says"
        )
    try:
        if type_name == _STRING:
            return _strings(np.asarray(value, object))
        given = np.asarray(value)
        if given.dtype.kind in "OSU":
            if type_name is not None:
                raise InvalidInput(f"input {name} holds {given.ravel()[:1].tolist()}, expected {type_name}")
            return _strings(given)
        if type_name is None:
            return given
        wanted = numpy_dtype(type_name)
        is_number = wanted.kind in "iuf" and given.dtype.kind in "iub"
        # A Python list has no type, so its integers may become any kind of number.
        casting = "unsafe" if is_number and not hasattr(value, "dtype") else "same_kind"
        with np.errstate(over="raise"):
            cast: Array = given.astype(wanted, casting=casting, copy=False)  # type: ignore[call-overload]  # not a literal
        if wanted.kind in "iu" and not np.array_equal(cast, given):
            raise ValueError(f"{given[cast != given].ravel()[0]} does not fit")
        return cast
    except (TypeError, ValueError, FloatingPointError) as error:
        raise InvalidInput(f"input {name} is no tensor of {type_name or 'any type'}: {error}") from error


def _strings(array: Array) -> Array:
    flat = [_string(item) for item in array.ravel().tolist()]
    strings = np.empty(len(flat), object)
    strings[:] = flat
    return strings.reshape(array.shape)


def _string(item: Any) -> bytes:
    if isinstance(item, dict):  # {"b64": "..."}, as rows of JSON hold bytes
        return base64.b64decode(item["b64"]) if item.keys() == {"b64"} else bytes(item)
    return item.encode(errors="surrogateescape") if isinstance(item, str) else bytes(item)


def json_body(document: Mapping[str, Any]) -> bytes:
    """JSON of a request with arrays in it: bytes as {"b64"}, NaN and infinities as TensorFlow Serving reads them.
    Raises InvalidInput: something in it has no JSON form."""
    try:
        if _has_odd_number(document):
            return json.dumps(document, default=plain).encode()
        return orjson.dumps(document, default=plain, option=orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the request cannot be written as JSON: {error}") from error


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.floating):
        return value.dtype.kind == "f" and not np.isfinite(value).all()
    if isinstance(value, float):
        return not -1.8e308 < value < 1.8e308
    if isinstance(value, Mapping):
        return any(_has_odd_number(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_has_odd_number(item) for item in value)


def read_json(content: bytes) -> Any:
    """A document that may hold NaN, Infinity and, in strings, bytes that are no UTF-8, as TensorFlow Serving writes it.
    Raises Unavailable: it is none."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(content.decode(errors="surrogateescape"))
    except ValueError as error:
        raise Unavailable(f"the answer is not JSON: {content[:80]!r}") from error


def from_json(name: str, value: Any, type_name: str) -> Array:
    """An output of a REST answer. Raises Unavailable when it is not of its type."""
    try:
        if type_name != _STRING:
            return np.array(value, numpy_dtype(type_name))
        return _strings(np.asarray(_unpacked(value), object))
    except (TypeError, ValueError) as error:
        raise Unavailable(f"output {name} of the answer is no tensor of {type_name}: {error}") from error


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value
