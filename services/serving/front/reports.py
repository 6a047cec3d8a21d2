"""A replica's reports to the registry every few seconds: its versions, and its rates and percentiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from common.counted import counted
from common.registry.reporting import COLD, Part, Report, Served
from services.serving.front.request_counts import BUCKETS_SECONDS, RequestCounts, Totals, quantile
from services.serving.wire.replica_state import ReplicaState, ServingState, VersionState

_NOTHING = Totals(0, 0, (0,) * (len(BUCKETS_SECONDS) + 1))


@dataclass
class ReplicaReports:
    """Called by the thread that reports; percentiles are those of the requests since the report before.

    Attributes:
        state: the manager's last state; None before the first.
        queues: {(model, target): requests in its queue, of all fronts}.
        queue_faults: faults of Redis, in sentences.
        before: the totals of the report before.
    """

    state: Callable[[], ReplicaState | None]
    counts: RequestCounts
    _: KW_ONLY
    queues: Callable[[], Mapping[tuple[str, str], int]]
    queue_faults: Callable[[], Sequence[str]]
    instance_id: str
    address: str
    started_at: float
    before: Mapping[tuple[str, int], Totals] = field(default_factory=dict)

    def __call__(self) -> Report:
        state = self.state()
        versions = state.versions if state is not None else ()
        now, before = self.counts.totals_by_version(), self.before
        self.before = now
        return Report(
            instance_id=self.instance_id,
            service="serving",
            address=self.address,
            started_at=self.started_at,
            serves=tuple(_served(version) for version in versions),
            faults=(
                *(f"{v.model} version {v.version}: {v.error_message}" for v in versions if v.error_code),
                *self.queue_faults(),
            ),
            numbers={
                **_numbers(_sum(now), _sum(before)),
                "open_requests": float(self.counts.open_count()),
                **_of_memory(state),
            },
            parts=self._parts(versions, now, before),
        )

    def _parts(
        self,
        versions: Sequence[VersionState],
        now: Mapping[tuple[str, int], Totals],
        before: Mapping[tuple[str, int], Totals],
    ) -> tuple[Part, ...]:
        """Of served versions, and the model as a whole: the counts of versions that are gone would never end."""
        served = {(version.model, version.version) for version in versions if version.state is ServingState.AVAILABLE}
        numbers = {
            key: _numbers(now[key], before.get(key, _NOTHING))
            for key in sorted(served | {(model, 0) for model, _ in served})
            if key in now
        }
        for version in versions:
            if version.state is ServingState.AVAILABLE and version.runner_pid:
                numbers.setdefault((version.model, version.version), {}).update(_of_runner(version))
        for (model, _), depth in self.queues().items():
            of_model = numbers.setdefault((model, 0), {})
            of_model["queue_requests"] = of_model.get("queue_requests", 0.0) + depth
        return tuple(Part(model=model, version=version, numbers=values) for (model, version), values in numbers.items())


def _sum(totals: Mapping[tuple[str, int], Totals]) -> Totals:
    found = _NOTHING
    for total in totals.values():
        found = found.plus(total)
    return found


def _numbers(now: Totals, before: Totals) -> dict[str, float]:
    recent = [count - known for count, known in zip(now.seconds, before.seconds, strict=True)]
    numbers = {"requests_total": float(now.requests), "failed_requests_total": float(now.failed)}
    if sum(recent):
        numbers |= {f"request_p{share}_seconds": quantile(recent, share / 100) for share in (50, 99)}
    return numbers


def _of_runner(version: VersionState) -> dict[str, float]:
    return {
        "runner_private_bytes": float(version.private_bytes),
        "runner_batches_total": float(version.work.get("batches", 0)),
        "runner_examples_total": float(version.work.get("examples", 0)),
    }


def _of_memory(state: ReplicaState | None) -> dict[str, float]:
    if state is None or state.memory is None:
        return {}
    return {
        "loaded_models": float(len(state.memory.loaded)),
        "models_private_bytes": float(state.memory.used_bytes),
        "evicted_models": float(sum(state.memory.evictions.values())),
    }


def _served(version: VersionState) -> Served:
    return Served(
        model=version.model,
        version=version.version,
        state=COLD if version.is_cold else str(version.state),
        since=version.available_at,
        aliases=version.aliases,
        reason=version.error_message if version.error_code else "",
        given_up=version.state is ServingState.END and version.error_code != 0,
        engine="; ".join([version.engine, *(f"{name}: {why}" for name, why in version.engine_reasons.items())]),
        runner=_process(version) if version.runner_pid else "",
    )


def _process(version: VersionState) -> str:
    beside = f", with {counted(version.runner_models - 1, 'other model')}" if version.runner_models > 1 else ""
    return f"process {version.runner_pid}{beside}"
