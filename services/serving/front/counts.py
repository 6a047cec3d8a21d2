"""What the front counts per request, kept in plain integers and shown to Prometheus when it asks.

prometheus_client's own counters cost more per request than the whole queue path.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OK = 0
_LABELS = ("model", "version", "signature")


class _Series:
    """Requests of one model, version, signature and door."""

    __slots__ = ("codes", "seconds", "sum_seconds")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.seconds = [0] * (len(_BUCKETS_SECONDS) + 1)
        """Successful ones: one count per bucket, and one beyond the last."""
        self.sum_seconds = 0.0


class Statistics(Collector):
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
            series.seconds[bisect_left(_BUCKETS_SECONDS, seconds)] += 1
            series.sum_seconds += seconds

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
                latency.add_metric(labels, cumulative(_BUCKETS_SECONDS, series.seconds), series.sum_seconds)
        yield requests
        yield latency
        yield GaugeMetricFamily("headrace_serving_open_requests", "Requests not answered yet", value=self._open_count())


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """A histogram's buckets as Prometheus has them, from one count per bucket and one beyond the last."""
    total = 0
    buckets = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
