"""The front's counts per request, kept in plain integers and read by Prometheus.

prometheus_client's own cost four times as much (docs/internals/decisions, 10).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OK = 0
_LABELS = ("model", "version", "signature")
PREDICT, CLASSIFY, REGRESS, MULTI_INFERENCE = "Predict", "Classify", "Regress", "MultiInference"
_API_BUCKETS_MICROS = tuple(10 * 1.8**power for power in range(33))
_API_LATENCY = ":tensorflow:serving:request_latency"
_ENTRY_POINTS = {"http": "REST", "grpc": "GRPC"}


class _Series:
    """Requests of a model, version, signature and door."""

    __slots__ = ("codes", "seconds", "sum_seconds")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.seconds = [0] * (len(BUCKETS_SECONDS) + 1)
        """Successful requests: a count per bucket, and a count beyond the last."""
        self.sum_seconds = 0.0


@dataclass(frozen=True)
class Totals:
    """Since the start, over all models and doors."""

    requests: int
    failed: int
    seconds: tuple[int, ...]
    """Successful requests: a count per bucket of BUCKETS_SECONDS, and a count beyond the last."""

    def plus(self, other: "Totals") -> "Totals":
        seconds = tuple(count + more for count, more in zip(self.seconds, other.seconds, strict=True))
        return Totals(self.requests + other.requests, self.failed + other.failed, seconds)


class RequestCounts(Collector):
    """Requests by model, version, signature, door and canonical status code, and how long the successful ones took.

    Only models that are served get a series of their own; requests for others count under the model "". Version and
    signature are "" where no runner answered.
    """

    def __init__(self, open_count: Callable[[], int]) -> None:
        self._open_count = open_count
        self._series: dict[tuple[str, int, str, str], _Series] = {}

    def add(self, model: str, door: str, code: int, seconds: float, *, version: int = 0, signature: str = "") -> None:
        key = (model, version, signature if version else "", door)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        codes = series.codes
        codes[code] = codes.get(code, 0) + 1
        if code == _OK:
            series.seconds[bisect_left(BUCKETS_SECONDS, seconds)] += 1
            series.sum_seconds += seconds

    def open_count(self) -> int:
        return self._open_count()

    def totals_by_version(self) -> dict[tuple[str, int], Totals]:
        """{(model, version): Totals}, over all signatures and doors; from any thread. Version 0: none answered."""
        found: dict[tuple[str, int], Totals] = {}
        for (model, version, _, _), series in tuple(self._series.items()):
            codes = tuple(series.codes.items())
            totals = Totals(
                sum(count for _, count in codes),
                sum(count for code, count in codes if code != _OK),
                tuple(series.seconds),
            )
            known = found.get((model, version))
            found[model, version] = known.plus(totals) if known is not None else totals
        return found

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_serving_requests", "Predict requests answered", labels=[*_LABELS, "door", "code"]
        )
        latency = HistogramMetricFamily(
            "headrace_serving_request_seconds", "From the whole request read to its answer", labels=[*_LABELS, "door"]
        )
        for (model, version, signature, door), series in tuple(self._series.items()):
            labels = [model, str(version or ""), signature, door]
            for code, count in tuple(series.codes.items()):
                requests.add_metric([*labels, str(code)], count)
            if _OK in series.codes:
                latency.add_metric(labels, cumulative(BUCKETS_SECONDS, series.seconds), series.sum_seconds)
        yield requests
        yield latency
        yield GaugeMetricFamily("headrace_serving_open_requests", "Requests not answered yet", value=self._open_count())


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """A histogram's buckets as Prometheus has them, from a count per bucket and a count beyond the last."""
    total = 0
    buckets = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def quantile(counts: Sequence[int], share: float) -> float:
    """Seconds, within its bucket by proportion, as Prometheus' histogram_quantile; 0.0 of nothing."""
    wanted, seen, lower = share * sum(counts), 0, 0.0
    for bound, count in zip(BUCKETS_SECONDS, counts, strict=False):
        if count and seen + count >= wanted:
            return lower + (bound - lower) * (wanted - seen) / count
        seen, lower = seen + count, bound
    return lower if seen < sum(counts) else 0.0


class ContextCounts:
    """Contexts that rows of a request share, read once per request; used by one thread."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """By model."""
        self.rows: Counter[str] = Counter()
        """That shared a context, by model."""
        self.once: Counter[str] = Counter()
        """Requests whose context the model transforms once, by model."""

    def add(self, model: str, rows: int, *, is_once: bool = False) -> None:
        self.requests[model] += 1
        self.once[model] += is_once
        self.rows[model] += rows


class ApiLatency:
    """How long successful requests took by API and entry point, as TensorFlow Serving's `request_latency` has it; used
    by one thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        """By model, API and door: a count per bucket and a count beyond the last."""
        self._sums: dict[tuple[str, str, str], float] = {}

    def add(self, model: str, api: str, door: str, seconds: float) -> None:
        key = model, api, door
        counts = self._counts.get(key)
        if counts is None:
            counts, self._sums[key] = self._counts.setdefault(key, [0] * (len(_API_BUCKETS_MICROS) + 1)), 0.0
        micros = seconds * 1e6
        counts[bisect_left(_API_BUCKETS_MICROS, micros)] += 1
        self._sums[key] += micros

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format. REST's APIs are written small, as TensorFlow Serving does."""
        yield f"# TYPE {_API_LATENCY} histogram\n"
        for (model, api, door), counts in sorted(self._counts.items()):
            name = api.lower() if door == "http" else api
            labels = f'model_name="{escaped(model)}",API="{name}",entrypoint="{_ENTRY_POINTS[door]}"'
            total = 0
            for bound, count in zip((*(f"{bound:g}" for bound in _API_BUCKETS_MICROS), "+Inf"), counts, strict=True):
                total += count
                yield f'{_API_LATENCY}_bucket{{{labels},le="{bound}"}} {total}\n'
            yield f"{_API_LATENCY}_sum{{{labels}}} {self._sums[model, api, door]:g}\n"
            yield f"{_API_LATENCY}_count{{{labels}}} {total}\n"


def escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
