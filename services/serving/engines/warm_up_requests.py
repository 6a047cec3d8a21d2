"""The requests that come with a version, as predictions of its signatures.

They lie where TensorFlow Serving looks for them and follow its rules
(https://www.tensorflow.org/tfx/serving/saved_model_warmup):
`<version>/assets.extra/tf_serving_warmup_requests`, a TFRecord of PredictionLog. Model name and version in a record are
not looked up, the signature is.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from common.errors import DataLoss
from common.eventlog import tfrecord
from protos import queue_pb2, tfserving_pb2, warmup_pb2
from services.serving.wire.classify import (
    CLASSIFY_METHOD,
    REGRESS_METHOD,
    Named,
    check_method,
    examples_of,
    name_for,
    request_for,
    signature_for,
)
from services.serving.wire.codes import Code
from services.serving.wire.limits import DEFAULT_LIMITS
from services.serving.wire.prediction import Prediction, RequestFailed, invalid, read_prediction
from services.serving.wire.replica_state import Signature
from services.serving.wire.tensors import read_tensor_protos

REQUESTS_PATH = Path("assets.extra/tf_serving_warmup_requests")
MAX_RECORDS = 1000
_REFUSED_KINDS = ("session_run_log", "predict_streamed_log")
Signatures = Mapping[str, Signature]


def recorded_predictions(directory: Path, signatures: Signatures) -> Iterator[tuple[int, list[Prediction]]]:
    """Each record's number with its predictions: one, several for a multi-inference, none for an empty record. Raises
    RequestFailed: the file or a record cannot be read, or is not for the signatures."""
    path = directory / REQUESTS_PATH
    for number, record in enumerate(_read(path)):
        try:
            yield number, _predictions(record, signatures)
        except RequestFailed as error:
            raise failed_request(number, error) from error


def failed_request(number: int, error: RequestFailed) -> RequestFailed:
    """The error, with the number of the request."""
    return RequestFailed(error.code, f"warm-up request {number} of {REQUESTS_PATH.name} failed: {error.message}")


def _read(path: Path) -> Iterator[warmup_pb2.PredictionLog]:
    """The records of a file; nothing when there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        if tfrecord.count(content) > MAX_RECORDS:
            raise invalid(f"{path.name} has more than {MAX_RECORDS} warm-up requests")
        records, _ = tfrecord.cut(content)
    except DataLoss as error:
        raise RequestFailed(Code.DATA_LOSS, f"{path.name} is not a TFRecord file: {error.message}") from error
    for number, record in enumerate(records):
        try:
            yield warmup_pb2.PredictionLog.FromString(record)
        except DecodeError as error:
            raise invalid(f"{path.name}: record {number} is no PredictionLog") from error


def _predictions(record: warmup_pb2.PredictionLog, signatures: Signatures) -> list[Prediction]:
    kind = record.WhichOneof("log_type")
    if kind is None:
        return []
    if kind in _REFUSED_KINDS:
        raise RequestFailed(Code.UNIMPLEMENTED, f"Unsupported log_type for warmup: {kind}")
    if kind == "predict_log":
        return [_predict(record.predict_log.request, signatures)]
    if kind == "multi_inference_log":
        request = record.multi_inference_log.request
        return [
            _infer(task.method_name, task.model_spec.signature_name, request.input, signatures)
            for task in request.tasks
        ]
    if kind == "classify_log":
        classify = record.classify_log.request
        return [_infer(CLASSIFY_METHOD, classify.model_spec.signature_name, classify.input, signatures)]
    regress = record.regress_log.request
    return [_infer(REGRESS_METHOD, regress.model_spec.signature_name, regress.input, signatures)]


def _predict(request: tfserving_pb2.PredictRequest, signatures: Signatures) -> Prediction:
    queued = queue_pb2.PredictionRequest(
        signature=request.model_spec.signature_name, output_filter=request.output_filter
    )
    read_tensor_protos(request.inputs, queued)
    return read_prediction(queued, signatures)


def _infer(method: str, signature_name: str, given: tfserving_pb2.Input, signatures: Signatures) -> Prediction:
    """As a door reads classify and regress."""
    check_method(method)
    served = Named(signatures)
    name = name_for(method, served, signature_name)
    request = request_for(name, signature_for(method, served, name), examples_of(given, DEFAULT_LIMITS))
    return read_prediction(request, signatures)
