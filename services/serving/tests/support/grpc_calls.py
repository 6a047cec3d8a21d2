"""Calls of TensorFlow Serving's gRPC services with our own messages."""

from collections.abc import Sequence
from typing import Any

import grpc

from protos import tfserving_pb2


def stub(channel: grpc.Channel, method: str, response: Any = bytes) -> Any:
    """A method by its whole path. What is called on it are grpc's own: with_call, future."""
    return channel.unary_unary(
        method, request_serializer=lambda message: message.SerializeToString(), response_deserializer=response
    )


def predict_stub(channel: grpc.Channel) -> Any:
    return stub(channel, "/tensorflow.serving.PredictionService/Predict", tfserving_pb2.PredictResponse.FromString)


def predict_request(*rows: Sequence[float], model: str = "m") -> tfserving_pb2.PredictRequest:
    """The rows as float32 for the input x."""
    request = tfserving_pb2.PredictRequest(model_spec={"name": model})
    tensor = request.inputs["x"]
    tensor.dtype = tfserving_pb2.DT_FLOAT
    for size in (len(rows), len(rows[0])):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(value for row in rows for value in row)
    return request
