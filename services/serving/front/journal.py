"""What is kept of each request when it ends: counters always, a line of the log where somebody should act on it (each
request at level DEBUG), and the whole of it in the request log where its model is sampled.
"""

import logging
import time

from protos import queue_pb2
from services.serving.front.api_latency import PREDICT, ApiLatency
from services.serving.front.counts import Statistics
from services.serving.front.request_log import RequestLog, Sample
from services.serving.front.request_tags import log_fields
from services.serving.wire.prediction import INTERNAL

logger = logging.getLogger("services.serving.requests")

_UNKNOWN, _DATA_LOSS = 2, 15
_FOR_A_HUMAN = frozenset((_UNKNOWN, INTERNAL, _DATA_LOSS))


class Entry:
    """One request, from its first look on. `door` is http or grpc."""

    __slots__ = ("api", "door", "model", "request", "signature", "started_at", "tag", "version")

    def __init__(self, model: str, door: str, tag: bytes, api: str = PREDICT) -> None:
        self.model = model
        self.door = door
        self.api = api
        self.tag = tag
        self.started_at = time.perf_counter()
        self.request: queue_pb2.PredictionRequest | None = None
        """What the queue carries; only where it is to be sampled."""
        self.signature = ""
        """The one that was asked for, once it is known that the model has it."""
        self.version = 0
        """The version that answered; 0 before, and where none did."""


class Journal:
    """Not thread-safe; about a microsecond per request where nothing is sampled."""

    def __init__(
        self, statistics: Statistics, request_log: RequestLog | None = None, latency: ApiLatency | None = None
    ) -> None:
        """latency: where the time of each is kept by API, too."""
        self._statistics = statistics
        self._latency = latency
        self._request_log = request_log

    def takes(self, model: str) -> bool:
        """Whether this request is one for the request log: then `sample` is called with its answer."""
        return self._request_log is not None and self._request_log.takes(model)

    def sample(self, entry: Entry, request: queue_pb2.PredictionRequest, reply: queue_pb2.PredictionReply) -> None:
        """Hands a request and its answer to the request log; neither may be changed afterwards."""
        if self._request_log is not None:
            seconds = time.perf_counter() - entry.started_at
            self._request_log.offer(Sample(entry.model, entry.tag, time.time(), seconds, request, reply))

    def refused(self, entry: Entry, code: int, message: str, *, is_known: bool) -> None:
        """It was answered with an error before it came to a queue. A model that is not known gets no counter."""
        self._statistics.add(entry.model if is_known else "", entry.door, code, 0.0)
        self._tell(entry, code, message, 0.0)

    def answered(self, entry: Entry, code: int, message: str) -> None:
        """It went through a queue; the code may be an error of the runner, of the queue or of writing the answer."""
        seconds = time.perf_counter() - entry.started_at
        self._statistics.add(entry.model, entry.door, code, seconds, version=entry.version, signature=entry.signature)
        if self._latency is not None and not code:
            self._latency.add(entry.model, entry.api, entry.door, seconds)
        self._tell(entry, code, message, seconds)

    def _tell(self, entry: Entry, code: int, message: str, seconds: float) -> None:
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
