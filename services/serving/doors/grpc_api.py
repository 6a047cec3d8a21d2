"""The gRPC door: TensorFlow Serving's PredictionService and ModelService, for the stock client stubs.

The messages are ours (protos/tfserving.proto) with TensorFlow Serving's field numbers; the service names are theirs.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from common.access.guard import Rule, fields_of, require
from common.process.tracing import TRACEPARENT
from protos import queue_pb2, tfserving_pb2
from protos import tfserving_config_pb2 as config_pb2
from services.serving.doors.large_messages import LARGE_BYTES, LargeMessages
from services.serving.doors.message_heads import head_of
from services.serving.doors.readings import (
    Reading,
    examples_message,
    parsed,
    predict_message,
    predict_response,
    read_input,
    read_predict_request,
)
from services.serving.doors.rest_predict import VERSION_HEADER
from services.serving.doors.roles import CALLS, CALLS_TASKS, CALLS_TO_READ, RELOADS
from services.serving.front.core import Front
from services.serving.front.journal import MAX_TAG_BYTES, REQUEST_ID_HEADER, Entry, Journal, Tags
from services.serving.front.model_info import SIGNATURE_DEF, metadata_proto, status_proto, versions_of
from services.serving.front.prediction_keys import PREDICTION_KEY, joined
from services.serving.front.request_counts import CLASSIFY, MULTI_INFERENCE, PREDICT, REGRESS
from services.serving.front.routing import Route
from services.serving.front.split import Caller
from services.serving.wire.classify import (
    CLASSIFY_METHOD,
    REGRESS_METHOD,
    check_method,
    name_for,
    result_of,
)
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.prediction import RequestFailed, invalid
from services.serving.wire.replica_state import ReloadResult

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
SERVICE_NAMES = (PREDICTION_SERVICE, MODEL_SERVICE)
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_MESSAGE = 1024
_REQUEST_ID = REQUEST_ID_HEADER.decode()
_KEY = PREDICTION_KEY.decode()
_LONGEST_RELOAD_SECONDS = 3600.0
_Handler = Callable[..., Awaitable[Any]]
_HAVE_INPUTS = (
    tfserving_pb2.PredictRequest,
    tfserving_pb2.ClassificationRequest,
    tfserving_pb2.RegressionRequest,
    tfserving_pb2.MultiInferenceRequest,
)


Reload = Callable[..., Awaitable[ReloadResult]]
"""ManagerProcess.reload."""


def add_services(
    server: grpc.aio.Server, front: Front, journal: Journal, large: LargeMessages, *, reload: Reload | None = None
) -> None:
    """Registers both services at a server that is not started yet; `reload` where models come from a configuration."""
    door = _Door(front, journal, large, reload)
    messages = tfserving_pb2
    classify = partial(door.on_examples, api=CLASSIFY, method=CLASSIFY_METHOD, response=messages.ClassificationResponse)
    regress = partial(door.on_examples, api=REGRESS, method=REGRESS_METHOD, response=messages.RegressionResponse)
    prediction = {
        "Classify": _unary(classify, messages.ClassificationRequest, CALLS),
        "Regress": _unary(regress, messages.RegressionRequest, CALLS),
        "Predict": _unary(door.predict, messages.PredictRequest, CALLS),
        "MultiInference": _unary(door.multi_inference, messages.MultiInferenceRequest, CALLS_TASKS),
        "GetModelMetadata": _unary(door.get_model_metadata, messages.GetModelMetadataRequest, CALLS_TO_READ),
    }
    model = {
        "GetModelStatus": _unary(door.get_model_status, messages.GetModelStatusRequest, CALLS_TO_READ),
        "HandleReloadConfigRequest": _unary(door.reload_config, config_pb2.ReloadConfigRequest, RELOADS),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(PREDICTION_SERVICE, prediction),
            grpc.method_handlers_generic_handler(MODEL_SERVICE, model),
        )
    )


def _unary(behaviour: _Handler, request: Any, needed: Rule) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        _answering(behaviour, request, needed),
        response_serializer=lambda answer: answer if isinstance(answer, bytes) else answer.SerializeToString(),
    )


def _answering(behaviour: _Handler, message_type: Any, needed: Rule) -> _Handler:
    """TensorFlow Serving's codes and words; long messages are cut as it cuts them."""

    async def call(serialized: bytes, context: Any) -> Any:
        try:
            if len(serialized) <= LARGE_BYTES or message_type not in _HAVE_INPUTS:
                request = parsed(serialized, message_type)
                require(needed, fields_of(request))
                return await behaviour(request, context)
            head = head_of(serialized, message_type)
            require(needed, fields_of(head))
            return await behaviour(head, context, serialized)
        except RequestFailed as error:
            message = error.message
            if len(message) > _LONGEST_MESSAGE:
                message = message[:_LONGEST_MESSAGE] + "...TRUNCATED"
            return await context.abort(_STATUS_CODES.get(error.code, grpc.StatusCode.UNKNOWN), message)

    return call


