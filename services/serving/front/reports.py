"""What a replica tells the registry of itself every few seconds: its versions, and its rates and percentiles."""

from collections.abc import Callable, Sequence

from common.registry.reporting import Report, Served
from services.serving.front.request_counts import BUCKETS_SECONDS, RequestCounts
from services.serving.wire.replica_state import ReplicaState, ServingState, VersionState


class ReplicaReports:
    """Called by the thread that reports; percentiles are those of the requests since the report before.

    Args:
        state: what the manager said last; None before it has spoken.
    """

    def __init__(
        self,
        state: Callable[[], ReplicaState | None],
        counts: RequestCounts,
        *,
        instance_id: str,
        address: str,
        started_at: float,
    ) -> None:
        self._state, self._counts = state, counts
        self._instance_id, self._address, self._started_at = instance_id, address, started_at
        self._seconds_before: Sequence[int] = ()

    def __call__(self) -> Report:
        state = self._state()
        versions = state.versions if state is not None else ()
        return Report(
            instance_id=self._instance_id,
            service="serving",
            address=self._address,
            started_at=self._started_at,
            serves=tuple(_served(version) for version in versions),
            faults=tuple(f"{v.model} version {v.version}: {v.error_message}" for v in versions if v.error_code),
            numbers=self._numbers(),
        )

    def _numbers(self) -> dict[str, float]:
        totals = self._counts.totals()
        before = self._seconds_before or [0] * len(totals.seconds)
        recent = [count - old for count, old in zip(totals.seconds, before, strict=True)]
        self._seconds_before = totals.seconds
        numbers = {
            "requests_total": float(totals.requests),
            "failed_requests_total": float(totals.failed),
            "open_requests": float(self._counts.open_count()),
        }
        if sum(recent):
            numbers |= {f"request_p{share}_seconds": percentile(recent, share / 100) for share in (50, 99)}
        return numbers


def percentile(counts: Sequence[int], share: float) -> float:
    """The upper bound of the bucket in which it lies, in seconds; of the open last one, its lower bound."""
    wanted, seen = share * sum(counts), 0
    for bound, count in zip(BUCKETS_SECONDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return BUCKETS_SECONDS[-1]


def _served(version: VersionState) -> Served:
    return Served(
        model=version.model,
        version=version.version,
        state=str(version.state),
        since=version.available_at,
        aliases=version.aliases,
        reason=version.error_message if version.error_code else "",
        given_up=version.state is ServingState.END and version.error_code != 0,
    )
