"""TensorFlow's types of tensors, and the values of a TensorProto. Needs no protobuf: the message is given."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from protos.tfserving_pb2 import TensorProto

NUMPY_TYPES = {
    "DT_FLOAT": "<f4", "DT_DOUBLE": "<f8", "DT_HALF": "<f2", "DT_INT8": "|i1", "DT_INT16": "<i2", "DT_INT32": "<i4",
    "DT_INT64": "<i8", "DT_UINT8": "|u1", "DT_UINT16": "<u2", "DT_UINT32": "<u4", "DT_UINT64": "<u8", "DT_BOOL": "|b1",
    "DT_COMPLEX64": "<c8", "DT_COMPLEX128": "<c16", "DT_STRING": "|O",
    "DT_BFLOAT16": "bfloat16",
}  # fmt: skip
"""TensorFlow's type name -> numpy's type string; numpy knows bfloat16 once ml_dtypes is imported."""
TYPED_FIELDS = dict.fromkeys(NUMPY_TYPES, "int_val") | {
    "DT_FLOAT": "float_val", "DT_DOUBLE": "double_val", "DT_HALF": "half_val", "DT_BFLOAT16": "half_val",
    "DT_INT64": "int64_val", "DT_BOOL": "bool_val", "DT_UINT32": "uint32_val", "DT_UINT64": "uint64_val",
    "DT_STRING": "string_val", "DT_COMPLEX64": "scomplex_val", "DT_COMPLEX128": "dcomplex_val",
}  # fmt: skip
"""Where a TensorProto has the values that are not in its content."""
WIRE_TYPES = NUMPY_TYPES | {"DT_HALF": "<u2", "DT_BFLOAT16": "<u2", "DT_COMPLEX64": "<f4", "DT_COMPLEX128": "<f8"}
"""numpy's type string of the numbers in the typed field."""


def values_of(name: str, proto: "TensorProto") -> "np.ndarray[Any, np.dtype[Any]]":
    """Flat, as many as were sent, of the type named.

    Raises:
        KeyError: the type is not in NUMPY_TYPES. ValueError: the content holds no whole number of values.
    """
    dtype = np.dtype(NUMPY_TYPES[name])
    if proto.tensor_content and not dtype.hasobject:
        return np.frombuffer(proto.tensor_content, dtype)
    return np.array(list(getattr(proto, TYPED_FIELDS[name])), WIRE_TYPES[name]).view(dtype)
