"""The batch size that a latency objective allows, found while serving.

For full batches of the size in force, the last calls of the model give e, the 99th percentile of the engine's time, and
their requests give w, that of the longest wait in the queue. The latency that a request of such a batch will see is
predicted as

    p99 = e + min(w, e)

A request that comes while the model runs waits for that call and then for its own. Where w is above e the queue grows,
which smaller batches would only make worse; that is left to the bounds of the queue and the deadlines.

Additive increase, multiplicative decrease (Crankshaw et al., Clipper, NSDI 2017, section 4.3.1): the size doubles until
the prediction first exceeds the objective. A size that exceeds it goes back to the one before it grew; where that
exceeds it, too, it is cut by a tenth each time. It grows by a step, a 64th of the largest batch, after a few full
batches where the prediction holds even if time grew as fast as the batch, and otherwise as a probe after two hundred,
so that probes spend no more than the one batch in a hundred that may be late. With allowed batch sizes the size in
force is the largest of them that is not above.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

_WINDOW = 100
"""Full batches that are remembered."""
_ENOUGH = 8
"""Full batches that must have kept the objective before the size grows where growing is safe."""
_PROBE_AFTER = 200
_BACKOFF = 0.9
_STEPS = 64
_FULL = 0.75
"""A batch this full, compared with the size in force, speaks for the size."""


class BatchSizeLimit:
    """Follows an objective. Not thread-safe; knows no clock, all times are arguments."""

    def __init__(self, objective_seconds: float, *, largest: int, allowed_sizes: Sequence[int] = ()) -> None:
        self._objective_seconds = objective_seconds
        self._largest = largest
        self._allowed = tuple(allowed_sizes)
        self._limit = 1
        self._is_searching = True
        self._before_growth = 0
        """The size before the last growth, to which a first failure goes back; 0 once it went."""
        self._engine: deque[float] = deque(maxlen=_WINDOW)
        self._waits: deque[float] = deque(maxlen=_WINDOW)
        self._kept = 0
        """Full batches since the size changed."""
        self.predicted_seconds = 0.0
        """The p99 predicted for the size in force; 0 before anything was seen."""

    @property
    def size(self) -> int:
        """Examples that a batch may have now."""
        return self._size_of(self._limit)

    def observe(self, rows: int, *, engine_seconds: float, wait_seconds: float) -> None:
        """A call of the model: its rows, its time, and the longest that one of its requests had waited before it."""
        if not _FULL * self.size <= rows <= self.size:
            return
        self._kept += 1
        self._engine.append(engine_seconds)
        self._waits.append(wait_seconds)
        engine = _percentile_99(self._engine)
        self.predicted_seconds = engine + min(_percentile_99(self._waits), engine)
        if self.predicted_seconds > self._objective_seconds:
            self._is_searching = False
            smaller, self._before_growth = self._before_growth or math.floor(self.size * _BACKOFF), 0
            self._resize(max(1, smaller))
        elif self._kept >= _ENOUGH:
            self._grow()

    def _grow(self) -> None:
        step = self._limit if self._is_searching else max(1, self._largest // _STEPS)
        limit = min(self._largest, self._limit + step)
        at_worst_seconds = self.predicted_seconds * self._size_of(limit) / self.size
        if self._is_searching or at_worst_seconds <= self._objective_seconds or self._kept >= _PROBE_AFTER:
            self._before_growth = self._limit
            self._resize(limit)

    def _size_of(self, limit: int) -> int:
        if not self._allowed:
            return limit
        return self._allowed[max(bisect_right(self._allowed, limit) - 1, 0)]

    def _resize(self, limit: int) -> None:
        if self._size_of(limit) != self.size:
            self._kept = 0
            self._engine.clear()
            self._waits.clear()
        self._limit = limit


def _percentile_99(values: Sequence[float]) -> float:
    """By nearest rank: of fewer than a hundred values the largest."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]
