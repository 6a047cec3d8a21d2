"""Tensors between the gRPC door and the queue: TensorFlow's TensorProto on one side, the queue's Tensor on the other.

Numbers are copied as bytes where the two wire formats allow it and never pass through Python objects one by one, except
for integers in typed fields, which protobuf packs as varints.

A few bytes may spell a large tensor: a shape and one value that is repeated. So what the inputs of a request take once
they are written out is counted, all together, before memory is taken for any of them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from common.tensors import NUMPY_TYPES, TYPED_FIELDS, WIRE_TYPES
from protos import queue_pb2, tfserving_pb2
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, invalid

_NAMES = {number: name for name, number in tfserving_pb2.DataType.items()}
_NUMPY_DTYPES = {name: np.dtype(text) for name, text in NUMPY_TYPES.items()}
_STRING_DTYPE = "O"
_CODES = {name: text.removeprefix("|O") or _STRING_DTYPE for name, text in NUMPY_TYPES.items()}
TYPE_OF_CODE = {code: name for name, code in _CODES.items()}
"""The queue's dtype -> TensorFlow's type name."""
_WIRE_DTYPES = {name: np.dtype(text) for name, text in WIRE_TYPES.items()}
_MAX_ELEMENTS = 1 << 28
"""A larger shape is refused before memory is taken for it."""
_LAST_VARINT_SHIFT = 28
"""A length has 32 bits."""
_MAX_DIMENSIONS = 254
"""TensorFlow's own bound."""
_REPEATED_STRING_BYTES = 48
"""Memory of a string besides its bytes, also on its way, when the shape has more than were sent."""
MAX_EXPANDED_BYTES = 64 * 1024 * 1024
"""Where no other bound is set: that of a request's body."""


def read_tensor_protos(
    given: Mapping[str, tfserving_pb2.TensorProto],
    request: queue_pb2.PredictionRequest,
    *,
    max_bytes: int = MAX_EXPANDED_BYTES,
) -> None:
    """Adds the inputs to the queue's request, in order of their names.

    Args:
        max_bytes: bytes of all together.

    Raises:
        RequestFailed: they take more, or a tensor is none (`read_tensor_proto`).
    """
    room = max_bytes
    for alias, proto in sorted(given.items()):
        room -= _expanded_bytes(alias, proto)
        if room < 0:
            raise invalid(
                f'the inputs take more than {max_bytes} bytes once they are written out; input "{alias}" has shape '
                f"[{','.join(map(str, _shape_of(alias, proto)))}]"
            )
    for alias, proto in sorted(given.items()):
        read_tensor_proto(alias, proto, request.inputs.add())


def _expanded_bytes(alias: str, proto: tfserving_pb2.TensorProto) -> int:
    """Bytes of the tensor; sizes of 0 count as 1, since a model may fill them in."""
    count = math.prod(max(size, 1) for size in _shape_of(alias, proto))
    name = _NAMES.get(proto.dtype, "")
    if name != "DT_STRING":
        return count * _NUMPY_DTYPES[name].itemsize if name in _NUMPY_DTYPES else 0
    if proto.tensor_content:
        return len(proto.tensor_content) + count
    strings = proto.string_val
    last = len(strings[-1]) if strings else 0
    repeated = max(count - len(strings), 0)
    return sum(map(len, strings)) + repeated * (last + _REPEATED_STRING_BYTES)


def _shape_of(alias: str, proto: tfserving_pb2.TensorProto) -> list[int]:
    """Raises RequestFailed for a shape that no tensor has."""
    dimensions = proto.tensor_shape.dim
    if len(dimensions) > _MAX_DIMENSIONS:
        raise _unparsable(alias)
    shape = [dimension.size for dimension in dimensions]
    if any(size < 0 for size in shape) or math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS:
        raise _unparsable(alias)
    return shape


