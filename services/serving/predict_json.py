"""The JSON of TensorFlow Serving's REST predict call: a body -> named arrays, and an answer -> a body."""

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from protos import queue_pb2
from services.serving.json_values import invalid, is_base64, read_value, shown
from services.serving.prediction import Arrays, RequestFailed
from services.serving.queue_keys import DEFAULT_SIGNATURE
from services.serving.replica_state import Signature

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
_JSON_DTYPES = {
    code: np.dtype(code) for code in ("<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
}
_NOT_FINITE = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
_CODE_NAMES = {3: "INVALID_ARGUMENT", 12: "UNIMPLEMENTED"}


class Document:
    """A parsed predict body. `strict`: true or false occur somewhere in it."""

    __slots__ = ("fields", "signature_name", "strict")

    def __init__(self, body: bytes) -> None:
        """Raises RequestFailed when the body is not a JSON object or names its signature by anything but a string."""
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = _lenient(body)
        if not isinstance(fields, dict):
            raise invalid(f"JSON Value: {shown(fields)} Is not object")
        name = fields.get("signature_name", "")
        if not isinstance(name, str):
            raise invalid(
                f"JSON Value: {shown(fields)} not formatted correctly. 'signature_name' key must be a string value."
            )
        self.fields: dict[str, Any] = fields
        self.signature_name: str = name or DEFAULT_SIGNATURE
        # One byte is found ten times faster than a word, and most bodies of numbers hold neither byte.
        self.strict = (b"u" in body and b"true" in body) or (b"l" in body and b"false" in body)


def _lenient(body: bytes) -> Any:
    """What TensorFlow Serving takes beyond JSON: NaN and Infinity, a byte order mark, text after the document."""
    text = body.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape").lstrip(" \t\r\n")
    if not text:
        raise invalid("JSON Parse error: The document is empty")
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: Invalid value. at offset: {error.pos}") from error
    except ValueError as error:
        raise invalid("JSON Parse error: Number too big to be stored in double.") from error
    except RecursionError as error:
        raise invalid("JSON Parse error: the document is nested too deeply") from error


def read_inputs(document: Document, signature: Signature) -> tuple[Arrays, bool]:
    """The inputs by name, and whether they came as rows (so that the answer is rows, too).

    Raises:
        RequestFailed: the document does not fit the signature.
    """
    fields = document.fields
    rows, columns = "instances" in fields, "inputs" in fields
    if rows and columns:
        raise invalid(
            f"JSON Value: {shown(fields)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist "
        )
    if rows:
        return _read_rows(fields, signature, strict=document.strict), True
    if columns:
        return _read_columns(fields["inputs"], signature, strict=document.strict), False
    raise invalid("Missing 'inputs' or 'instances' key")


def _read_columns(inputs: Any, signature: Signature, *, strict: bool) -> Arrays:
    specs = signature.inputs
    if not isinstance(inputs, dict) or is_base64(inputs):
        if len(specs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required "
                "as per tensorinfo_map"
            )
        return {name: read_value(inputs, spec, strict=strict) for name, spec in specs.items()}
    for name in specs:
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
    return {name: read_value(inputs[name], spec, strict=strict) for name, spec in specs.items()}


def _read_rows(fields: Mapping[str, Any], signature: Signature, *, strict: bool) -> Arrays:
    instances = fields["instances"]
    if not isinstance(instances, list):
        raise invalid(f"JSON Value: {shown(fields)} Expecting 'instances' to be an list/array")
    if not instances:
        raise invalid(f"JSON Value: {shown(fields)} No values in 'instances' array")
    specs = signature.inputs
    first = instances[0]
    if isinstance(first, dict) and not is_base64(first):
        columns = _columns_of(instances, specs)
        return {name: _read_column(values, name, signature, strict=strict) for name, values in columns.items()}
    if len(specs) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors required "
            "as per tensorinfo_map"
        )
    for index, item in enumerate(instances):
        if isinstance(item, dict) and not is_base64(item):
            raise invalid(f"Expecting value/list but got object at item {index} of input list")
    return {name: _read_column(instances, name, signature, strict=strict, named=False) for name in specs}


