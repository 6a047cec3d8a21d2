"""Predictions over TensorFlow Serving's gRPC API, for headrace/client/predictions.py. Needs grpcio and protobuf."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from common.errors import KINDS, HeadraceError, InvalidInput, Unavailable
from common.examples.naming import with_truths
from common.process.retry import Backoff, Pauses
from common.suggestions import there_is_no
from headrace.client.credentials import token_for
from headrace.client.harmless import harmless
from headrace.client.prediction_types import Call, PendingPrediction, Prediction, Target
from headrace.client.tensor_protos import read_tensor, write_tensor
from headrace.client.tensor_values import SignatureTypes, as_input
from protos import tfserving_pb2

_SERVICE = "/tensorflow.serving.PredictionService/"
_REFUSALS = (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION)
_ERROR_OF_CODE: dict[grpc.StatusCode, type[HeadraceError]] = {
    **{grpc.StatusCode[kind.grpc]: kind for kind in KINDS},
    **dict.fromkeys(_REFUSALS, InvalidInput),
}
_REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_NO_ASYNC = "asynchronous predictions have no gRPC door; use http://host:port"


class GrpcTransport:
    """Inputs are cast to the types of the signature, which is read once per target and again after a refusal."""

    def __init__(self, address: str, token: str | None = None, *, credentials: Any = None) -> None:
        """`credentials` are grpc.ChannelCredentials; None: plain text."""
        self._address = address
        token = token_for(address) if token is None else token
        self._shown = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = (
            grpc.secure_channel(address, credentials, options=_UNLIMITED)
            if credentials
            else grpc.insecure_channel(address, options=_UNLIMITED)
        )
        self._predict = self._method("Predict", tfserving_pb2.PredictResponse)
        self._metadata = self._method("GetModelMetadata", tfserving_pb2.GetModelMetadataResponse)
        self._signatures: dict[Target, SignatureTypes] = {}
        self._lock = threading.Lock()

    def _method(self, name: str, response: Any) -> Callable[..., Any]:
        method: Callable[..., Any] = self._channel.unary_unary(
            _SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        ).with_call
        return method

    def close(self) -> None:
        self._channel.close()

    def predict(self, call: Call) -> Prediction:
        types = self._known(call.target, call.deadline)
        request = tfserving_pb2.PredictRequest(output_filter=call.output_filter)
        _fill_spec(request.model_spec, call.target)
        given = call.inputs if isinstance(call.inputs, dict) else {_only_input(types): call.inputs}
        for name, value in given.items():
            called = types.name_of.get(name, name)
            value = with_truths(_as_list(value)) if called in types.yes_no else value
            write_tensor(as_input(name, value, types.inputs.get(called)), request.inputs[name])
        try:
            response, told = self._call(self._predict, request, call.deadline, (("x-request-id", call.request_id),))
        except InvalidInput:
            with self._lock:
                self._signatures.pop(call.target, None)
            raise
        trailing = {item.key: item.value for item in told.trailing_metadata() or ()}
        outputs = {name: read_tensor(name, proto) for name, proto in response.outputs.items()}
        return Prediction(outputs, response.model_spec.version.value, trailing.get("x-request-id", call.request_id))

    def signature(self, target: Target, deadline: float) -> SignatureTypes:
        request = tfserving_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        _fill_spec(request.model_spec, target)
        request.model_spec.signature_name = ""
        response, _ = self._call(self._metadata, request, deadline, ())
        signatures = tfserving_pb2.SignatureDefMap.FromString(response.metadata["signature_def"].value).signature_def
        name = target.signature_name or "serving_default"
        if name not in signatures:
            raise InvalidInput(there_is_no(f"signature {name}", name, sorted(signatures)))
        names = tfserving_pb2.DataType.Name
        found = signatures[name]
        return SignatureTypes(
            {key: names(info.dtype) for key, info in found.inputs.items()},
            {key: names(info.dtype) for key, info in found.outputs.items()},
            frozenset(found.defaults),
            dict(found.aliases),
            frozenset(found.yes_no),
        )

    def predict_raw(self, target: Target, body: bytes, deadline: float) -> bytes:
        raise InvalidInput("JSON bodies go over REST; use http://host:port")

    def submit(self, call: Call, deadline_seconds: float | None) -> PendingPrediction:
        raise InvalidInput(_NO_ASYNC)

    def poll(self, pending: PendingPrediction, wait_seconds: float, deadline: float) -> Prediction | None:
        raise InvalidInput(_NO_ASYNC)

    def cancel(self, pending: PendingPrediction, deadline: float) -> bool:
        raise InvalidInput(_NO_ASYNC)

    def _known(self, target: Target, deadline: float) -> SignatureTypes:
        known = self._signatures.get(target)
        if known is None:
            known = self.signature(target, deadline)
            with self._lock:
                self._signatures[target] = known
        return known

    def _call(self, method: Callable[..., Any], request: Any, deadline: float, metadata: Any) -> tuple[Any, Any]:
        pauses = Pauses(_BACKOFF)
        while True:
            left_seconds = max(0.001, deadline - time.monotonic())
            try:
                answer: tuple[Any, Any] = method(request, timeout=left_seconds, metadata=(*metadata, *self._shown))
                return answer
            except grpc.RpcError as error:
                code, details = error.code(), harmless(str(error.details()))
                wait_seconds = pauses.next_seconds()
                # Without time the next attempt would hide this answer.
                if code not in _REPEATED or time.monotonic() + 2 * wait_seconds >= deadline:
                    raise self._error(code, details) from error
            time.sleep(wait_seconds)

    def _error(self, code: grpc.StatusCode, details: str) -> HeadraceError:
        kind = _ERROR_OF_CODE.get(code, Unavailable)
        return kind(details if kind is not Unavailable else f"serving at {self._address}: {code.name}: {details}")


def _as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _only_input(types: SignatureTypes) -> str:
    required = types.inputs.keys() - types.defaults or types.inputs.keys()
    if len(required) != 1:
        raise InvalidInput(f"the signature has the inputs {', '.join(sorted(types.inputs))}; name them")
    return next(iter(required))


def _fill_spec(spec: tfserving_pb2.ModelSpec, target: Target) -> None:
    spec.name, spec.signature_name = target.model, target.signature_name
    if target.version is not None:
        spec.version.value = target.version
    elif target.label is not None:
        spec.version_label = target.label
