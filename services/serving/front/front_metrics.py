"""What a front knows besides its own requests, for Prometheus: its queues, what it refused, and what the runners did.

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

_QUEUE = ("model", "target")
_VERSION = ("model", "version")
_SIGNATURE = ("model", "version", "signature")
_COUNTERS = {
    "requests": "Requests that a runner began",
    "examples": "Examples that went through the model",
    "batches": "Calls of the model",
    "padding_rows": "Rows that were run only to reach an allowed batch size",
}
_HISTOGRAMS = {
    "batch_sizes": ("batch_size", "Examples in one call of the model, padding included", BATCH_SIZE_BUCKETS),
    "engine": ("engine_seconds", "Time of one call of the model", SECONDS_BUCKETS),
    "waits": ("queue_wait_seconds", "From a request's entry into the queue to the start of its batch", SECONDS_BUCKETS),
}
_Sum = Callable[[Mapping[str, Any]], float]
_SUMS: Mapping[str, _Sum] = {
    "batch_sizes": lambda work: work["examples"] + work["padding_rows"],
    "engine": lambda work: work["engine_seconds"],
    "waits": lambda work: work["wait_seconds"],
}


class FrontMetrics(Collector):
    """Asked by Prometheus; costs a request nothing."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def collect(self) -> Iterator[Metric]:
        yield from self._queues()
        yield from self._refusals()
        yield from self._contexts()
        yield from self._memory()
        yield from self._runners()

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "headrace_serving_queue_requests", "Requests in a queue, waiting and running, of all fronts", labels=_QUEUE
        )
        depths = HistogramMetricFamily(
            "headrace_serving_queue_depth",
            "Requests in a queue, as it was seen four times a second",
            labels=_QUEUE,
        )
        in_flight = GaugeMetricFamily(
            "headrace_serving_in_flight", "Requests that this front has open at a queue", labels=_QUEUE
        )
        rate = GaugeMetricFamily(
            "headrace_serving_drain_per_second", "Answers per second of a busy queue, as last measured", labels=_QUEUE
        )
        of_principals = GaugeMetricFamily(
            "headrace_serving_in_flight_of_principal", "Requests that a principal has open at a queue of this front",
            labels=[*_QUEUE, "principal"],
        )  # fmt: skip
        waiting = GaugeMetricFamily(
            "headrace_serving_waiting_of_principal", "Requests that wait at this front for their principal's turn",
            labels=[*_QUEUE, "principal"],
        )  # fmt: skip
        for (model, target), route in sorted(self._front.routes.items()):
            load = route.queue.load
            for principal, count in route.queue.turns.waiting().items():
                waiting.add_metric([model, target, principal], count)
            for principal, count in tuple(load.of_principals.items()):
                of_principals.add_metric([model, target, principal], count)
            depth.add_metric([model, target], route.queue.depth)
            seen = cumulative(DEPTH_BUCKETS, route.queue.depth_counts)
            depths.add_metric([model, target], seen, route.queue.depth_sum)
            in_flight.add_metric([model, target], load.open_count)
            if load.rate is not None:
                rate.add_metric([model, target], load.rate)
        yield from (depth, depths, in_flight, rate, of_principals, waiting)

    def _refusals(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "headrace_serving_refused", "Requests that were refused unrun, by reason", labels=["model", "reason"]
        )
        for (model, reason), count in tuple(self._front.admission.refusals.items()):
            refused.add_metric([model, reason], count)
        yield refused
        cancelled = CounterMetricFamily(
            "headrace_serving_cancelled",
            "Requests taken off their queue unrun after their clients had gone",
            labels=["model"],
        )
        for model, count in tuple(self._front.cancelling.counts.items()):
            cancelled.add_metric([model], count)
        yield cancelled

    def _contexts(self) -> Iterator[Metric]:
        contexts = CounterMetricFamily(
            "headrace_serving_contexts",
            "Contexts that were read, each once for all rows of its request",
            labels=["model"],
        )
        rows = CounterMetricFamily(
            "headrace_serving_context_rows", "Rows that took inputs from their request's context", labels=["model"]
        )
        once = CounterMetricFamily(
            "headrace_serving_contexts_transformed_once",
            "Contexts that the model transforms as one row (`export: context`)",
            labels=["model"],
        )
        for counter, counts in (
            (contexts, self._front.contexts.requests),
            (once, self._front.contexts.once),
            (rows, self._front.contexts.rows),
        ):
            for model, count in tuple(counts.items()):
                counter.add_metric([model], count)
            yield counter

    def _memory(self) -> Iterator[Metric]:
        memory = self._front.state.memory if self._front.state is not None else None
        budget = GaugeMetricFamily(
            "headrace_serving_model_memory_budget_bytes", "SERVING_MODEL_MEMORY_BYTES; no sample without it"
        )
        loaded = GaugeMetricFamily(
            "headrace_serving_loaded_models", "Models in memory where they are loaded when asked"
        )
        evictions = CounterMetricFamily(
            "headrace_serving_evictions", "Models that left memory to make room for others", labels=["model"]
        )
        if memory is not None:
            budget.add_metric([], memory.budget_bytes)
            loaded.add_metric([], len(memory.loaded))
            for model, count in memory.evictions.items():
                evictions.add_metric([model], count)
        cold = SummaryMetricFamily(
            "headrace_serving_cold_wait_seconds", "How long requests waited for their model to be loaded",
            labels=["model"],
        )  # fmt: skip
        for model, count in tuple(self._front.cold.waits.items()):
            cold.add_metric([model], count_value=count, sum_value=self._front.cold.wait_seconds[model])
        yield from (budget, loaded, evictions, cold)

    def _runners(self) -> Iterator[Metric]:
        replica = self._front.state
        versions = replica.versions if replica is not None else ()
        fetched = CounterMetricFamily(
            "headrace_serving_fetched_bytes",
            "Bytes of versions: whole files from the registry, patches of files, presigned files from an object store",
            labels=["kind"],
        )
        for kind, count in (replica.fetched if replica is not None else {}).items():
            fetched.add_metric([kind.removesuffix("_bytes")], count)
        yield fetched
        states = GaugeMetricFamily(
            "headrace_serving_versions", "Versions of this replica by state; error: it failed", labels=["state"]
        )
        for state, count in sorted(Counter(_state_of(version) for version in versions).items()):
            states.add_metric([state], count)
        yield states
        yield _memory(versions)
        worked = [(version, version.work) for version in versions if version.work]
        works = [
            ([version.model, str(version.version), name], work)
            for version, report in worked
            for name, work in report["signatures"].items()
        ]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"headrace_serving_runner_{name}", text, labels=_SIGNATURE)
            for labels, work in works:
                counter.add_metric(labels, work[name])
            yield counter
        failures = CounterMetricFamily(
            "headrace_serving_runner_failures", "Requests answered with an error", labels=[*_SIGNATURE, "code"]
        )
        for labels, work in works:
            for code, count in work["failed"].items():
                failures.add_metric([*labels, code], count)
        yield failures
        defaulted = CounterMetricFamily(
            "headrace_serving_defaulted_examples",
            "Examples whose request left an optional input out and got the schema's default",
            labels=[*_SIGNATURE, "input"],
        )
        for labels, work in works:
            for name, count in work["defaulted"].items():
                defaulted.add_metric([*labels, name], count)
        yield defaulted
        for field, (name, text, bounds) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"headrace_serving_{name}", text, labels=_SIGNATURE)
            for labels, work in works:
                if any(work[field]):  # a signature that was never asked has no distribution, only counts
                    histogram.add_metric(labels, cumulative(bounds, work[field]), _SUMS[field](work))
            yield histogram
        yield from _limits([([version.model, str(version.version)], report) for version, report in worked])


def _state_of(version: VersionState) -> str:
    return "error" if version.error_code else version.state.value.lower()


def _memory(versions: Sequence[VersionState]) -> Metric:
    memory = GaugeMetricFamily(
        "headrace_serving_runner_private_bytes", "Memory that is the runner's own, of a version", labels=_VERSION
    )
    for version in versions:
        if version.runner_pid:
            memory.add_metric([version.model, str(version.version)], version.private_bytes)
    return memory


def _limits(reports: list[tuple[list[str], Mapping[str, Any]]]) -> Iterator[Metric]:
    size = GaugeMetricFamily(
        "headrace_serving_batch_size_limit", "Examples that a batch may have now; follows slo_ms", labels=_VERSION
    )
    predicted = GaugeMetricFamily(
        "headrace_serving_predicted_p99_seconds",
        "Latency predicted for full batches; 0 without slo_ms",
        labels=_VERSION,
    )
    for labels, report in reports:
        size.add_metric(labels, report["batch_size"])
        predicted.add_metric(labels, report["predicted_p99_seconds"])
    yield from (size, predicted)
