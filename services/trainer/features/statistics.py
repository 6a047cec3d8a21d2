"""What rounds learn about raw features: means, ranges, quantiles, words. Part of every checkpoint.

Fitted on trained examples, never on held-out ones, in float64 and in the round's order, so that equal rounds fit equal
statistics. fitting.py says what later rounds add to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.features import FeatureSpec, Vocabulary
from common.definition.identity import Learned, VariableMeaning, variables_of
from common.definition.model import Definition
from common.errors import DataLoss
from common.schema import Schema
from services.trainer.features.frequencies import Frequencies
from services.trainer.features.plausible import FARTHEST, LARGEST, plausible
from services.trainer.features.words import Words

Arrays = Mapping[str, NDArray[np.generic]]
_PREFIX = "statistics"


@dataclass(frozen=True)
class Moments:
    """Of one numeric feature, per column (C order of its shape); arrays of shape [columns], float64 or int64 (counts).

    `squares` is the sum of squared differences from the mean. `left_out` counts values that are no finite number or
    implausibly far from all others (plausible.py): they are in none of the others, or one event would squash a
    feature for ever.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    left_out: NDArray[np.int64]

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation (of the population)."""
        deviation: NDArray[np.float64] = np.sqrt(self.squares / np.maximum(self.count, 1))
        return deviation

    def parts(self) -> dict[str, NDArray[np.generic]]:
        """What a checkpoint holds, by name."""
        return {**vars(self)}

    @classmethod
    def of_parts(cls, parts: Arrays) -> "Moments":
        """The inverse. Raises KeyError, naming a part that is missing."""
        counts, names = ("count", "left_out"), [field.name for field in fields(cls)]
        found: Any = {name: parts[name].astype(np.int64 if name in counts else np.float64) for name in names}
        return cls(**found)

    def merged(self, other: "Moments") -> "Moments":
        """Over both sets: Chan, Golub, LeVeque: Updating formulae ... for computing sample variances (1979)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        is_first, is_only = self.count == 0, other.count == 0
        return Moments(
            count,
            np.where(is_first, other.mean, np.where(is_only, self.mean, self.mean + delta * share)),
            self.squares + other.squares + np.where(is_first | is_only, 0.0, delta**2 * self.count * share),
            np.where(is_first, other.minimum, np.where(is_only, self.minimum, np.minimum(self.minimum, other.minimum))),
            np.where(is_first, other.maximum, np.where(is_only, self.maximum, np.maximum(self.maximum, other.maximum))),
            self.left_out + other.left_out,
        )

    @classmethod
    def of(cls, values: NDArray[np.generic], before: "Moments | None" = None) -> "Moments":
        """Values [n, columns] of any number type; `before`: what is known of the same columns."""
        wide = values.astype(np.float64)
        spread = (before.count, before.mean, before.deviation) if before else None
        taken = plausible(wide, spread)
        count = taken.sum(axis=0)
        sure = np.where(taken, wide, 0.0)
        mean = sure.sum(axis=0) / np.maximum(count, 1)
        squares = (np.where(taken, wide - mean, 0.0) ** 2).sum(axis=0)
        minimum, maximum = (
            np.where(count > 0, extreme, 0.0)
            for extreme in (
                np.where(taken, wide, np.inf).min(axis=0, initial=np.inf),
                np.where(taken, wide, -np.inf).max(axis=0, initial=-np.inf),
            )
        )
        return cls(count, mean, squares, minimum, maximum, len(wide) - count)


@dataclass(frozen=True)
class Boundaries:
    """Of quantile buckets: rising numbers that float32 holds, at most one less than there are buckets."""

    values: tuple[float, ...]

    def parts(self) -> dict[str, NDArray[np.generic]]:
        return {"boundaries": np.array(self.values, np.float64)}

    @classmethod
    def of_parts(cls, parts: Arrays) -> "Boundaries":
        return cls(tuple(parts["boundaries"].astype(np.float64).tolist()))

    @classmethod
    def between(cls, values: NDArray[np.generic], parts: int) -> "Boundaries":
        """Cuts the finite values, of any shape, into equal parts: numpy.quantile, method `linear`, as float32. Values
        that are equal stay together, so there may be fewer boundaries; of no values there are none."""
        wide = values.reshape(-1).astype(np.float64)
        finite = wide[np.isfinite(wide)]
        if not len(finite):
            return cls(())
        cuts = np.quantile(finite, np.arange(1, parts) / parts).astype(np.float32)
        return cls(tuple(np.unique(cuts).astype(np.float64).tolist()))


Fitted = Moments | Words | Boundaries | Frequencies
_KINDS: Mapping[str, type[Fitted]] = {"word_lengths": Words, "having": Frequencies, "boundaries": Boundaries}
"""By the part that tells it; else Moments."""
Statistics = Mapping[str, Fitted]


def warnings_of(before: Statistics, after: Statistics) -> dict[str, str]:
    """{feature: sentence} about values of this round that its statistics leave out."""
    warnings = dict[str, str]()
    for name, fitted in after.items():
        known = before.get(name)
        if not isinstance(fitted, Moments):
            continue
        left_out = int(fitted.left_out.sum() - (known.left_out.sum() if isinstance(known, Moments) else 0))
        if left_out:
            values = "1 value is" if left_out == 1 else f"{left_out} values are"
            warnings[f"feature {name}"] = (
                f"{values} no finite number or more than {FARTHEST:g} times farther out than 99 % of the others (or "
                f"beyond {LARGEST:g}), and "
                f"not in the feature's statistics; set min and max in the stream to refuse such events"
            )
    return warnings


def meaning_of_estimator(definition: Definition, schema: Schema, statistics: Statistics) -> dict[str, VariableMeaning]:
    """What the rows of an estimator's variables mean, learned words included (identity.py)."""
    return variables_of(definition, schema, learned_of(statistics))


def learned_of(statistics: Statistics) -> Learned:
    """What decides the meaning of ids."""
    words = {name: fitted.words for name, fitted in statistics.items() if isinstance(fitted, Words)}
    boundaries = {name: fitted.values for name, fitted in statistics.items() if isinstance(fitted, Boundaries)}
    return Learned(words, boundaries)


def to_arrays(statistics: Statistics) -> dict[str, NDArray[np.generic]]:
    """As checkpoint arrays: statistics/<feature>/<part>."""
    return {
        f"{_PREFIX}/{name}/{part}": array
        for name, fitted in statistics.items()
        for part, array in fitted.parts().items()
    }


def from_arrays(arrays: Arrays) -> dict[str, Fitted]:
    """The inverse of to_arrays; other arrays are passed over. Raises DataLoss: a part is missing."""
    parts = dict[str, dict[str, NDArray[np.generic]]]()
    for path, array in arrays.items():
        if path.startswith(f"{_PREFIX}/"):
            _, name, part = path.split("/")
            parts.setdefault(name, {})[part] = array
    fitted = dict[str, Fitted]()
    for name, own in sorted(parts.items()):
        try:
            fitted[name] = next((kind for part, kind in _KINDS.items() if part in own), Moments).of_parts(own)
        except KeyError as error:
            raise DataLoss(f"the checkpoint lacks {_PREFIX}/{name}/{error.args[0]}") from error
    return fitted


def known_words(spec: FeatureSpec, statistics: Statistics) -> tuple[bytes, ...]:
    """In order of their ids: those that the definition gives, or those that were learned; of hashed ones none."""
    if not isinstance(spec, Vocabulary):
        return ()
    if spec.words is not None:
        return tuple(word.encode() for word in spec.words)
    fitted = statistics[spec.name]
    assert isinstance(fitted, Words)
    return fitted.words
