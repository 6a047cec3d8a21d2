"""A closed loop over gRPC in asyncio: N calls open at a time, each with the same serialized request.

It costs a few hundred microseconds a call itself, more than wrk by far: compare gRPC rows with gRPC rows only. Messages
go out and come in as bytes, so that no time is spent on protobuf here.
"""

import asyncio
import time
from collections.abc import Callable

import grpc

from benchmarks.serving_load.load import Load
from protos import tfserving_pb2

_CALLS_PER_CHANNEL = 32
_TIMEOUT_SECONDS = 10.0
_MESSAGE_BYTES = 64 * 1024 * 1024
PREDICT = "/tensorflow.serving.PredictionService/Predict"
V2_INFER = "/inference.GRPCInferenceService/ModelInfer"


def predict_request(model: str, content: bytes, shape: list[int]) -> bytes:
    """TensorFlow Serving's PredictRequest with one float32 input `x`."""
    request = tfserving_pb2.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = tfserving_pb2.DT_FLOAT
    for size in shape:
        tensor.tensor_shape.dim.add().size = size
    tensor.tensor_content = content
    return request.SerializeToString()


def v2_request(model: str, content: bytes, shape: list[int]) -> bytes:
    """KServe's ModelInferRequest with one FP32 input `x`, written by hand: model_name = 1, inputs = 5 (name = 1,
    datatype = 2, shape = 3), raw_input_contents = 7 (open inference protocol, grpc_predict_v2.proto)."""
    sizes = b"".join(map(_varint, shape))
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, sizes)
    return _field(1, model.encode()) + _field(5, tensor) + _field(7, content)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def run(
    target: str,
    method: str,
    request: bytes,
    *,
    calls: int,
    seconds: float,
    is_right: Callable[[bytes], bool] = bool,
) -> Load:
    """Keeps `calls` calls open for some seconds; an answer that is not right counts as an error."""
    return asyncio.run(_run(target, method, request, calls, seconds, is_right))


async def _run(
    target: str, method: str, request: bytes, calls: int, seconds: float, is_right: Callable[[bytes], bool]
) -> Load:
    options = [
        ("grpc.max_send_message_length", _MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    channels = [
        grpc.aio.insecure_channel(target, options=options)
        for _ in range((calls + _CALLS_PER_CHANNEL - 1) // _CALLS_PER_CHANNEL)
    ]
    latencies: list[float] = []
    errors = 0
    started = time.perf_counter()

    async def predict(channel: grpc.aio.Channel) -> None:
        nonlocal errors
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            method, request_serializer=None, response_deserializer=None
        )
        while (begun := time.perf_counter()) < started + seconds:
            try:
                answer = await call(request, timeout=_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError:
                errors += 1
                await asyncio.sleep(0.01)
                continue
            latencies.append(time.perf_counter() - begun)
            errors += not is_right(answer)

    await asyncio.gather(*[predict(channels[index % len(channels)]) for index in range(calls)])
    elapsed = time.perf_counter() - started
    for channel in channels:
        await channel.close()
    if not latencies:
        return Load(0, elapsed, float("nan"), float("nan"), errors)
    latencies.sort()
    count = len(latencies)
    return Load(count, elapsed, latencies[count // 2] * 1e3, latencies[min(count - 1, count * 99 // 100)] * 1e3, errors)
