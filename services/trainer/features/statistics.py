"""What the first round learns about raw features: means, ranges, words. Part of every checkpoint.

Fitted on trained examples, never on held-out ones, in float64 and in the round's order, so that equal rounds fit equal
statistics. Later rounds carry them and add to them only where the definition says `update`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.definition.features import FeatureSpec, Numeric, Vocabulary
from common.definition.identity import VariableMeaning, variables_of
from common.definition.model import Definition
from common.errors import DataLoss
from common.schema import Schema

Arrays = Mapping[str, NDArray[np.generic]]
_PREFIX = "statistics"


@dataclass(frozen=True)
class Moments:
    """Of one numeric feature, per column (C order of its shape); float64 arrays of shape [columns].

    `squares` is the sum of squared differences from the mean.
    """

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation (of the population)."""
        deviation: NDArray[np.float64] = np.sqrt(self.squares / max(self.count, 1))
        return deviation

    def merged(self, other: "Moments") -> "Moments":
        """Over both sets: Chan, Golub, LeVeque: Updating formulae ... for computing sample variances (1979)."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count,
            self.mean + delta * (other.count / count),
            self.squares + other.squares + delta**2 * (self.count * other.count / count),
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
        )

    @classmethod
    def of(cls, values: NDArray[np.generic]) -> "Moments":
        """Values [n, columns] of any number type."""
        wide = values.astype(np.float64)
        if not len(wide):
            zeros = np.zeros(wide.shape[1])
            return cls(0, zeros, zeros, zeros, zeros)
        mean = wide.mean(axis=0)
        return cls(len(wide), mean, ((wide - mean) ** 2).sum(axis=0), wide.min(axis=0), wide.max(axis=0))


@dataclass(frozen=True)
class Words:
    """A learned vocabulary; a word's id is its index."""

    words: tuple[bytes, ...]


Fitted = Moments | Words
Statistics = Mapping[str, Fitted]


class Fitting:
    """Collects statistics over the blocks of a round; `result` merges them with the parent's."""

    def __init__(self, specs: Mapping[str, FeatureSpec], schema: Schema, parent: Statistics) -> None:
        self._parent = dict(parent)
        self._specs = _fitted_specs(specs)
        self._padded = {feature.name for feature in schema.features if feature.is_variable_length}
        self._wanted = [spec for spec in self._specs if spec.name not in parent or spec.update]
        self._moments: dict[str, Moments] = {}
        self._counts: dict[str, Counter[bytes]] = {}

    @property
    def needs_data(self) -> bool:
        """False when everything is carried over from the parent."""
        return bool(self._wanted)

    def add(self, raw: Mapping[str, NDArray[np.generic]]) -> None:
        """Raw values of trained examples, by raw feature name, as features/parsing.py shapes them."""
        for spec in self._wanted:
            values = raw[spec.of]
            if isinstance(spec, Numeric):
                seen = Moments.of(values.reshape(len(values), math.prod(values.shape[1:])))
                self._moments[spec.name] = self._moments[spec.name].merged(seen) if spec.name in self._moments else seen
                continue
            self._counts.setdefault(spec.name, Counter()).update(_texts(values, is_padded=spec.of in self._padded))

    def result(self) -> dict[str, Fitted]:
        """Statistics for every feature that has any."""
        fitted: dict[str, Fitted] = {}
        for spec in self._specs:
            before = self._parent.get(spec.name)
            if spec not in self._wanted:
                assert before is not None
                fitted[spec.name] = before
                if isinstance(before, Words) and isinstance(spec, Vocabulary):
                    fitted[spec.name] = Words(before.words[: spec.max_words])
            elif isinstance(spec, Numeric):
                seen = self._moments.get(spec.name, Moments.of(np.zeros((0, 1))))
                fitted[spec.name] = before.merged(seen) if isinstance(before, Moments) else seen
            else:
                known = before.words if isinstance(before, Words) else ()
                fitted[spec.name] = Words(_extended(spec, known, self._counts.get(spec.name, Counter())))
        return fitted


def meaning_of(definition: Definition, schema: Schema, statistics: Statistics) -> dict[str, VariableMeaning]:
    """What the rows of an estimator's variables mean, learned words included (identity.py)."""
    learned = {name: fitted.words for name, fitted in statistics.items() if isinstance(fitted, Words)}
    return variables_of(definition, schema, learned)


def to_arrays(statistics: Statistics) -> dict[str, NDArray[np.generic]]:
    """As checkpoint arrays: statistics/<feature>/<part>."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, fitted in statistics.items():
        prefix = f"{_PREFIX}/{name}"
        if isinstance(fitted, Words):
            arrays[f"{prefix}/word_bytes"] = np.frombuffer(b"".join(fitted.words), np.uint8)
            arrays[f"{prefix}/word_lengths"] = np.array([len(word) for word in fitted.words], np.int64)
            continue
        arrays[f"{prefix}/count"] = np.array(fitted.count, np.int64)
        for part in ("mean", "squares", "minimum", "maximum"):
            arrays[f"{prefix}/{part}"] = getattr(fitted, part)
    return arrays


def from_arrays(arrays: Arrays) -> dict[str, Fitted]:
    """The inverse of to_arrays; other arrays are passed over.

    Raises:
        DataLoss: a part is missing.
    """
    names = {path.split("/")[1] for path in arrays if path.startswith(f"{_PREFIX}/")}
    return {name: _fitted_of(arrays, f"{_PREFIX}/{name}") for name in sorted(names)}


def _fitted_of(arrays: Arrays, prefix: str) -> Fitted:
    try:
        if f"{prefix}/word_lengths" in arrays:
            content, ends = arrays[f"{prefix}/word_bytes"].tobytes(), np.cumsum(arrays[f"{prefix}/word_lengths"])
            starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
            return Words(tuple(content[start:end] for start, end in zip(starts, ends, strict=True)))
        parts = [arrays[f"{prefix}/{part}"] for part in ("mean", "squares", "minimum", "maximum")]
        mean, squares, minimum, maximum = (part.astype(np.float64) for part in parts)
        return Moments(int(arrays[f"{prefix}/count"]), mean, squares, minimum, maximum)
    except KeyError as error:
        raise DataLoss(f"the checkpoint lacks {error.args[0]}") from error


def _fitted_specs(specs: Mapping[str, FeatureSpec]) -> list[Numeric | Vocabulary]:
    numerics = [spec for spec in specs.values() if isinstance(spec, Numeric) and spec.normalize != "none"]
    vocabularies = [spec for spec in specs.values() if isinstance(spec, Vocabulary) and spec.words is None]
    return [*numerics, *vocabularies]


def _texts(values: NDArray[np.generic], *, is_padded: bool) -> Iterable[bytes]:
    """Words of a raw feature; in a padded one, without what stands for "nothing there"."""
    flat = values.reshape(-1).tolist()
    if values.dtype.kind in "iu":
        return (b"%d" % value for value in flat if not is_padded or value >= 0)
    return (value for value in flat if not is_padded or value)


def _extended(spec: Vocabulary, known: tuple[bytes, ...], counts: Counter[bytes]) -> tuple[bytes, ...]:
    have = set(known)
    candidates = [(-count, word) for word, count in counts.items() if count >= spec.min_count and word not in have]
    return (*known, *(word for _, word in sorted(candidates)))[: spec.max_words]
