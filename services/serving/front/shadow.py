"""Scores keyed predictions on a second version too, after their answer has left: a judge compares the two.

Production's requests are scored on its predecessor, and on a canary that answers nobody yet; a canary's requests, on
production. Each is an alias like any other, so a replica has it loaded; where it is a state of production's program it
costs its variables. A shadow gives way: none begins while requests are refused, or while too many are open.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from common.registry.catalog import CANARY, PREDECESSOR, PRODUCTION
from protos import queue_pb2
from services.serving.front.core import Front
from services.serving.front.request_log import Sample
from services.serving.wire.keys import DEFAULT_SIGNATURE, alias_target
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import Split

_MOST_OPEN = 64
ANSWERED, FAILED, DROPPED = "answered", "failed", "dropped"


class Shadow(Collector):
    """Belongs to the front's event loop."""

    def __init__(self, front: Front, offer: Callable[[Sample], None]) -> None:
        self._front, self._offer = front, offer
        self._open = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        """By (model, the shadow's fate)."""

    def split_of(self, model: str) -> Split | None:
        """None where no canary of the model is being judged and no input is logged; else errors under a key count."""
        return self._front.routing.splits.get(model)

    def follow(self, sample: Sample) -> None:
        """Scores an answered prediction where another version has its signature; returns at once."""
        for alias in self._compared_with(sample):
            route = self._front.routing.routes.get((sample.model, alias_target(alias)))
            if route is None or route.signature(sample.request.signature or DEFAULT_SIGNATURE) is None:
                continue
            if route.version.version != sample.reply.version:
                self._open += 1
                asyncio.get_running_loop().call_soon(self._submit, sample, alias)

    def _compared_with(self, sample: Sample) -> tuple[str, ...]:
        split = self.split_of(sample.model)
        if split is None or not split.version:
            return (PREDECESSOR,) if sample.alias == PRODUCTION else ()
        if sample.alias == PRODUCTION:
            return (PREDECESSOR,) if split.share else (PREDECESSOR, CANARY)
        return (PRODUCTION,) if sample.alias == CANARY else ()

    def _submit(self, sample: Sample, alias: str) -> None:
        if self._open > _MOST_OPEN or self._front.is_refusing:
            self._end(sample.model, DROPPED)
            return
        request = queue_pb2.PredictionRequest(
            signature=sample.request.signature, inputs=sample.request.inputs,
            output_filter=sample.request.output_filter, defaulted=sample.request.defaulted,
        )  # fmt: skip
        began = time.perf_counter()
        try:
            route = self._front.resolve(sample.model, label=alias)
            self._front.submit(route, request, partial(self._take, sample, alias, began), rows=len(sample.keys))
        except RequestFailed:
            self._end(sample.model, DROPPED)

    def _take(self, sample: Sample, alias: str, began: float, reply: queue_pb2.PredictionReply) -> None:
        self._end(sample.model, FAILED if reply.error_code else ANSWERED)
        if reply.error_code and self.split_of(sample.model) is None:
            return
        seconds = time.perf_counter() - began
        shadow = Sample(
            sample.model, sample.tag, time.time(), seconds, sample.request, reply,
            keys=sample.keys, alias=alias, is_shadow=True, has_inputs=False,
        )  # fmt: skip
        self._offer(shadow)

    def _end(self, model: str, result: str) -> None:
        self._open -= 1
        self._counts[model, result] += 1

    def collect(self) -> Iterator[Metric]:
        shadows = CounterMetricFamily(
            "headrace_serving_shadow_predictions", "Keyed predictions, scored on a second version too",
            labels=["model", "result"],
        )  # fmt: skip
        for (model, result), count in list(self._counts.items()):
            shadows.add_metric([model, result], count)
        yield shadows
