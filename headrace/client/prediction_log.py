"""Reads serving's request log: records of protos/prediction_log.proto from an event log or from TFRecord files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from common.errors import DataLoss, InvalidInput, NotFound
from common.eventlog import tfrecord
from common.eventlog.open import open_event_log
from headrace.client.tensor_protos import read_tensor
from protos import prediction_log_pb2

FOLDER_SCHEME = "tfrecord:"


@dataclass(frozen=True)
class LoggedPrediction:
    """One record.

    Attributes:
        answered_at: epoch seconds, UTC.
        inputs, outputs: {name: array}; no outputs where it failed.
        error_code: 0, or the canonical gRPC status code.
    """

    request_id: str
    answered_at: float
    model: str
    version: int
    signature: str
    latency_seconds: float
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    error_code: int
    error_message: str


def read_prediction_log(url: str, model: str) -> Iterator[LoggedPrediction]:
    """The predictions of a model, oldest first, up to what is there now.

    Args:
        url: `segments:/absolute/dir`, `kafka:host:port` or `tfrecord:/absolute/dir`, as SERVING_REQUEST_LOG has it.

    Raises:
        InvalidInput: the URL is of another form. NotFound: nothing of the model is there. DataLoss: a record is broken.
    """
    values = _of_folder(url, model) if url.startswith(FOLDER_SCHEME) else _of_topic(url, model)
    for value in values:
        for record in tfrecord.cut(value)[0]:
            yield _read(record)


def _of_folder(url: str, model: str) -> Iterator[bytes]:
    root = Path(url.removeprefix(FOLDER_SCHEME))
    if not root.is_absolute():
        raise InvalidInput(f"request log {url!r} must name an absolute folder, as in tfrecord:/var/log/headrace")
    files = sorted((root / quote(model, safe="")).glob("*.tfrecord"))
    if not files:
        raise NotFound(f"there are no logged predictions of model {model} in {root}")
    for path in files:
        yield path.read_bytes()


def _of_topic(url: str, model: str) -> Iterator[bytes]:
    topic = f"predictions.{model}"
    log = open_event_log(url)
    try:
        starts, ends = log.start_position(topic), log.end_position(topic)
        for partition, end in ends.items():
            for record in log.read(topic, partition, starts[partition], end):
                yield record.value
    finally:
        log.close()


def _read(record: bytes) -> LoggedPrediction:
    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError as error:
        raise DataLoss(f"a record of the request log cannot be read: {error}") from error
    spec = log.log_metadata.model_spec
    request, response = log.predict_log.request, log.predict_log.response
    return LoggedPrediction(
        log.request_id, log.answered_at, spec.name, spec.version.value, spec.signature_name, log.latency_seconds,
        {name: read_tensor(name, proto) for name, proto in request.inputs.items()},
        {name: read_tensor(name, proto) for name, proto in response.outputs.items()},
        log.error_code, log.error_message,
    )  # fmt: skip
