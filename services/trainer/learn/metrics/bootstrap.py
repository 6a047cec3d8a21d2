"""How sure a figure is: the paired bootstrap over the held-out examples.

A resample gives each example a Poisson(1) weight, the same for candidate and parent, so what both find hard about an
example takes nothing from the comparison (Efron: Bootstrap methods: another look at the jackknife, 1979; Chamandy et
al.: Estimating uncertainty for massive data streams, 2012). It is seeded: the same examples give the same intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.definition.metrics import Metric
from services.trainer.learn.metrics.judged import Batched, Floats, Judged, Weighed
from services.trainer.learn.metrics.table import prepared

_MIN_RESAMPLES, _MAX_RESAMPLES = 200, 1000
_MAX_DRAWS = 20_000_000
"""Of weights, all resamples together, where that leaves the fewest resamples: what bounds the cost."""
_AT_ONCE = 200_000
"""Weights in memory: they stay in the processor's cache."""
_KEPT_DRAWS = 4_000_000


@dataclass(frozen=True)
class Question:
    """Which figure, of which examples: bool by row of the slice."""

    metric: Metric
    chosen: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Interval:
    """Between which bounds figures lie: (low, high). None where most resamples do not define it.

    Attributes:
        difference: candidate minus parent; None too where there is no parent.
    """

    candidate: tuple[float, float] | None
    difference: tuple[float, float] | None

    def to_mapping(self) -> dict[str, list[float]]:
        bounds: Mapping[str, tuple[float, float] | None] = {
            "candidate": self.candidate, "difference": self.difference,
        }  # fmt: skip
        return {name: list(pair) for name, pair in bounds.items() if pair is not None}


def resample_count(example_count: int, *, is_judged: bool = True) -> int:
    """`is_judged`: by a gate that judges by intervals; where they are only shown, fewer will do."""
    if not is_judged:
        return int(np.clip(_MAX_DRAWS // 10 // max(example_count, 1), _MIN_RESAMPLES // 2, _MIN_RESAMPLES))
    return int(np.clip(_MAX_DRAWS // max(example_count, 1), _MIN_RESAMPLES, _MAX_RESAMPLES))


def intervals(
    questions: Sequence[Question],
    candidate: Judged,
    parent: Judged | None,
    *,
    confidence: float,
    seed: int,
    is_judged: bool = True,
) -> list[Interval]:
    """One for each question, over the examples that candidate and parent have both scored.

    Memory: a few numbers per example and a few hundred per question.
    """
    if parent is not None:
        candidate = candidate.at(np.isin(candidate.rows, parent.rows))
        parent = parent.at(np.isin(parent.rows, candidate.rows))
    units = _units(candidate)
    unit_count, resamples = int(units.max(initial=-1)) + 1, resample_count(candidate.count, is_judged=is_judged)
    drawings = [_Drawn(question, candidate, parent) for question in questions]
    at_once = max(1, _AT_ONCE // max(candidate.count, 1))
    draws = _kept_draws if unit_count * resamples <= _KEPT_DRAWS else _draws
    drawn = draws(unit_count, resamples, seed)
    for start in range(0, resamples, at_once):
        weights = drawn[start : start + at_once].astype(np.float64)
        weights = weights if unit_count == candidate.count else weights[:, units]
        for drawing in drawings:
            drawing.draw(weights.T)
    return [drawing.interval(confidence) for drawing in drawings]


def _draws(units: int, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Poisson(1), [resamples, units]."""
    random = np.random.Generator(np.random.PCG64(seed))
    return np.stack([random.poisson(1.0, units).astype(np.uint8) for _ in range(resamples)])


_kept_draws = lru_cache(maxsize=2)(_draws)
"""A model's rounds are judged on equally many examples where its window is full, and draw the same."""


def _units(data: Judged) -> NDArray[np.int64]:
    """What is drawn as a unit: an example, or the examples of a group."""
    if "group" in data.columns:
        return np.unique(data.columns["group"], return_inverse=True)[1].astype(np.int64)
    return np.arange(data.count)


class _Drawn:
    """One question with its metric prepared for both models."""

    def __init__(self, question: Question, candidate: Judged, parent: Judged | None) -> None:
        self._chosen = None if question.chosen is None else question.chosen[candidate.rows]
        self._measures: list[tuple[Weighed, Floats]] = []
        for data in (candidate, parent):
            if data is not None:
                part = data if self._chosen is None else data.at(self._chosen)
                self._measures.append((prepared(question.metric, part), part.weights))
        self._found: list[Floats] = []

    def draw(self, drawn: Floats) -> None:
        """drawn: [n, resamples]."""
        weights = drawn if self._chosen is None else drawn[self._chosen]
        values = [
            _values(measure, weights if (given == 1.0).all() else given[:, np.newaxis] * weights)
            for measure, given in self._measures
        ]
        self._found.append(np.stack(values, axis=1))

    def interval(self, confidence: float) -> Interval:
        found = np.concatenate(self._found)
        there = found[np.isfinite(found).all(axis=1)]
        if 2 * len(there) <= len(found) or not len(there):
            return Interval(None, None)
        difference = there[:, 0] - there[:, 1] if there.shape[1] == 2 else None
        return Interval(
            _bounds(there[:, 0], confidence), None if difference is None else _bounds(difference, confidence)
        )


def _values(measure: Weighed, weights: Floats) -> Floats:
    """Under each column of weights; NaN where the metric is not defined."""
    if isinstance(measure, Batched):
        return measure.many(weights)
    found = [measure(column) for column in np.ascontiguousarray(weights.T)]
    return np.array([np.nan if value is None else value for value in found])


def _bounds(values: Floats, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low, high
