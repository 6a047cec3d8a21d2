"""Arrays as TensorProto messages, as gRPC and the request log carry them. Needs protobuf."""

import numpy as np

from common.errors import Unavailable
from common.tensors import values_of
from headrace.client.tensor_values import Array, numpy_dtype, type_name_of
from protos import tfserving_pb2


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
        numpy_dtype(type_name)  # refuses a type that no array here has
        return values_of(type_name, proto).reshape(shape)
    except ValueError as error:
        raise Unavailable(f"output {name} of the answer is no tensor of {type_name} {shape}: {error}") from error
