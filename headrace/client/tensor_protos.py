"""Arrays as TensorProto messages, as gRPC and the request log carry them. Needs protobuf."""

from typing import Any

import numpy as np

from common.errors import Unavailable
from headrace.client.tensor_values import Array, numpy_dtype, type_name_of
from protos import tfserving_pb2

_TYPED_FIELDS = {
    "DT_FLOAT": "float_val", "DT_DOUBLE": "double_val", "DT_INT64": "int64_val", "DT_BOOL": "bool_val",
    "DT_UINT32": "uint32_val", "DT_UINT64": "uint64_val", "DT_COMPLEX64": "scomplex_val",
    "DT_COMPLEX128": "dcomplex_val", "DT_HALF": "half_val", "DT_BFLOAT16": "half_val",
}  # fmt: skip
"""Where the values of a type are; `int_val` for the others."""
_WIRE_TYPE_OF_FIELD: dict[str, np.dtype[Any]] = {
    "half_val": np.dtype("<u2"),
    "scomplex_val": np.dtype("<f4"),
    "dcomplex_val": np.dtype("<f8"),
}


def write_tensor(array: Array, proto: tfserving_pb2.TensorProto) -> None:
    """Raises InvalidInput for an array that TensorFlow has no type for."""
    name = type_name_of(array)
    proto.dtype = tfserving_pb2.DataType.Value(name)  # type: ignore[assignment]  # the stub wants the wrapper class
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if name == "DT_STRING":
        proto.string_val.extend(array.ravel().tolist())
        return
    proto.tensor_content = np.ascontiguousarray(array).tobytes()


def read_tensor(name: str, proto: tfserving_pb2.TensorProto) -> Array:
    """Raises Unavailable when values and shape do not agree."""
    type_name = tfserving_pb2.DataType.Name(proto.dtype)
    shape = [dim.size for dim in proto.tensor_shape.dim]
    try:
        if type_name == "DT_STRING":
            strings = np.empty(len(proto.string_val), object)
            strings[:] = list(proto.string_val)
            return strings.reshape(shape)
        dtype = numpy_dtype(type_name)
        if proto.tensor_content:
            return np.frombuffer(proto.tensor_content, dtype).reshape(shape)
        field = _TYPED_FIELDS.get(type_name, "int_val")
        values: Array = np.array(getattr(proto, field), _WIRE_TYPE_OF_FIELD.get(field, dtype))
        return values.view(dtype).reshape(shape)
    except ValueError as error:
        raise Unavailable(f"output {name} of the answer is no tensor of {type_name} {shape}: {error}") from error
