"""Whether a window of events is distributed as the events that a version has learned from, by a permutation test.

Each feature's values fall into parts: numbers between the twentieths of both samples, with a part for missing values,
texts into the most frequent words of both, the others, and missing values. Its distance is the largest difference of
the cumulated shares (Kolmogorov and Smirnov) of numbers, and half the sum of the differences of shares (total
variation) of texts. Where both samples come from one distribution, every choice of the window's events among all of
them is equally likely, and the counts of such a choice are multivariate hypergeometric. So the threshold is drawn and
not assumed: a feature has shifted where fewer than _EXTREME of _EXTREME * features / alpha draws reach its distance
(Besag and Clifford 1991, "Sequential Monte Carlo p-values"; Bonferroni over the features). The chance that a window of
the same distribution names any feature is then at most alpha.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.schema import Schema
from protos.example_pb2 import Example

Numbers = NDArray[np.float64]
Values = Numbers | list[bytes | None]
_PARTS, _WORDS = 20, 30
_EXTREME = 10
_FIRST_DRAWS, _DRAWS_AT_ONCE = 400, 20_000
_NAMED = 3


@dataclass(frozen=True)
class Shifted:
    feature: str
    distance: float
    threshold: float


@dataclass(frozen=True)
class Finding:
    """`shifted`: the furthest beyond their threshold first, three at most. `furthest`: of all features."""

    features: int
    shifted: tuple[Shifted, ...]
    furthest: str
    distance: float

    def to_mapping(self) -> dict[str, Any]:
        return {**asdict(self), "shifted": [asdict(field) for field in self.shifted]}


def values_of(examples: Sequence[bytes], schema: Schema, names: Sequence[str]) -> dict[str, Values]:
    """By feature a value of each example: of a list of numbers the mean, of texts a drawn text. Missing: NaN, None."""
    rng = np.random.default_rng(len(examples))
    rows = [Example.FromString(content).features.feature for content in examples]
    found: dict[str, Values] = {}
    for name in names:
        if schema.feature(name).dtype == "string":
            words = [row[name].bytes_list.value if name in row else () for row in rows]
            found[name] = [values[int(rng.integers(len(values)))] if values else None for values in words]
        else:
            lists = [_numbers(row[name]) if name in row else () for row in rows]
            found[name] = np.array([np.mean(values) if values else np.nan for values in lists], np.float64)
    return found


def find_shift(reference: Mapping[str, Values], window: Mapping[str, Values], *, alpha: float, seed: int) -> Finding:
    """Of samples with the same features, at least one, and one example at least on each side."""
    features = [_feature_of(name, values, window[name]) for name, values in reference.items()]
    return _found(features, alpha=alpha, seed=seed)


def find_shift_of_counts(
    name: str, reference: Sequence[int], window: Sequence[int], *, alpha: float, seed: int
) -> Finding:
    """Of a number whose values were counted by the same rising parts on both sides, one at least on each."""
    counts = (np.asarray(sample, np.int64) for sample in (reference, window))
    return _found([_Feature(name, *counts, is_ordered=True)], alpha=alpha, seed=seed)


def _found(features: "Sequence[_Feature]", *, alpha: float, seed: int) -> Finding:
    rng = np.random.default_rng(seed)
    draws = int(np.ceil(_EXTREME * len(features) / alpha))
    for feature in features:
        feature.draw(rng, min(draws, _FIRST_DRAWS))
    shifted: list[Shifted] = []
    for feature in sorted(features, key=lambda feature: -feature.ratio):
        while feature.reached < _EXTREME and feature.draws < draws:
            feature.draw(rng, min(draws - feature.draws, _DRAWS_AT_ONCE))
        if feature.reached < _EXTREME:
            shifted.append(Shifted(feature.name, feature.distance, feature.threshold))
        if len(shifted) == _NAMED:
            break
    furthest = max(features, key=lambda feature: feature.ratio)
    return Finding(len(features), tuple(shifted), furthest.name, furthest.distance)


class _Feature:
    """`highest`: of the distances that were drawn, the _EXTREME largest, rising."""

    def __init__(self, name: str, before: NDArray[np.int64], after: NDArray[np.int64], *, is_ordered: bool) -> None:
        self.name, self._is_ordered = name, is_ordered
        self._all, self._window = before + after, int(after.sum())
        self.distance = float(self._distances(after[None])[0])
        self.highest = np.empty(0)
        self.draws = self.reached = 0

    @property
    def threshold(self) -> float:
        return float(self.highest[0])

    @property
    def ratio(self) -> float:
        return self.distance / max(self.threshold, 1e-12)

    def draw(self, rng: np.random.Generator, count: int) -> None:
        found = self._distances(
            rng.multivariate_hypergeometric(self._all, self._window, size=count, method="marginals")
        )
        self.draws += count
        self.reached += int((found >= self.distance - 1e-12).sum())
        self.highest = np.sort(np.concatenate([self.highest, found]))[-_EXTREME:]

    def _distances(self, windows: NDArray[np.int64]) -> Numbers:
        """Of windows with these counts to the rest, [n, parts] to [n]."""
        rest = self._all - windows
        apart = windows / self._window - rest / max(1, int(self._all.sum()) - self._window)
        found: Numbers = np.abs(apart).sum(axis=1) / 2
        return np.asarray(np.abs(np.cumsum(apart, axis=1)).max(axis=1)) if self._is_ordered else found


def _feature_of(name: str, reference: Values, window: Values) -> _Feature:
    if isinstance(reference, list) or isinstance(window, list):
        return _Feature(name, *_count_words(list(reference), list(window)), is_ordered=False)
    return _Feature(name, *_count_numbers(reference, window), is_ordered=True)


def _count_numbers(reference: Numbers, window: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    both = np.concatenate([reference, window])
    known = both[~np.isnan(both)]
    edges = np.unique(np.quantile(known, np.arange(1, _PARTS) / _PARTS)) if len(known) else np.empty(0)

    def count(values: Numbers) -> NDArray[np.int64]:
        places = np.where(np.isnan(values), 0, 1 + np.searchsorted(edges, values))
        return np.bincount(places, minlength=len(edges) + 2).astype(np.int64)

    return count(reference), count(window)


def _count_words(
    reference: list[bytes | None], window: list[bytes | None]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    both = Counter(word for word in (*reference, *window) if word is not None)
    named = sorted(both, key=lambda word: (-both[word], word))[:_WORDS]

    def count(words: list[bytes | None]) -> Iterator[int]:
        counts = Counter(words)
        yield from (counts[word] for word in (None, *named))
        yield len(words) - counts[None] - sum(counts[word] for word in named)

    before, after = (np.fromiter(count(words), np.int64) for words in (reference, window))
    return before, after


def _numbers(feature: Any) -> Sequence[float]:
    kind = feature.WhichOneof("kind")
    return () if kind in (None, "bytes_list") else list(getattr(feature, kind).value)
