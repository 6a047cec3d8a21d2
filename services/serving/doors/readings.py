"""A request as the queue carries it, and its answer as a door writes it: plain functions.

A small message is read where it came in. A large one is handed, with the name of a function of this module, to a
process beside the front (large_messages.py), and comes back serialized.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from common.definition.inputs import WITH_CONTEXT
from protos import queue_pb2, tfserving_pb2
from services.serving.doors.classify_json import read_examples, write_result
from services.serving.rest_json.predict import Document, read_inputs, write_answer
from services.serving.wire.classify import Signatures, examples_of, name_for, request_for, result_of, signature_for
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.limits import Limits
from services.serving.wire.prediction import (
    RequestFailed,
    check_names,
    invalid,
    under_inputs,
    write_tensor,
)
from services.serving.wire.signature_defs import default_inputs
from services.serving.wire.tensors import read_tensor_protos, write_tensor_proto

Message = bytes | bytearray


@dataclass(slots=True)
class Reading:
    """A request that was read.

    Attributes:
        request: for the queue; of a large message only its signature.
        serialized: of a large message, the whole of it.
        rows: how many it has; 1 where its inputs have none.
        is_rows: whether it came as rows of JSON, so that the answer is in rows, too.
        sharing: how many of them share a context, which was read once.
    """

    request: queue_pb2.PredictionRequest
    rows: int
    is_rows: bool = False
    sharing: int = 0
    serialized: bytes = b""

    @property
    def is_once(self) -> bool:
        """Whether the model transforms their context once."""
        return bool(self.sharing) and self.request.signature == WITH_CONTEXT

    def whole(self) -> queue_pb2.PredictionRequest:
        return queue_pb2.PredictionRequest.FromString(self.serialized) if self.serialized else self.request


def predict_body(body: Message, served: Signatures, limits: Limits) -> Reading:
    """A REST call of predict. Raises RequestFailed."""
    return read_document(Document(body, limits), served, limits)


def read_document(document: Document, served: Signatures, limits: Limits) -> Reading:
    """Raises RequestFailed: the signature or the inputs are not served."""
    signature = served.signature(document.signature_name)
    if signature is None:
        name = document.signature_name
        raise invalid(f'Serving signature name: "{name}" not found in signature def{served.meant(name)}')
    is_default = document.signature_name == DEFAULT_SIGNATURE
    once = served.signature(WITH_CONTEXT) if is_default and "context" in document.fields else None
    inputs = read_inputs(document, signature, limits, once=once)
    request = queue_pb2.PredictionRequest(signature=WITH_CONTEXT if inputs.is_once else document.signature_name)
    for name, array in inputs.arrays.items():
        write_tensor(request.inputs.add(), name, array)
    if inputs.defaulted:
        request.defaulted.update(inputs.defaulted)
    return Reading(request, rows_of(request), inputs.is_rows, inputs.sharing)


def examples_body(body: Message, served: Signatures, limits: Limits, method: str) -> Reading:
    """A REST call of classify or regress. Raises RequestFailed."""
    document = Document(body, limits)
    return reading_of(read_examples(document.fields, limits), document, served, method)


def reading_of(examples: list[bytes], document: Document, served: Signatures, method: str) -> Reading:
    """`examples`: the document's. Raises RequestFailed: the signature is not served."""
    name = name_for(method, served, document.fields.get("signature_name", ""))
    request = request_for(name, signature_for(method, served, name), examples)
    return Reading(request, len(examples), sharing=len(examples) if "context" in document.fields else 0)


def predict_message(message: Message, served: Signatures, limits: Limits) -> Reading:
    """A gRPC call of Predict. Raises RequestFailed."""
    return read_predict_request(parsed(message, tfserving_pb2.PredictRequest), served, limits)


def read_predict_request(given: tfserving_pb2.PredictRequest, served: Signatures, limits: Limits) -> Reading:
    """Raises RequestFailed: the signature or the inputs are not served."""
    name = given.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = served.signature(name)
    if signature is None:
        sentence = f'Serving signature key "{name}" not found{served.meant(name) or "."}'
        raise RequestFailed(Code.FAILED_PRECONDITION, sentence)
    inputs = under_inputs(given.inputs, signature) if signature.aliases else given.inputs
    check_names(signature, inputs, defaults=signature.defaults.keys() | signature.optional.keys())
    request = queue_pb2.PredictionRequest(signature=name, output_filter=given.output_filter)
    read_tensor_protos(default_inputs(signature) | dict(inputs), request, max_bytes=limits.max_bytes)
    rows = rows_of(request)
    if signature.has_schema:
        limits.check_rows(rows)
    return Reading(request, rows)


def examples_message(
    message: Message, served: Signatures, limits: Limits, kind: Any, method: str, signature_name: str
) -> Reading:
    """The examples of a gRPC call of that kind: Classify, Regress or MultiInference. Raises RequestFailed."""
    return read_input(parsed(message, kind).input, served, limits, method, signature_name)


def read_input(
    given: tfserving_pb2.Input, served: Signatures, limits: Limits, method: str, signature_name: str
) -> Reading:
    """Raises RequestFailed."""
    name = name_for(method, served, signature_name)
    signature = signature_for(method, served, name)
    examples = examples_of(given, limits)
    is_sharing = given.WhichOneof("kind") == "example_list_with_context"
    return Reading(request_for(name, signature, examples), len(examples), sharing=len(examples) if is_sharing else 0)


def rows_of(request: queue_pb2.PredictionRequest) -> int:
    """Size of dimension 0 of the first input, of the largest beside a context; 1 where there is none."""
    if request.signature == WITH_CONTEXT:
        return max((tensor.shape[0] for tensor in request.inputs if tensor.shape), default=1)
    return next((tensor.shape[0] for tensor in request.inputs if tensor.shape), 1)


def parsed(message: Message, kind: Any) -> Any:
    """Raises RequestFailed: an unreadable message is the caller's fault."""
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise invalid(f"the request is no {kind.DESCRIPTOR.name}") from error


def predict_json(reply: queue_pb2.PredictionReply, *, rows: bool) -> bytes:
    """REST's answer to predict. Raises RequestFailed."""
    return write_answer(reply, rows=rows)


def result_json(reply: queue_pb2.PredictionReply, *, method: str, count: int) -> bytes:
    """REST's answer to classify or regress. Raises RequestFailed."""
    return write_result(result_of(method, reply, count))


def predict_response(
    reply: queue_pb2.PredictionReply, *, spec: tfserving_pb2.ModelSpec
) -> tfserving_pb2.PredictResponse:
    """gRPC's answer to Predict. Raises RequestFailed."""
    response = tfserving_pb2.PredictResponse(model_spec=spec)
    for tensor in reply.outputs:
        write_tensor_proto(tensor, response.outputs[tensor.name])
    return response


def read_aside(message: bytearray, *, read: Callable[..., Reading], arguments: tuple[Any, ...]) -> tuple[Any, bytes]:
    """In the process beside the front. Raises RequestFailed."""
    reading = read(message, *arguments)
    facts = (reading.request.signature, reading.rows, reading.is_rows, reading.sharing)
    return facts, reading.request.SerializeToString()


def write_aside(reply: bytearray, *, write: Callable[[queue_pb2.PredictionReply], Any]) -> tuple[Any, bytes]:
    """In the process beside the front. Raises RequestFailed."""
    written = write(queue_pb2.PredictionReply.FromString(bytes(reply)))
    return None, written if isinstance(written, bytes) else written.SerializeToString()
