"""Warms a loaded version up, so that its first real request pays for nothing: with the requests that came with it, and
with made-up ones for the signatures that have none.

The requests lie where TensorFlow Serving looks for them and follow its rules (shared/reference: tfs-contract, section
9): `<version>/assets.extra/tf_serving_warmup_requests`, a TFRecord of PredictionLog. A version whose own requests fail
is broken and does not load; one that refuses made-up inputs may just be picky, and only a note is made.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import DataLoss
from common.eventlog import tfrecord
from protos import queue_pb2, tfserving_pb2, warmup_pb2
from services.serving.batching import Model, is_mergeable, warm_up_inputs
from services.serving.prediction import (
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    Prediction,
    RequestFailed,
    read_prediction,
)
from services.serving.queue_keys import DEFAULT_SIGNATURE
from services.serving.tensors import read_tensor_proto

REQUESTS_PATH = Path("assets.extra/tf_serving_warmup_requests")
MAX_RECORDS = 1000
_DATA_LOSS = 15
_REFUSED_KINDS = ("session_run_log", "predict_streamed_log")


def warm_up(model: Model, directory: Path, *, max_batch_size: int) -> list[str]:
    """Runs every signature, alone and in a full batch; returns what was done with what, in sentences.

    Raises:
        RequestFailed: the version's own requests cannot be read, or one of them fails.
    """
    recorded = _Recorded(model, directory / REQUESTS_PATH, max_batch_size)
    recorded.replay()
    made_up, notes = [], []
    for name in model.callable_signatures():
        if name in recorded.counts:
            continue
        try:
            for batch_size in (1, max_batch_size):
                model.run(name, warm_up_inputs(model.signatures[name], batch_size))
            made_up.append(name)
        except RequestFailed as error:
            notes.append(f"signature {name} was not warmed up: {error.message[:200]}")
    if made_up:
        notes.insert(0, f"warmed up with made-up inputs: {', '.join(made_up)}")
    return recorded.notes() + notes


class _Recorded:
    """The requests that came with a version. `counts`: how many were run, by signature."""

    def __init__(self, model: Model, path: Path, max_batch_size: int) -> None:
        self._model, self._path, self._max_batch_size = model, path, max_batch_size
        self._signatures = {name: model.signatures[name] for name in model.callable_signatures()}
        self._largest: dict[str, Prediction] = {}
        self._skipped: list[str] = []
        self.counts = Counter[str]()

    def replay(self) -> None:
        """Runs all; then, of each signature, the one with the most rows again as a full batch."""
        for index, record in enumerate(_read(self._path)):
            try:
                self._replay(record)
            except RequestFailed as error:
                raise RequestFailed(
                    error.code, f"warm-up request {index} of {self._path.name} failed: {error.message}"
                ) from error
        for name, prediction in self._largest.items():
            if not is_mergeable(self._signatures[name]):
                continue
            rows = np.arange(self._max_batch_size) % prediction.rows
            try:
                self._model.run(name, {key: array[rows] for key, array in prediction.inputs.items()})
            except RequestFailed as error:  # the batcher would run such requests one by one
                self._skipped.append(f"signature {name} does not run as a full batch: {error.message[:200]}")

    def notes(self) -> list[str]:
        if not self.counts:
            return self._skipped
        parts = ", ".join(f"{count} of {name}" for name, count in sorted(self.counts.items()))
        return [f"warmed up with its recorded requests: {parts}", *self._skipped]

    def _replay(self, record: warmup_pb2.PredictionLog) -> None:
        kind = record.WhichOneof("log_type")
        if kind is None:
            return
        if kind in _REFUSED_KINDS:
            raise RequestFailed(UNIMPLEMENTED, f"Unsupported log_type for warmup: {kind}")
        if kind == "predict_log":
            self._predict(record.predict_log.request)
        elif kind == "multi_inference_log":
            for task in record.multi_inference_log.request.tasks:
                self._infer(kind, task.model_spec.signature_name, record.multi_inference_log.request.input)
        else:
            request = record.classify_log.request if kind == "classify_log" else record.regress_log.request
            self._infer(kind, request.model_spec.signature_name, request.input)

    def _predict(self, request: tfserving_pb2.PredictRequest) -> None:
        queued = queue_pb2.PredictionRequest(
            signature=request.model_spec.signature_name, output_filter=request.output_filter
        )
        for alias, proto in request.inputs.items():
            read_tensor_proto(alias, proto, queued.inputs.add())
        prediction = read_prediction(queued, self._signatures)
        self._model.run(prediction.signature, prediction.inputs, prediction.output_filter)
        self._note(prediction)

    def _infer(self, kind: str, signature: str, given: tfserving_pb2.Input) -> None:
        """Classify and regress are the signature's one input, fed with serialized examples."""
        name = signature or DEFAULT_SIGNATURE
        known = self._signatures.get(name)
        if known is not None and [spec.dtype for spec in known.inputs.values()] != ["DT_STRING"]:
            self._skipped.append(f"a {kind} was skipped: signature {name} does not take serialized examples alone")
            return
        request = queue_pb2.PredictionRequest(signature=name)
        examples = _serialized(given)
        alias = next(iter(known.inputs)) if known else ""
        request.inputs.add(name=alias, dtype="O", shape=[len(examples)], strings=examples)
        prediction = read_prediction(request, self._signatures)
        self._model.run(name, prediction.inputs)
        self._note(prediction)

    def _note(self, prediction: Prediction) -> None:
        name = prediction.signature
        self.counts[name] += 1
        if prediction.rows > (self._largest[name].rows if name in self._largest else 0):
            self._largest[name] = prediction


def _read(path: Path) -> Iterator[warmup_pb2.PredictionLog]:
    """The records of a file; nothing when there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        if tfrecord.count(content) > MAX_RECORDS:
            raise RequestFailed(INVALID_ARGUMENT, f"{path.name} has more than {MAX_RECORDS} warm-up requests")
        records, _ = tfrecord.cut(content)
    except DataLoss as error:
        raise RequestFailed(_DATA_LOSS, f"{path.name} is not a TFRecord file: {error.message}") from error
    for index, record in enumerate(records):
        try:
            yield warmup_pb2.PredictionLog.FromString(record)
        except DecodeError as error:
            raise RequestFailed(INVALID_ARGUMENT, f"{path.name}: record {index} is no PredictionLog") from error


def _serialized(given: tfserving_pb2.Input) -> Sequence[bytes]:
    """Each example with the context's features: protobuf merges messages that are written one after the other."""
    if given.WhichOneof("kind") == "example_list_with_context":
        context = given.example_list_with_context.context
        return [context + example for example in given.example_list_with_context.examples]
    return list(given.example_list.examples)
