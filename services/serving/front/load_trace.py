"""A version's way into this replica as spans: its files are fetched, and a runner loads and warms it."""

from collections.abc import Callable

from common.process.tracing import REQUEST_ID, Tracing
from services.serving.wire.replica_state import LoadAttempt, ReplicaState, VersionState

OnState = Callable[[ReplicaState], None]


class LoadTrace:
    """Each attempt is a trace of its own under the name MODEL@VERSION. Loads are few, so that each is traced where
    anything is. Not thread-safe.

    Args:
        update: gets the same state first.
    """

    def __init__(self, tracing: Tracing, update: OnState) -> None:
        self._tracing, self._update = tracing, update
        self._traced: dict[tuple[str, int], float] = {}
        """When the attempt that was traced last began."""

    def __call__(self, state: ReplicaState) -> None:
        self._update(state)
        traced = {}
        for version in state.versions:
            key, attempt = (version.model, version.version), version.attempt
            traced[key] = self._traced.get(key, 0.0)
            if attempt.ended_at and attempt.began_at != traced[key]:
                traced[key] = attempt.began_at
                self._trace(state, version, attempt)
        self._traced = traced

    def _trace(self, state: ReplicaState, version: VersionState, attempt: LoadAttempt) -> None:
        span = self._tracing.start(
            f"load {version.model}", kind="consumer", always=True, at=attempt.began_at,
            attributes={
                REQUEST_ID: f"{version.model}@{version.version}", "headrace.model": version.model,
                "headrace.version": version.version, "headrace.replica": state.replica,
            },
        )  # fmt: skip
        if span is None:
            return
        if attempt.fetched_at:
            self._tracing.note("fetch the files", span.traceparent, attempt.began_at, attempt.fetched_at)
        if attempt.forked_at:
            self._tracing.note("load in the runner", span.traceparent, attempt.forked_at, attempt.ended_at)
        span.end(attempt.error, at=attempt.ended_at)
