"""The record of each request when it ends: counters always, a line of the log where somebody should act on it (each
request at level DEBUG), and the whole of it in the request log where its model is sampled, or its outputs where it has
keys (prediction_keys.py).

The tag of a request is its client's name for it (header `x-request-id`), or a name made here. It goes back with the
answer, into the lines of the log and into the request log; the queue does not need it.
"""

import itertools
import logging
import secrets
import time
from dataclasses import dataclass, field

from common.process.tracing import OFF, REQUEST_ID, Span, Tracing
from protos import queue_pb2
from services.serving.front.prediction_keys import keys_of
from services.serving.front.request_counts import PREDICT, ApiLatency, RequestCounts
from services.serving.front.request_log import RequestLog, Sample
from services.serving.front.shadow import Shadow
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger("services.serving.requests")

_FOR_A_HUMAN = frozenset((Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS))
REQUEST_ID_HEADER = b"x-request-id"
MAX_TAG_BYTES = 128
"""A longer tag is replaced."""


class Tags:
    """Makes names that no other process makes: a random prefix and a number."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6).encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._numbers))


def log_fields(tag: bytes, model: str, version: int = 0, **others: object) -> dict[str, object]:
    """`extra` of a log line about a request; the version only where a version answered."""
    fields: dict[str, object] = {"request_id": tag.decode("latin-1"), "model": model}
    if version:
        fields["version"] = version
    return fields | others


def batch_attributes(batch: queue_pb2.Batch, model: str, version: int) -> dict[str, object]:
    """The attributes of a batch's span."""
    return {
        "headrace.model": model, "headrace.version": version, "headrace.runner_pid": batch.runner_pid,
        "headrace.batch_requests": batch.requests, "headrace.batch_rows": batch.rows,
    }  # fmt: skip


@dataclass(slots=True, eq=False)
class Entry:
    """A request, from its first look on. `door` is http or grpc."""

    model: str
    door: str
    tag: bytes
    api: str = PREDICT
    started_at: float = field(default_factory=time.perf_counter)
    request: queue_pb2.PredictionRequest | None = None
    """The message in the queue; only where it is to be logged."""
    is_sampled: bool = False
    keys: tuple[str, ...] = ()
    """Of its rows; () where it has none."""
    alias: str = ""
    """The requested alias; only where it has keys."""
    signature: str = ""
    """The requested signature, once it is known that the model has it."""
    version: int = 0
    """The version that answered; 0 before, and where none did."""
    span: Span | None = None
    """Where the request is traced."""
    batch: queue_pb2.Batch | None = None
    """In which it was run; only where it is traced."""

    def take(self, reply: queue_pb2.PredictionReply) -> None:
        """The version that answered, and its runner."""
        self.version = reply.version
        if self.span is not None and reply.HasField("batch"):
            self.batch = reply.batch


class Journal:
    """Not thread-safe; about a microsecond per request where nothing is sampled."""

    def __init__(
        self,
        counts: RequestCounts,
        request_log: RequestLog | None = None,
        latency: ApiLatency | None = None,
        tracing: Tracing = OFF,
        shadow: Shadow | None = None,
    ) -> None:
        """latency: where the time of each is kept by API, too. shadow: there with the request log."""
        self._shadow = shadow
        self.tracing, self.is_tracing = tracing, tracing.is_on
        self._counts = counts
        self._latency = latency
        self._request_log = request_log

    def trace(self, entry: Entry, traceparent: str) -> None:
        """Begins the request's span, where it is traced. Called only where `is_tracing`."""
        if not self.tracing.takes(traceparent):
            return
        entry.span = self.tracing.start(
            f"{entry.api} {entry.model}", traceparent, kind="server", always=True,
            attributes={
                REQUEST_ID: entry.tag.decode("latin-1"), "headrace.model": entry.model, "headrace.door": entry.door,
            },
        )  # fmt: skip

    def _end_span(self, entry: Entry, span: Span, message: str) -> None:
        """With the request's queue and its batch in a runner."""
        if entry.version:
            span.set({"headrace.version": entry.version, "headrace.signature": entry.signature})
        batch = entry.batch
        if batch is not None:
            began, ended = batch.began_at_micros / 1e6, batch.ended_at_micros / 1e6
            queued_at = time.time() - (time.perf_counter() - entry.started_at)
            attributes = batch_attributes(batch, entry.model, entry.version)
            self.tracing.note("wait in the queue", span.traceparent, min(queued_at, began), began)
            self.tracing.note("batch in the runner", span.traceparent, began, ended, attributes)
        span.end(message)

    def takes(self, entry: Entry) -> bool:
        """Whether the request log takes this request: then `log` is called with its answer."""
        entry.is_sampled = self._request_log is not None and self._request_log.takes(entry.model)
        return entry.is_sampled or bool(entry.keys)

    def key(self, entry: Entry, given: bytes, *, rows: int, alias: str) -> None:
        """Gives the rows of a request their keys. Raises RequestFailed: they do not go with the rows, or this replica
        logs no predictions, so that the keys were for nothing."""
        if self._request_log is None:
            raise RequestFailed(
                Code.FAILED_PRECONDITION,
                "X-Prediction-Key: this replica logs no predictions; SERVING_REQUEST_LOG sets the place",
            )
        entry.keys, entry.alias = keys_of(given, rows), alias

    def log(self, entry: Entry, request: queue_pb2.PredictionRequest, reply: queue_pb2.PredictionReply) -> None:
        """Hands a request and its answer to the request log; neither may be changed afterwards."""
        split = self._shadow.split_of(entry.model) if self._shadow is not None and entry.keys else None
        if self._request_log is None or (reply.error_code and not entry.is_sampled and split is None):
            return
        seconds = time.perf_counter() - entry.started_at
        sample = Sample(
            entry.model, entry.tag, time.time(), seconds, request, reply,
            keys=entry.keys if split is not None or not reply.error_code else (), alias=entry.alias,
            has_inputs=entry.is_sampled or (split is not None and split.logs_inputs),
        )  # fmt: skip
        self._request_log.offer(sample)
        if sample.keys and self._shadow is not None and not reply.error_code:
            self._shadow.follow(sample)

    def refused(self, entry: Entry, code: int, message: str, *, is_known: bool) -> None:
        """It was answered with an error before it came to a queue. A model that is not known gets no counter."""
        self._counts.add(entry.model if is_known else "", entry.door, code, 0.0)
        self._log_line(entry, code, message, 0.0)
        if entry.span is not None:
            self._end_span(entry, entry.span, message)

    def answered(self, entry: Entry, code: int, message: str) -> None:
        """It went through a queue; the code may be an error of the runner, of the queue or of writing the answer."""
        seconds = time.perf_counter() - entry.started_at
        self._counts.add(entry.model, entry.door, code, seconds, version=entry.version, signature=entry.signature)
        if self._latency is not None and not code:
            self._latency.add(entry.model, entry.api, entry.door, seconds)
        self._log_line(entry, code, message, seconds)
        if entry.span is not None:
            self._end_span(entry, entry.span, message)

    def _log_line(self, entry: Entry, code: int, message: str, seconds: float) -> None:
        level = logging.ERROR if code in _FOR_A_HUMAN else logging.DEBUG
        if not logger.isEnabledFor(level):
            return
        fields = log_fields(
            entry.tag, entry.model, entry.version, door=entry.door, code=code, seconds=round(seconds, 6)
        )
        if code:
            logger.log(level, "a prediction failed: %s", message, extra=fields)
        else:
            logger.log(level, "a prediction was answered", extra=fields)
