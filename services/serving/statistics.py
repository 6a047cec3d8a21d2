"""What the front counts per request, kept in plain integers and shown to Prometheus when it asks.

prometheus_client's own counters cost more per request than the whole queue path.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OK = 0


class Statistics(Collector):
    """Requests by model, door and canonical status code, and how long the successful ones took.

    Only models that are served get a series of their own; requests for others count under the model "".
    """

    def __init__(self, open_count: Callable[[], int]) -> None:
        self._open_count = open_count
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, list[float]] = {}
        """By model: one count per bucket, then one beyond the last, then the sum."""

    def add(self, model: str, door: str, code: int, seconds: float) -> None:
        self._counts[model, door, code] += 1
        if code == _OK:
            known = self._seconds.get(model)
            if known is None:
                known = self._seconds[model] = [0.0] * (len(_BUCKETS_SECONDS) + 2)
            known[bisect_left(_BUCKETS_SECONDS, seconds)] += 1
            known[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_serving_requests", "Predict requests answered", labels=["model", "door", "code"]
        )
        for (model, door, code), requests_count in self._counts.items():
            requests.add_metric([model, door, str(code)], requests_count)
        yield requests
        latency = HistogramMetricFamily(
            "headrace_serving_request_seconds", "From the whole request read to its answer", labels=["model"]
        )
        for model, values in self._seconds.items():
            total = 0.0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*map(str, _BUCKETS_SECONDS), "+Inf"), values, strict=False):
                total += count
                buckets.append((bound, total))
            latency.add_metric([model], buckets, values[-1])
        yield latency
        yield GaugeMetricFamily("headrace_serving_open_requests", "Requests not answered yet", value=self._open_count())
