"""The request log: a sample of the predictions with inputs and answers, and each that has a key, as TFRecords of
protos/prediction_log.proto.

The doors hand samples over and never wait; one thread turns them into records and writes them. Samples that do not fit
into the buffer, or cannot be written in time, are dropped and counted: a prediction is worth more than its record.

After a crash the samples of the last moments are gone; whole records are written.

segments:/absolute/dir, kafka:host:port     topic `predictions.<model>`, one partition
tfrecord:/absolute/dir                      <dir>/<model>/<time>-<process>.tfrecord, for a replica without a log
"""

import contextlib
import logging
import os
import random
import secrets
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.topics import predictions_topic
from common.process.retry import Retry
from protos import prediction_log_pb2, queue_pb2, tfserving_pb2
from services.serving.options.settings import ServingSettings
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.replica_state import ReplicaState
from services.serving.wire.tensors import TYPE_OF_CODE

FOLDER_SCHEME = "tfrecord:"
_LARGEST_FILE_BYTES = 64 * 1024 * 1024
logger = logging.getLogger(__name__)

WRITTEN, DROPPED_FULL, DROPPED_UNWRITTEN = "written", "dropped_buffer_full", "dropped_not_writable"
_BUFFER_BYTES = 64 << 20
_LONGEST_BUFFER = 10_000
_WRITE_SECONDS, _IDLE_SECONDS = 0.2, 60.0
_RETRY_SECONDS = 5.0
_RECORDS_AT_ONCE = 500
_BREATH = 16
"""After so many records the writer lets go of the interpreter, so that the doors do not wait for it."""


class Place(Protocol):
    """Used by one thread. Methods raise one of the six errors."""

    def append(self, model: str, records: Sequence[bytes]) -> None: ...

    def close(self) -> None: ...


def open_place(url: str) -> Place:
    """Raises InvalidInput when the URL names no place; Unavailable when it cannot be opened."""
    if not url.startswith(FOLDER_SCHEME):
        return Topics(open_event_log(url))
    folder = Path(url.removeprefix(FOLDER_SCHEME))
    if not folder.is_absolute():
        raise InvalidInput(f"request log {url!r} must name an absolute folder, as in tfrecord:/var/log/headrace")
    return Folder(folder)


