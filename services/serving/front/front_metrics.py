"""A front's numbers besides its own requests, for Prometheus: its queues, its refusals, and the runners' work.

The runners count per batch (work.py); their counts come with the manager's snapshots, about a second old.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from services.serving.front.core import Front
from services.serving.front.request_counts import cumulative
from services.serving.wire.replica_state import VersionState
from services.serving.wire.work import BATCH_SIZE_BUCKETS, DEPTH_BUCKETS, SECONDS_BUCKETS

_PREFIX = "headrace_serving_"
_MODEL = ("model",)
_QUEUE = ("model", "target")
_VERSION = ("model", "version")
_SIGNATURE = ("model", "version", "signature")
_GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "queue_requests": ("Requests in a queue, waiting and running, of all fronts", _QUEUE),
    "in_flight": ("Requests that this front has open at a queue", _QUEUE),
    "drain_per_second": ("Answers per second of a busy queue, as last measured", _QUEUE),
    "in_flight_of_principal": (
        "Requests that a principal has open at a queue of this front",
        (*_QUEUE, "principal"),
    ),
    "waiting_of_principal": ("Requests that wait at this front for their principal's turn", (*_QUEUE, "principal")),
    "model_memory_budget_bytes": ("SERVING_MODEL_MEMORY_BYTES; no sample without it", ()),
    "loaded_models": ("Models in memory where they are loaded on demand", ()),
    "versions": ("Versions of this replica by state; error: it failed", ("state",)),
    "runner_private_bytes": ("Memory that is the runner's own, of a version", _VERSION),
    "batch_size_limit": ("Examples that a batch may have now; follows slo_ms", _VERSION),
    "predicted_p99_seconds": ("Latency predicted for full batches; 0 without slo_ms", _VERSION),
}
"""By name, without `headrace_serving_`: the text and the labels."""
_COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "refused": ("Requests that were refused unrun, by reason", ("model", "reason")),
    "cancelled": ("Requests taken off their queue unrun after their clients had gone", _MODEL),
    "contexts": ("Contexts that were read, each once for all rows of its request", _MODEL),
    "context_rows": ("Rows that took inputs from their request's context", _MODEL),
    "contexts_transformed_once": ("Contexts that the model transforms as one row (`export: context`)", _MODEL),
    "evictions": ("Models that left memory to make room for others", _MODEL),
    "fetched_bytes": (
        "Bytes of versions: whole files from the registry, patches of files, presigned or copied files",
        ("kind",),
    ),
    "runner_requests": ("Requests that a runner began", _SIGNATURE),
    "runner_examples": ("Examples that went through the model", _SIGNATURE),
    "runner_batches": ("Calls of the model", _SIGNATURE),
    "runner_padding_rows": ("Rows that were run only to reach an allowed batch size", _SIGNATURE),
    "runner_failures": ("Requests answered with an error", (*_SIGNATURE, "code")),
    "defaulted_examples": (
        "Examples whose request left an optional input out and got the schema's default",
        (*_SIGNATURE, "input"),
    ),
}
_HISTOGRAMS = {
    "batch_sizes": ("batch_size", "Examples in one call of the model, padding included", BATCH_SIZE_BUCKETS),
    "engine": ("engine_seconds", "Time of one call of the model", SECONDS_BUCKETS),
    "waits": ("queue_wait_seconds", "From a request's entry into the queue to the start of its batch", SECONDS_BUCKETS),
}
_SUMS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "batch_sizes": lambda work: work["examples"] + work["padding_rows"],
    "engine": lambda work: work["engine_seconds"],
    "waits": lambda work: work["wait_seconds"],
}
Family = CounterMetricFamily | GaugeMetricFamily
Sample = tuple[str, Sequence[str], float]
"""The family's name without `headrace_serving_`, its labels' values, the value."""


def _families() -> Iterator[Family]:
    for name, (text, labels) in _GAUGES.items():
        yield GaugeMetricFamily(f"headrace_serving_{name}", text, labels=labels)
    for name, (text, labels) in _COUNTERS.items():
        yield CounterMetricFamily(f"headrace_serving_{name}", text, labels=labels)


class FrontMetrics(Collector):
    """Read by Prometheus; costs a request nothing."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def collect(self) -> Iterator[Metric]:
        families = {family.name.removeprefix(_PREFIX): family for family in _families()}
        for samples in (self._of_queues(), self._of_models(), self._of_versions(), self._of_signatures()):
            for name, labels, value in samples:
                families[name].add_metric(labels, value)
        yield from families.values()
        yield from self._distributions()

    def _of_queues(self) -> Iterator[Sample]:
        for queue, route in sorted(self._front.routing.routes.items()):
            load = route.queue.load
            yield "queue_requests", queue, route.queue.depth
            yield "in_flight", queue, load.open_count
            if load.rate is not None:
                yield "drain_per_second", queue, load.rate
            for principal, count in tuple(load.of_principals.items()):
                yield "in_flight_of_principal", (*queue, principal), count
            for principal, count in route.queue.turns.waiting().items():
                yield "waiting_of_principal", (*queue, principal), count

    def _of_models(self) -> Iterator[Sample]:
        front = self._front
        for labels, count in tuple(front.admission.refusals.items()):
            yield "refused", labels, count
        by_model = {
            "cancelled": front.cancelling.counts,
            "contexts": front.contexts.requests,
            "context_rows": front.contexts.rows,
            "contexts_transformed_once": front.contexts.once,
        }
        for name, counts in by_model.items():
            for model, count in tuple(counts.items()):
                yield name, (model,), count
        memory = front.routing.state.memory if front.routing.state is not None else None
        if memory is not None:
            yield "model_memory_budget_bytes", (), memory.budget_bytes
            yield "loaded_models", (), len(memory.loaded)
            for model, count in memory.evictions.items():
                yield "evictions", (model,), count

    def _of_versions(self) -> Iterator[Sample]:
        for kind, count in (self._front.routing.state.fetched if self._front.routing.state is not None else {}).items():
            yield "fetched_bytes", (kind.removesuffix("_bytes"),), count
        for state, count in sorted(Counter(map(_state_of, self._versions())).items()):
            yield "versions", (state,), count
        for version in self._versions():
            labels = (version.model, str(version.version))
            if version.runner_pid:
                yield "runner_private_bytes", labels, version.private_bytes
            if version.work:
                yield "batch_size_limit", labels, version.work["batch_size"]
                yield "predicted_p99_seconds", labels, version.work["predicted_p99_seconds"]

    def _of_signatures(self) -> Iterator[Sample]:
        for labels, work in self._works():
            for name in ("requests", "examples", "batches", "padding_rows"):
                yield f"runner_{name}", labels, work[name]
            for code, count in work["failed"].items():
                yield "runner_failures", (*labels, code), count
            for name, count in work["defaulted"].items():
                yield "defaulted_examples", (*labels, name), count

    def _versions(self) -> tuple[VersionState, ...]:
        return self._front.routing.state.versions if self._front.routing.state is not None else ()

    def _works(self) -> Iterator[tuple[Sequence[str], Mapping[str, Any]]]:
        """The work under each signature of each version, with the labels."""
        for version in self._versions():
            for name, work in version.work.get("signatures", {}).items():
                yield (version.model, str(version.version), name), work

    def _distributions(self) -> Iterator[Metric]:
        depths = HistogramMetricFamily(
            "headrace_serving_queue_depth", "Requests in a queue, as it was seen four times a second", labels=_QUEUE
        )
        for queue, route in sorted(self._front.routing.routes.items()):
            seen = cumulative(DEPTH_BUCKETS, route.queue.depth_counts)
            depths.add_metric(queue, seen, route.queue.depth_sum)
        yield depths
        cold = SummaryMetricFamily(
            "headrace_serving_cold_wait_seconds", "How long requests waited for their model to be loaded", labels=_MODEL
        )
        for model, count in tuple(self._front.cold.waits.items()):
            cold.add_metric([model], count_value=count, sum_value=self._front.cold.wait_seconds[model])
        yield cold
        for field, (name, text, bounds) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"headrace_serving_{name}", text, labels=_SIGNATURE)
            for labels, work in self._works():
                if any(work[field]):  # a signature that was never asked has no distribution, only counts
                    histogram.add_metric(labels, cumulative(bounds, work[field]), _SUMS[field](work))
            yield histogram


def _state_of(version: VersionState) -> str:
    return "error" if version.error_code else version.state.value.lower()
