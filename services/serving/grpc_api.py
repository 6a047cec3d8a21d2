"""The gRPC door: TensorFlow Serving's PredictionService and ModelService, for the stock client stubs.

The messages are ours (protos/tfserving.proto) with TensorFlow Serving's field numbers; the service names are theirs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from protos import queue_pb2, tfserving_pb2
from services.serving.front import Front, Route
from services.serving.json_values import invalid
from services.serving.model_info import SIGNATURE_DEF, metadata_proto, status_proto, versions_of
from services.serving.prediction import UNIMPLEMENTED, RequestFailed
from services.serving.queue_keys import DEFAULT_SIGNATURE
from services.serving.statistics import Statistics
from services.serving.tensors import read_tensor_proto, write_tensor_proto

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
SERVICE_NAMES = (PREDICTION_SERVICE, MODEL_SERVICE)
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_MESSAGE = 1024
_Handler = Callable[[Any, Any], Awaitable[Any]]


def add_services(server: grpc.aio.Server, front: Front, statistics: Statistics) -> None:
    """Registers both services at a server that is not started yet."""
    door = _Door(front, statistics)
    messages = tfserving_pb2
    prediction = {
        "Predict": _unary(door.predict, messages.PredictRequest),
        "GetModelMetadata": _unary(door.get_model_metadata, messages.GetModelMetadataRequest),
    } | {name: _unary(_not_served(name), None) for name in ("Classify", "Regress", "MultiInference")}
    model = {
        "GetModelStatus": _unary(door.get_model_status, messages.GetModelStatusRequest),
        "HandleReloadConfigRequest": _unary(_not_served("HandleReloadConfigRequest"), None),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(PREDICTION_SERVICE, prediction),
            grpc.method_handlers_generic_handler(MODEL_SERVICE, model),
        )
    )


def _unary(behaviour: _Handler, request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        _answering(behaviour),
        request_deserializer=request.FromString if request is not None else None,
        response_serializer=lambda response: response.SerializeToString(),
    )


def _answering(behaviour: _Handler) -> _Handler:
    """TensorFlow Serving's codes and words; long messages are cut as it cuts them."""

    async def call(request: Any, context: Any) -> Any:
        try:
            return await behaviour(request, context)
        except RequestFailed as error:
            message = error.message
            if len(message) > _LONGEST_MESSAGE:
                message = message[:_LONGEST_MESSAGE] + "...TRUNCATED"
            return await context.abort(_STATUS_CODES.get(error.code, grpc.StatusCode.UNKNOWN), message)

    return call


def _not_served(name: str) -> _Handler:
    async def refuse(request: Any, context: Any) -> Any:
        raise RequestFailed(UNIMPLEMENTED, f"{name} is not served here yet; use Predict")

    return refuse


class _Door:
    def __init__(self, front: Front, statistics: Statistics) -> None:
        self._front = front
        self._statistics = statistics

    async def predict(self, request: tfserving_pb2.PredictRequest, context: Any) -> tfserving_pb2.PredictResponse:
        started_at = time.perf_counter()
        spec = request.model_spec
        code = 0
        try:
            route = self._route(request)
            asked = queue_pb2.PredictionRequest(signature=spec.signature_name, output_filter=request.output_filter)
            for alias, proto in request.inputs.items():
                read_tensor_proto(alias, proto, asked.inputs.add())
            reply = await self._reply(route, asked, context.time_remaining())
            return _response(spec, reply)
        except RequestFailed as error:
            code = error.code
            raise
        finally:
            known = self._front.state is not None and spec.name in self._front.state.models
            self._statistics.add(spec.name if known else "", "grpc", code, time.perf_counter() - started_at)

    async def get_model_metadata(
        self, request: tfserving_pb2.GetModelMetadataRequest, context: Any
    ) -> tfserving_pb2.GetModelMetadataResponse:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURE_DEF:
                raise invalid(f"Metadata field {field} is not supported")
        return metadata_proto(self._route(request))

    async def get_model_status(
        self, request: tfserving_pb2.GetModelStatusRequest, context: Any
    ) -> tfserving_pb2.GetModelStatusResponse:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        return status_proto(versions_of(self._front.state, spec.name, version))

    def _route(self, request: Any) -> Route:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        if not spec.name:
            raise invalid("ModelSpec has no name specified.")
        choice = spec.WhichOneof("version_choice")
        return self._front.resolve(
            spec.name,
            version=spec.version.value if choice == "version" else None,
            label=spec.version_label if choice == "version_label" else None,
        )

    async def _reply(
        self, route: Route, request: queue_pb2.PredictionRequest, timeout_seconds: float | None
    ) -> queue_pb2.PredictionReply:
        """Raises RequestFailed with what the runner or the front says is wrong."""
        answered: asyncio.Future[queue_pb2.PredictionReply] = asyncio.get_running_loop().create_future()

        def answer(reply: queue_pb2.PredictionReply) -> None:
            if not answered.done():
                answered.set_result(reply)

        request_id = self._front.submit(route, request, answer, timeout_seconds=timeout_seconds)
        try:
            reply = await answered
        finally:
            self._front.forget(request_id)
        if reply.error_code:
            raise RequestFailed(reply.error_code, reply.error_message)
        return reply


def _response(spec: tfserving_pb2.ModelSpec, reply: queue_pb2.PredictionReply) -> tfserving_pb2.PredictResponse:
    response = tfserving_pb2.PredictResponse()
    response.model_spec.name = spec.name
    response.model_spec.version.value = reply.version
    response.model_spec.signature_name = spec.signature_name or DEFAULT_SIGNATURE
    for tensor in reply.outputs:
        write_tensor_proto(tensor, response.outputs[tensor.name])
    return response