class _Door:
    """`whole`: a large request, of which `request` has the head alone."""

    def __init__(self, front: Front, journal: Journal, large: LargeMessages, reload: Reload | None) -> None:
        self._front, self._reload = front, reload
        self._large = large
        self._journal = journal
        self._tags = Tags()

    async def predict(
        self, request: tfserving_pb2.PredictRequest, context: Any, whole: bytes = b""
    ) -> tfserving_pb2.PredictResponse | bytes:
        with self._entry(request.model_spec.name, context, PREDICT) as entry:
            route = await self._route(request, context, entry)
            spec, seconds = request.model_spec, context.time_remaining()
            self._front.check_room(spec.name, *_version_and_label(spec), seconds)
            if whole:
                reading = await self._large.read(
                    predict_message, whole, route, timeout_seconds=self._front.within(seconds)
                )
            else:
                reading = read_predict_request(request, route, self._front.limits)
            if keys := _keys_of(context):
                self._journal.key(entry, keys, rows=reading.rows, alias=route.alias)
            reply = await self._reply(route, reading, entry, context.time_remaining())
            write = partial(predict_response, spec=_answered_by(spec, reply))
            if reply.ByteSize() <= LARGE_BYTES:
                return write(reply)
            return await self._large.write(write, reply, timeout_seconds=self._front.within(context.time_remaining()))

    async def on_examples(
        self, request: Any, context: Any, whole: bytes = b"", *, api: str, method: str, response: Callable[..., Any]
    ) -> Any:
        """Classifies or regresses."""
        with self._entry(request.model_spec.name, context, api) as entry:
            route = await self._route(request, context, entry)
            call = _Call(route, method, request.model_spec, entry, context.time_remaining())
            spec, result = await self._run_method(call, request, whole)
            return response(model_spec=spec, result=result)

    async def _run_method(self, call: "_Call", request: Any, whole: bytes) -> tuple[tfserving_pb2.ModelSpec, Any]:
        name, seconds = call.spec.signature_name, call.timeout_seconds
        if whole:
            arguments = (type(request), call.method, name)
            reading = await self._large.read(
                examples_message, whole, call.route, *arguments, timeout_seconds=self._front.within(seconds)
            )
        else:
            reading = read_input(request.input, call.route, self._front.limits, call.method, name)
        if reading.sharing:
            self._front.contexts.add(call.spec.name, reading.sharing)
        reply = await self._reply(call.route, reading, call.entry, seconds)
        return _answered_by(call.spec, reply), result_of(call.method, reply, reading.rows)

    async def multi_inference(
        self, request: tfserving_pb2.MultiInferenceRequest, context: Any, whole: bytes = b""
    ) -> tfserving_pb2.MultiInferenceResponse:
        model = request.tasks[0].model_spec.name if request.tasks else ""
        with self._entry(model, context, MULTI_INFERENCE) as entry:
            route = await self._route_of_tasks(request.tasks, context, entry)
            timeout_seconds = context.time_remaining()
            answers = await asyncio.gather(
                *(
                    self._run_method(
                        _Call(route, task.method_name, task.model_spec, entry, timeout_seconds), request, whole
                    )
                    for task in request.tasks
                )
            )
            response = tfserving_pb2.MultiInferenceResponse()
            for task, (spec, result) in zip(request.tasks, answers, strict=True):
                item = response.results.add(model_spec=spec)
                classifies = task.method_name == CLASSIFY_METHOD
                (item.classification_result if classifies else item.regression_result).CopyFrom(result)
            return response

    async def _route_of_tasks(self, tasks: Sequence[tfserving_pb2.InferenceTask], context: Any, entry: Entry) -> Route:
        """The route of the first task, by the number of its version, so that the same version answers all of them.
        Raises RequestFailed: the tasks do not go together, or a task cannot be run."""
        if not tasks or not tasks[0].model_spec.name:
            raise invalid("ModelSpec has no name specified.")
        route = await self._route(tasks[0], context, entry)
        names: set[str] = set()
        for task in tasks:
            spec = task.model_spec
            name = name_for(task.method_name, route, spec.signature_name) or DEFAULT_SIGNATURE
            if not spec.name:
                raise invalid("Found ModelSpec with an empty model name.")
            if spec.name != tasks[0].model_spec.name:
                raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
            if name in names:
                raise invalid(f"Duplicate evaluation of signature: {name}")
            names.add(name)
            if route.signature(name) is None:
                raise invalid(f"Requested signature not found in model graph: {name}")
            check_method(task.method_name)
        return self._front.resolve(tasks[0].model_spec.name, version=route.version.version)

    @contextlib.contextmanager
    def _entry(self, model: str, context: Any, api: str) -> Iterator[Entry]:
        """A request in the journal; its tag and the version that answered go back as trailing metadata."""
        tag, traceparent = b"", ""
        for key, value in context.invocation_metadata() or ():
            if key == _REQUEST_ID and len(value) <= MAX_TAG_BYTES:
                tag = value.encode("latin-1")
            elif key == TRACEPARENT:
                traceparent = value
        entry = Entry(model, "grpc", tag or self._tags.new(), api)
        if self._journal.is_tracing:
            self._journal.trace(entry, traceparent)
        try:
            if api != PREDICT and _keys_of(context):
                raise invalid("X-Prediction-Key goes with Predict alone")
            yield entry
        except RequestFailed as error:
            if entry.version:
                self._journal.answered(entry, error.code, error.message)
            else:
                self._journal.refused(entry, error.code, error.message, is_known=self._front.routing.knows(model))
            context.set_trailing_metadata(_trailing(entry))
            raise
        self._journal.answered(entry, 0, "")
        context.set_trailing_metadata(_trailing(entry))

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
        return metadata_proto(await self._route(request, context))

    async def get_model_status(
        self, request: tfserving_pb2.GetModelStatusRequest, context: Any
    ) -> tfserving_pb2.GetModelStatusResponse:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        return status_proto(versions_of(self._front.routing.state, spec.name, version))

    async def reload_config(
        self, request: config_pb2.ReloadConfigRequest, context: Any
    ) -> config_pb2.ReloadConfigResponse:
        """Answers when the models that are new are available, or could not be made so. None of the counters that
        metric_names may name exist here, so no increases are reported.

        Raises:
            RequestFailed: the configuration is refused and changed nothing, or a new model could not be loaded.
            Unavailable: nothing was decided before the client's deadline.
        """
        if self._reload is None:
            raise RequestFailed(
                Code.FAILED_PRECONDITION,
                "this server takes its models from a registry and has no configuration to reload; "
                "move the model's alias in the registry instead",
            )
        remaining = context.time_remaining()
        timeout_seconds = _LONGEST_RELOAD_SECONDS if remaining is None else min(remaining, _LONGEST_RELOAD_SECONDS)
        result = await self._reload(request.config.SerializeToString(), timeout_seconds=timeout_seconds)
        if result.code:
            raise RequestFailed(result.code, result.message)
        response = config_pb2.ReloadConfigResponse()
        response.status.error_code = 0
        return response

    async def _route(self, request: Any, context: Any, entry: Entry | None = None) -> Route:
        """`entry` of a prediction, which a canary may answer."""
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        if not spec.name:
            raise invalid("ModelSpec has no name specified.")
        caller = Caller(_keys_of(context), entry.tag) if entry is not None and self._front.routing.splits else None
        return await self._front.route(spec.name, *_version_and_label(spec), context.time_remaining(), caller)

    async def _reply(
        self, route: Route, reading: Reading, entry: Entry, timeout_seconds: float | None
    ) -> queue_pb2.PredictionReply:
        """Raises RequestFailed with the runner's or the front's reason."""
        answered: asyncio.Future[queue_pb2.PredictionReply] = asyncio.get_running_loop().create_future()

        def answer(reply: queue_pb2.PredictionReply) -> None:
            if not answered.done():
                answered.set_result(reply)

        request = reading.request
        logged = reading.whole() if self._journal.takes(entry) else None
        if entry.span is not None:
            request.traceparent = entry.span.traceparent
        request_id = self._front.submit(
            route, request, answer, timeout_seconds=timeout_seconds, serialized=reading.serialized, rows=reading.rows
        )
        try:
            reply = await answered
        finally:
            self._front.forget(request_id)
        entry.take(reply)
        entry.signature = request.signature or DEFAULT_SIGNATURE
        if logged is not None:
            self._journal.log(entry, logged, reply)
        if reply.error_code:
            raise RequestFailed(reply.error_code, reply.error_message)
        return reply


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of classify or regress, or a task of a MultiInference."""

    route: Route
    method: str
    spec: tfserving_pb2.ModelSpec
    entry: Entry
    timeout_seconds: float | None


def _keys_of(context: Any) -> bytes:
    """b"" where the call has none."""
    return joined(value.encode() for key, value in context.invocation_metadata() or () if key == _KEY)


def _trailing(entry: Entry) -> tuple[tuple[str, str], ...]:
    tag = (_REQUEST_ID, entry.tag.decode("latin-1"))
    return (tag, (VERSION_HEADER, str(entry.version))) if entry.version else (tag,)


def _version_and_label(spec: tfserving_pb2.ModelSpec) -> tuple[int | None, str | None]:
    """Version and label, each None unless the request names it."""
    choice = spec.WhichOneof("version_choice")
    return (
        spec.version.value if choice == "version" else None,
        spec.version_label if choice == "version_label" else None,
    )


def _answered_by(spec: tfserving_pb2.ModelSpec, reply: queue_pb2.PredictionReply) -> tfserving_pb2.ModelSpec:
    """The model_spec of an answer: never the label."""
    answered = tfserving_pb2.ModelSpec(name=spec.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE)
    answered.version.value = reply.version
    return answered
