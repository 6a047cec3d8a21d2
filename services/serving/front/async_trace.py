"""The trace of an asynchronous prediction: from its submission until its answer is fetched."""

import time

from common.process.tracing import MOST_KEPT, REQUEST_ID, Span, Tracing
from services.serving.front.async_predictions import StoredPrediction
from services.serving.front.journal import batch_attributes


class AsyncTrace:
    """Of a front. Any front may hand the answer over, so the trace stands beside the answer. Not thread-safe."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._traced: dict[str, None] = {}
        """Predictions whose answers were handed over, the newest last: each is traced once."""

    def submitted(self, model: str, tag: bytes, traceparent: str) -> Span | None:
        """Begins the span of a submission, where it is traced."""
        return self._tracing.start(
            f"predict later {model}", traceparent, kind="producer",
            attributes={REQUEST_ID: tag.decode("latin-1"), "headrace.model": model, "headrace.door": "http"},
        )  # fmt: skip

    def answered(self, prediction_id: str, stored: StoredPrediction) -> None:
        """Traces, when an answer is fetched first, how its request waited and ran, and how long the answer was kept."""
        reply = stored.reply
        if reply is None or not stored.traceparent or prediction_id in self._traced:
            return
        self._traced[prediction_id] = None
        if len(self._traced) > MOST_KEPT:
            del self._traced[next(iter(self._traced))]
        batch = reply.batch
        has_run = reply.HasField("batch")
        began, ended = batch.began_at_micros / 1e6, batch.ended_at_micros / 1e6
        if not has_run:
            began = ended = stored.deadline_at
        self._note("wait in the queue", stored, stored.submitted_at, began, "" if has_run else reply.error_message)
        if has_run:
            span = self._tracing.start(
                "batch in the runner", stored.traceparent, at=began,
                attributes=batch_attributes(batch, stored.model, reply.version),
            )  # fmt: skip
            if span is not None:
                span.end(reply.error_message, at=ended)
        self._note("answer kept", stored, ended, time.time(), "")

    def _note(self, name: str, stored: StoredPrediction, began_at: float, ended_at: float, error: str) -> None:
        span = self._tracing.start(name, stored.traceparent, at=min(began_at, ended_at))
        if span is not None:
            span.end(error, at=ended_at)