def read_tensor_proto(alias: str, proto: tfserving_pb2.TensorProto, tensor: queue_pb2.Tensor) -> None:
    """Fills in the queue's tensor from a request's.

    TensorFlow's rules: content wins over typed values; of those, too few repeat the last one, none at all mean zeros or
    empty strings, and what the shape does not hold is left out. Raises RequestFailed: the values do not fit the shape,
    or the type cannot be carried."""
    name = _NAMES.get(proto.dtype, "")
    field = TYPED_FIELDS.get(name)
    if field is None:
        if proto.dtype == tfserving_pb2.DT_INVALID or not name:
            raise _unparsable(alias)
        raise RequestFailed(Code.UNIMPLEMENTED, f'input "{alias}" has type {name}, which cannot be served')
    shape = _shape_of(alias, proto)
    count = math.prod(shape)
    tensor.name = alias
    tensor.shape.extend(shape)
    content = proto.tensor_content if count else b""
    if name == "DT_STRING":
        tensor.dtype = _STRING_DTYPE
        tensor.strings.extend(
            _strings_of(alias, content, count) if content else _filled(list(proto.string_val), count, b"")
        )
        return
    tensor.dtype = _CODES[name]
    if content:
        is_fitting = len(content) == count * _NUMPY_DTYPES[name].itemsize
        if not is_fitting or (name == "DT_BOOL" and np.frombuffer(content, np.uint8).max() > 1):
            raise _unparsable(alias)
        tensor.data = content
        return
    tensor.data = _typed_bytes(getattr(proto, field), name, count)


def _strings_of(alias: str, content: bytes, count: int) -> list[bytes]:
    """Strings as TensorFlow's C++ clients pack them: the length of each as a varint, then all of their bytes."""
    sizes: list[int] = []
    at = 0
    while len(sizes) < count:
        size = shift = 0
        while True:
            if at == len(content) or shift > _LAST_VARINT_SHIFT:
                raise _unparsable(alias)
            size |= (content[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if content[at - 1] < 0x80:
                break
        sizes.append(size)
    if at + sum(sizes) != len(content):
        raise _unparsable(alias)
    strings = []
    for size in sizes:
        strings.append(content[at : at + size])
        at += size
    return strings


def _typed_bytes(values: Any, name: str, count: int) -> bytes:
    wire = _WIRE_DTYPES[name]
    per_element = _NUMPY_DTYPES[name].itemsize // wire.itemsize
    held = min(len(values) // per_element, count) * per_element
    if len(values) > held:
        values = values[:held]
    given: np.ndarray = np.array(values, np.int64).astype(wire) if wire.itemsize < 4 else np.array(values, wire)
    given = given.reshape(-1, per_element)
    if len(given) == count:
        return given.tobytes()
    array = np.zeros((count, per_element), wire)
    array[: len(given)] = given
    if len(given):
        array[len(given) :] = given[-1]
    return array.tobytes()


def _filled(values: list[bytes], count: int, empty: bytes) -> list[bytes]:
    return values[:count] + [values[-1] if values else empty] * (count - len(values))


def _unparsable(alias: str) -> RequestFailed:
    return invalid(f"tensor parsing error: {alias}")


def write_tensor_proto(tensor: queue_pb2.Tensor, proto: tfserving_pb2.TensorProto) -> None:
    """Fills in an answer's tensor, in typed fields, as TensorFlow Serving does. Raises RequestFailed: the type has no
    TensorProto field."""
    name = TYPE_OF_CODE.get(tensor.dtype)
    if name is None:
        raise RequestFailed(Code.UNIMPLEMENTED, f'output "{tensor.name}" has numpy type {tensor.dtype}')
    proto.dtype = tfserving_pb2.DataType.Value(name)  # type: ignore[assignment]  # the stub wants the wrapper class
    add = proto.tensor_shape.dim.add
    for size in tensor.shape:
        add().size = size
    if tensor.dtype == _STRING_DTYPE:
        proto.string_val.extend(tensor.strings)
        return
    getattr(proto, TYPED_FIELDS[name]).extend(np.frombuffer(tensor.data, _WIRE_DTYPES[name]).tolist())