def _columns_of(instances: Sequence[Any], specs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """[{name: value}] -> {name: [value]}; each object must have exactly the signature's names."""
    count = len(specs)
    for index, row in enumerate(instances):
        if not isinstance(row, dict) or is_base64(row):
            raise invalid(f"Expecting object but got list at item {index} of input list")
        if len(row) == count and all(name in row for name in specs):
            continue
        for name in row:
            if name not in specs:
                raise _row_error(index, name, 3, f"JSON object: does not have named input: {name}")
        raise invalid(
            f"Failed to process element: {index} of 'instances' list. JSON object: {shown(row)} "
            f"keys must be equal to: {','.join(sorted(specs))}"
        )
    return {name: [row[name] for row in instances] for name in specs}


def _read_column(values: list[Any], name: str, signature: Signature, *, strict: bool, named: bool = True) -> np.ndarray:
    """One input of all rows, with the rows as dimension 0."""
    spec = signature.inputs[name]
    try:
        return read_value(values, spec, strict=strict)
    except RequestFailed:
        key = name if named else ""
    arrays: list[np.ndarray] = []
    for index, value in enumerate(values):
        try:
            array = read_value(value, spec, strict=True)
            if arrays and array.size != arrays[0].size:
                raise invalid(f"Expecting tensor size: {arrays[0].size} but got: {array.size}")
            if arrays and array.shape != arrays[0].shape:
                raise invalid(f"Expecting shape {_shape(arrays[0])} but got: {_shape(array)}")
        except RequestFailed as error:
            raise _row_error(index, key, error.code, error.message) from error
        arrays.append(array)
    return np.stack(arrays)


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _row_error(index: int, key: str, code: int, message: str) -> RequestFailed:
    where = f"element: {index} key: {key}" if key else f"element: {index}"
    return invalid(f"Failed to process {where} of 'instances' list. Error: {_CODE_NAMES[code]}: {message}")


def write_answer(reply: queue_pb2.PredictionReply, *, rows: bool) -> bytes:
    """{"predictions": [...]} for rows, {"outputs": ...} for columns.

    Raises:
        RequestFailed: the outputs cannot be written as rows, or are of a type that has no JSON form.
    """
    key = "predictions" if rows else "outputs"
    arrays = {tensor.name: _array(tensor) for tensor in reply.outputs}
    if rows:
        _check_rows(arrays)
    if len(arrays) == 1:
        (name,) = arrays
        return _dumps(key, lambda write: write(name, arrays[name]))
    if not rows:
        return _dumps(key, lambda write: {name: write(name, array) for name, array in arrays.items()})
    return _dumps(
        key,
        lambda write: [
            {name: write(name, array[index]) for name, array in arrays.items()}
            for index in range(len(next(iter(arrays.values()))))
        ],
    )


def _array(tensor: queue_pb2.Tensor) -> np.ndarray:
    dtype = _JSON_DTYPES.get(tensor.dtype)
    if dtype is not None:
        return np.ndarray(tuple(tensor.shape), dtype, tensor.data)
    if tensor.dtype == "O":
        strings = np.empty(len(tensor.strings), object)
        strings[:] = tensor.strings
        return strings.reshape(tuple(tensor.shape))
    name = {"<f2": "half", "<c8": "complex64", "<c16": "complex128"}.get(tensor.dtype, tensor.dtype)
    raise invalid(f"Failed to write JSON value for tensor type: {name}")


def _check_rows(arrays: Arrays) -> None:
    size = -1
    for name, array in arrays.items():
        if not array.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size not in (-1, array.shape[0]):
            raise invalid(f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} expecting: {size}")
        size = array.shape[0]


_Write = Callable[[str, Any], Any]


def _dumps(key: str, build: Callable[[_Write], Any]) -> bytes:
    body: bytes = orjson.dumps({key: build(_plain)}, option=_NUMPY)
    if b"null" in body:  # orjson's word for NaN and infinities; TensorFlow Serving writes their names
        body = orjson.dumps({key: build(_exact)}, option=_NUMPY)
    return body


def _plain(name: str, value: Any) -> Any:
    """A value of an output, whole or of one row, as orjson takes it."""
    if isinstance(value, bytes):
        return _text(name, value)
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return _texts(name, value.tolist())
        return value if value.ndim else value[()]
    return value


def _exact(name: str, value: Any) -> Any:
    """The same with NaN, Infinity and -Infinity as bare words."""
    plain = _plain(name, value)
    if not isinstance(plain, np.ndarray | np.floating) or plain.dtype.kind != "f":
        return plain
    flat = np.asarray(plain).ravel()
    words: Iterator[bytes] = (_NOT_FINITE[str(number)] for number in flat[~np.isfinite(flat)].tolist())
    return orjson.Fragment(re.sub(b"null", lambda _: next(words), orjson.dumps(plain, option=_NUMPY)))


def _texts(name: str, value: Any) -> Any:
    return [_texts(name, item) for item in value] if isinstance(value, list) else _text(name, value)


def _text(name: str, value: bytes) -> Any:
    """A string; base64 when the output's name ends in _bytes. Bytes that are no UTF-8 are passed on as they are."""
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(value).decode()}
    try:
        return value.decode()
    except UnicodeDecodeError:
        text = json.dumps(value.decode(errors="surrogateescape"), ensure_ascii=False)
        return orjson.Fragment(text.encode(errors="surrogateescape"))
