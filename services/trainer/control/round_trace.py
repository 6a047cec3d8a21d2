"""A round as spans: the attempt, its stages, and, in the trace of each traced event, the version that learned it."""

import time

from common.process.tracing import REQUEST_ID, Span, Tracing, link_of
from common.registry.catalog import Lease
from services.trainer.protocol.messages import Progress


class RoundTrace:
    """Of an attempt. Rounds are few, so that each is traced where anything is. Not thread-safe."""

    def __init__(self, tracing: Tracing, lease: Lease) -> None:
        found, plan = lease.round, lease.round.plan
        self._tracing, self._began_at = tracing, time.time()
        self._about = {"headrace.model": plan.model, "headrace.round": found.round_id}
        self._span = tracing.start(
            f"round of {plan.model}", kind="consumer", always=True, at=self._began_at,
            attributes={
                REQUEST_ID: found.round_id, **self._about, "headrace.stream": plan.stream,
                "headrace.attempt": found.attempts, "headrace.examples": plan.example_count,
                "headrace.trigger": plan.trigger, "headrace.planned_at": found.planned_at,
            },
        )  # fmt: skip
        self.traceparent = self._span.traceparent if self._span else ""
        self._stage: tuple[str, Span | None] = ("", None)

    def hear(self, progress: Progress) -> None:
        """A new stage ends the one before it."""
        if progress.stage != self._stage[0]:
            self._end_stage("")
            self._stage = (progress.stage, self._tracing.start(progress.stage, self.traceparent))

    def end(self, *, version: int, decision: str, traces: tuple[str, ...], error: str) -> None:
        """traces: traceparents of events that the version has learned; a trace of each ends with the version."""
        self._end_stage(error)
        attributes = {**self._about, "headrace.version": version, "headrace.decision": decision}
        mine = link_of(self.traceparent)
        for traceparent in traces if version else ():
            learned = self._tracing.start(
                f"learned by {self._about['headrace.model']}@{version}", traceparent, kind="consumer",
                attributes=attributes,
                links=[mine] if mine else [], at=self._began_at,
            )  # fmt: skip
            if learned is not None:
                learned.end()
        if self._span is not None:
            self._span.set(attributes if version else {})
            self._span.end(error)

    def _end_stage(self, error: str) -> None:
        if self._stage[1] is not None:
            self._stage[1].end(error)
        self._stage = ("", None)
