"""How much slower a model's requests are while a version of it is loaded: p99 around each reload over p99 before it.

Looked at with the manager's snapshots, which come about every second and with every change; costs a request nothing. A
reload lasts from the beginning of a load, of whichever version, until two seconds after its end, in which the version
before is freed. A snapshot counts on either side as a whole.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.serving.front.request_counts import BUCKETS_SECONDS, RequestCounts, quantile
from services.serving.wire.replica_state import ReplicaState, VersionState

logger = logging.getLogger(__name__)
_FREED_SECONDS = 2.0
_FEWEST = 100
"""Requests, on either side, below which a p99 says nothing."""
_MOST_STEADY = 100_000
"""Past it older requests count half, so that the p99 before a reload is that of lately."""
_NONE = (0,) * (len(BUCKETS_SECONDS) + 1)


@dataclass(frozen=True)
class Reload:
    """`factor`: 0.0 where a side has too few requests to be judged."""

    version: int
    at: float
    requests: int
    steady_p99_seconds: float
    reload_p99_seconds: float
    factor: float
    is_over: bool


@dataclass
class _Watched:
    before: Sequence[int] = _NONE
    steady: list[int] = field(default_factory=lambda: list(_NONE))
    around: list[int] = field(default_factory=lambda: list(_NONE))
    began_at: float = 0.0
    is_reloading: bool = False
    judged: int = 0
    over: int = 0
    last: Reload | None = None


class ReloadJitter(Collector):
    """Args:
    allowed: the factor that SERVING_RELOAD_P99_FACTOR allows.
    clock: epoch seconds, as the moments of a snapshot.
    """

    def __init__(self, counts: RequestCounts, allowed: float, *, clock: Callable[[], float] = time.time) -> None:
        self._counts, self._allowed, self._clock = counts, allowed, clock
        self._models: dict[str, _Watched] = {}

    def look(self, state: ReplicaState) -> None:
        """Takes the manager's snapshot. By one thread."""
        found = dict[str, list[int]]()
        for (model, _), totals in self._counts.totals_by_version().items():
            known = found.setdefault(model, list(_NONE))
            found[model] = [count + more for count, more in zip(known, totals.seconds, strict=True)]
        for gone in self._models.keys() - state.models.keys():
            del self._models[gone]
        for model in state.models:
            versions = [version for version in state.versions if version.model == model and version.attempt.began_at]
            newest = max(versions, key=lambda version: version.attempt.began_at, default=None)
            self._look_at(model, newest, found.get(model, list(_NONE)))

    def _look_at(self, model: str, newest: VersionState | None, now: Sequence[int]) -> None:
        watched = self._models.setdefault(model, _Watched())
        if newest is not None and newest.attempt.began_at > watched.began_at:
            watched.began_at, watched.is_reloading = newest.attempt.began_at, True
        into = watched.around if watched.is_reloading else watched.steady
        for bucket, (count, before) in enumerate(zip(now, watched.before, strict=True)):
            into[bucket] += count - before
        watched.before = now
        if sum(watched.steady) > _MOST_STEADY:
            watched.steady = [count // 2 for count in watched.steady]
        ended_at = newest.attempt.ended_at if newest is not None else 0.0
        if newest is not None and watched.is_reloading and ended_at and self._clock() >= ended_at + _FREED_SECONDS:
            self._judge(model, watched, newest.version, ended_at)

    def _judge(self, model: str, watched: _Watched, version: int, at: float) -> None:
        steady, around, factor = quantile(watched.steady, 0.99), quantile(watched.around, 0.99), 0.0
        if min(sum(watched.steady), sum(watched.around)) >= _FEWEST:
            factor = around / steady
            watched.judged += 1
        is_over = factor > self._allowed
        watched.last = Reload(version, at, sum(watched.around), steady, around, factor, is_over)
        watched.around, watched.is_reloading = list(_NONE), False
        if is_over:
            watched.over += 1
            fields = {"model": model, "version": version, "factor": round(factor, 2), "allowed": self._allowed}
            logger.warning("answers were slow around a reload", extra=fields)

    def shown(self) -> dict[str, Any]:
        """For GET /headrace/status: the limit, and the last reload of each model."""
        return {
            "allowed_factor": self._allowed,
            "models": {name: asdict(known.last) for name, known in tuple(self._models.items()) if known.last},
        }

    def collect(self) -> Iterator[Metric]:
        factor = GaugeMetricFamily(
            "headrace_serving_reload_p99_factor", "p99 around the last reload over p99 before it", labels=["model"]
        )
        judged = CounterMetricFamily(
            "headrace_serving_reloads_judged", "Reloads with enough requests for a p99", labels=["model"]
        )
        over = CounterMetricFamily(
            "headrace_serving_reloads_over_factor",
            "Reloads whose p99 was more than SERVING_RELOAD_P99_FACTOR allows",
            labels=["model"],
        )
        for model, watched in tuple(self._models.items()):
            if watched.last and watched.last.factor:
                factor.add_metric([model], watched.last.factor)
            judged.add_metric([model], watched.judged)
            over.add_metric([model], watched.over)
        yield from (factor, judged, over)
