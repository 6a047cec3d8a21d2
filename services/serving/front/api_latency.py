"""How long requests took by API and entry point, as TensorFlow Serving's `request_latency` has it."""

from bisect import bisect_left
from collections.abc import Iterator

PREDICT, CLASSIFY, REGRESS, MULTI_INFERENCE = "Predict", "Classify", "Regress", "MultiInference"
_BUCKETS_MICROS = tuple(10 * 1.8**power for power in range(33))
_NAME = ":tensorflow:serving:request_latency"
_ENTRY_POINTS = {"http": "REST", "grpc": "GRPC"}


class ApiLatency:
    """Successful requests only. Used by one thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        """By model, API and door: one count per bucket and one beyond the last."""
        self._sums: dict[tuple[str, str, str], float] = {}

    def add(self, model: str, api: str, door: str, seconds: float) -> None:
        key = model, api, door
        counts = self._counts.get(key)
        if counts is None:
            counts, self._sums[key] = self._counts.setdefault(key, [0] * (len(_BUCKETS_MICROS) + 1)), 0.0
        micros = seconds * 1e6
        counts[bisect_left(_BUCKETS_MICROS, micros)] += 1
        self._sums[key] += micros

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format. REST's APIs are written small, as TensorFlow Serving does."""
        yield f"# TYPE {_NAME} histogram\n"
        for (model, api, door), counts in sorted(self._counts.items()):
            name = api.lower() if door == "http" else api
            labels = f'model_name="{escaped(model)}",API="{name}",entrypoint="{_ENTRY_POINTS[door]}"'
            total = 0
            for bound, count in zip((*(f"{bound:g}" for bound in _BUCKETS_MICROS), "+Inf"), counts, strict=True):
                total += count
                yield f'{_NAME}_bucket{{{labels},le="{bound}"}} {total}\n'
            yield f"{_NAME}_sum{{{labels}}} {self._sums[model, api, door]:g}\n"
            yield f"{_NAME}_count{{{labels}}} {total}\n"


def escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