class Topics:
    """Records of the event log hold as many framed predictions as were written at once."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: set[str] = set()

    def append(self, model: str, records: Sequence[bytes]) -> None:
        topic = predictions_topic(model)
        if topic not in self._known:
            self._log.create_topic(topic, partition_count=1)
            self._known.add(topic)
        headers = RecordHeaders(
            schema_version=0,
            example_count=len(records),
            ingest_time=round(time.time(), 6),
            chunk_id=secrets.token_bytes(16),
        )
        self._log.append(topic, 0, [NewRecord(tfrecord.frame(records), headers)])

    def close(self) -> None:
        self._log.close()


class Folder:
    """One open file per model; a new one begins when it is large. A crash may cut the last record of a file short,
    which readers of TFRecords notice by its length."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}

    def append(self, model: str, records: Sequence[bytes]) -> None:
        try:
            file = self._file_of(model)
            file.write(tfrecord.frame(records))
            file.flush()
        except OSError as error:
            with contextlib.suppress(KeyError, OSError):
                self._files.pop(model).close()
            raise Unavailable(f"the request log in {self._folder} cannot be written: {error.strerror}") from error

    def _file_of(self, model: str) -> BinaryIO:
        file = self._files.get(model)
        if file is not None and file.tell() < _LARGEST_FILE_BYTES:
            return file
        if file is not None:
            file.close()
        folder = self._folder / quote(model, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{began}-{os.getpid()}-{secrets.token_hex(3)}.tfrecord"
        self._files[model] = (folder / name).open("ab")
        return self._files[model]

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def rates_of(text: str) -> tuple[float, dict[str, float]]:
    """The share of requests that is logged, and the exceptions per model, of a setting like `0.01,flights=1,digits=0`.
    Raises InvalidInput: it is of another form, or a rate is not between 0 and 1."""
    default, of_models = 0.0, dict[str, float]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, _, given = part.rpartition("=")
        try:
            rate = float(given)
        except ValueError as error:
            raise InvalidInput(
                f"SERVING_REQUEST_LOG_SAMPLING has {part!r}, expected a rate from 0 to 1, or model=rate"
            ) from error
        if not 0 <= rate <= 1:
            raise InvalidInput(f"the sampling rate of a request log is {rate:g}, expected 0 to 1")
        if model:
            of_models[model] = rate
        else:
            default = rate
    return default, of_models


@dataclass(frozen=True, slots=True)
class Sample:
    """A prediction that is over.

    Attributes:
        answered_at: epoch seconds, UTC.
        seconds: from the whole request read to its answer.
        keys, alias, is_shadow: as in PredictionLog.
        has_inputs: whether they are logged, too.
    """

    model: str
    tag: bytes
    answered_at: float
    seconds: float
    request: queue_pb2.PredictionRequest
    reply: queue_pb2.PredictionReply
    keys: tuple[str, ...] = ()
    alias: str = ""
    is_shadow: bool = False
    has_inputs: bool = True


class RequestLog(Collector):
    """`takes` and `offer` are called by the event loop, everything else by the thread that `start` begins."""

    def __init__(self, place: Place, *, default: float, buffer_bytes: int) -> None:
        self._place = place
        self._default = default
        self._of_models: Mapping[str, float] = {}
        self._buffer_bytes = buffer_bytes
        self._samples: deque[tuple[Sample, int]] = deque()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._ended, self._has_samples = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._counts: Counter[tuple[str, str]] = Counter()
        """By (model, the record's fate)."""

    def use(self, of_models: Mapping[str, float]) -> None:
        """Sets the rates that differ from the default, per model."""
        self._of_models = dict(of_models)

    def sampling_rate(self, model: str) -> float:
        return self._of_models.get(model, self._default)

    def takes(self, model: str) -> bool:
        """Whether this request of the model is logged."""
        rate = self.sampling_rate(model)
        return rate > 0 and (rate >= 1 or random.random() < rate)  # noqa: S311  (sampling)

    def offer(self, sample: Sample) -> None:
        """Takes a sample if there is room for it. The messages in it must not be changed afterwards."""
        if not sample.has_inputs:
            kept = queue_pb2.PredictionRequest(
                signature=sample.request.signature, output_filter=sample.request.output_filter
            )
            sample = replace(sample, request=kept)
        size = sample.request.ByteSize() + sample.reply.ByteSize() + sum(map(len, sample.keys))
        with self._lock:
            if len(self._samples) >= _LONGEST_BUFFER or self._held_bytes + size > self._buffer_bytes:
                self._counts[sample.model, DROPPED_FULL] += 1
                return
            self._held_bytes += size
            self._samples.append((sample, size))
            if len(self._samples) == 1:
                self._has_samples.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        """Writes the samples; those that take longer are left."""
        self._ended.set()
        self._has_samples.set()
        self._thread.join(timeout_seconds)

    def collect(self) -> Iterator[Metric]:
        records = CounterMetricFamily(
            "headrace_serving_request_log_records", "Predictions to be logged", labels=["model", "result"]
        )
        for (model, result), count in list(self._counts.items()):
            records.add_metric([model, result], count)
        yield records

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._has_samples.wait(_IDLE_SECONDS):
                self._ended.wait(_WRITE_SECONDS)  # for company
                self._has_samples.clear()
                self._write_all()
        self._write_all()
        self._place.close()

    def _write_all(self) -> None:
        while samples := self._take():
            records: dict[str, list[bytes]] = defaultdict(list)
            for number, sample in enumerate(samples, 1):
                record = record_of(sample, self.sampling_rate(sample.model))
                records[sample.model].append(record.SerializeToString())
                if number % _BREATH == 0:
                    time.sleep(0.0002)
            for model, of_model in records.items():
                self._write(model, of_model)

    def _take(self) -> list[Sample]:
        with self._lock:
            taken = [self._samples.popleft() for _ in range(min(_RECORDS_AT_ONCE, len(self._samples)))]
            self._held_bytes -= sum(size for _, size in taken)
        return [sample for sample, _ in taken]

    def _write(self, model: str, records: Sequence[bytes]) -> None:
        try:
            self._append(model, records)
        except HeadraceError as error:
            self._counts[model, DROPPED_UNWRITTEN] += len(records)
            extra = {"model": model, "records": len(records)}
            logger.error("the request log cannot be written: %s", error.message, extra=extra)
        else:
            self._counts[model, WRITTEN] += len(records)

    def _append(self, model: str, records: Sequence[bytes]) -> None:
        """Raises HeadraceError: the place takes none, or was away for too long."""
        retry = Retry(_RETRY_SECONDS, wait=self._pause)
        while True:
            try:
                return self._place.append(model, records)
            except Unavailable as error:
                if self._ended.is_set():
                    raise
                retry.wait_or_raise(error)

    def _pause(self, seconds: float) -> None:
        self._ended.wait(seconds)


def record_of(sample: Sample, sampling_rate: float) -> prediction_log_pb2.PredictionLog:
    """Numbers are copied as bytes (tensor_content)."""
    request, reply = sample.request, sample.reply
    record = prediction_log_pb2.PredictionLog(
        request_id=sample.tag.decode("latin-1"),
        answered_at=sample.answered_at,
        latency_seconds=sample.seconds,
        error_code=reply.error_code,
        error_message=reply.error_message,
        prediction_keys=sample.keys,
        alias=sample.alias,
        is_shadow=sample.is_shadow,
    )
    spec = record.log_metadata.model_spec
    spec.name, spec.signature_name = sample.model, request.signature or DEFAULT_SIGNATURE
    if reply.version:
        spec.version.value = reply.version
    record.log_metadata.sampling_config.sampling_rate = sampling_rate
    record.log_metadata.timestamp_secs = int(sample.answered_at)
    predict_request, predict_response = record.predict_log.request, record.predict_log.response
    predict_request.model_spec.CopyFrom(spec)
    predict_request.output_filter.extend(request.output_filter)
    for tensor in request.inputs:
        _copy_tensor(tensor, predict_request.inputs[tensor.name])
    if not reply.error_code:
        predict_response.model_spec.CopyFrom(spec)
        for tensor in reply.outputs:
            _copy_tensor(tensor, predict_response.outputs[tensor.name])
    return record


def _copy_tensor(tensor: queue_pb2.Tensor, proto: tfserving_pb2.TensorProto) -> None:
    proto.dtype = tfserving_pb2.DataType.Value(TYPE_OF_CODE[tensor.dtype])  # type: ignore[assignment]  # wants the wrapper
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_content = tensor.data
    proto.string_val.extend(tensor.strings)


def open_request_log(settings: ServingSettings) -> RequestLog | None:
    """None where nothing is to be logged.

    Raises:
        InvalidInput: the sampling or the place is none. Unavailable: the place cannot be opened.
    """
    default, of_models = rates_of(settings.request_log_sampling)
    if not settings.request_log:
        if settings.request_log_sampling:
            raise InvalidInput("SERVING_REQUEST_LOG_SAMPLING is set, but SERVING_REQUEST_LOG, the place, is not")
        return None
    request_log = RequestLog(open_place(settings.request_log), default=default, buffer_bytes=_BUFFER_BYTES)
    request_log.use(of_models)
    return request_log


def following(
    update: Callable[[ReplicaState], None], request_log: RequestLog | None, settings: ServingSettings
) -> Callable[[ReplicaState], None]:
    """`update`, and the sampling that a configuration names with it; for its models it wins over the settings."""
    _, of_models = rates_of(settings.request_log_sampling)

    def follow(state: ReplicaState) -> None:
        update(state)
        if request_log is not None and state.config is not None:
            request_log.use(of_models | configured_rates(state.config.config))

    return follow


def configured_rates(config: Mapping[str, Any]) -> dict[str, float]:
    """The logging_config of each model of a ModelServerConfig with such a section (the configuration was checked
    before)."""
    models = config.get("model_config_list", {}).get("config", ())
    return {
        model["name"]: model["logging_config"].get("sampling_config", {}).get("sampling_rate", 0.0)
        for model in models
        if "logging_config" in model
    }
