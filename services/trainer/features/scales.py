"""Normalized features whose values come in several scales: a wrong unit, or a sentinel such as -999999.

Enough of them are no outliers any more (plausible.py): they shape the statistics, and squash what is usual to a point
that no network can tell apart.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import FeatureSpec, Numeric
from services.trainer.features.fitting import shaped
from services.trainer.features.plausible import plausible
from services.trainer.features.statistics import Moments, Statistics

_JUMP = 100.0
"""Deviations of earlier rounds by which a block's mean or deviation has jumped."""
_SQUASHED, _SQUASHED_BY_ITS_BLOCK = 1e4, 200.0
"""Times smaller than a deviation, of all rounds or of the block, is the usual distance of values that are squashed.
That of log-normal values with a deviation of 2 is some 60 times smaller."""
_SQUASHED_SHARE = 0.25
_FEW, _ENOUGH, _MOST, _MOST_COLUMNS = 10, 20, 2000, 64
"""Values by which a block may have jumped, and be squashed; values, and columns of them, that are looked at."""
_REMEDY = (
    "if a unit has changed or a number stands for no value, refuse it by min and max in the stream or mend it where it "
    "comes from; a feature that is so wide needs log or clip"
)


class Scales:
    """Adds up the blocks of one pass."""

    def __init__(self, specs: Mapping[str, FeatureSpec], before: Statistics, after: Statistics) -> None:
        """`before`, `after`: the statistics without and with this round."""
        self._specs = [spec for spec in specs.values() if isinstance(spec, Numeric) and spec.normalize != "none"]
        self._before, self._after = before, after
        self._blocks, self._squashed = Counter[str](), Counter[str]()
        self._closest: dict[str, float] = {}
        self._jumped: dict[str, str] = {}

    def add(self, raw: Mapping[str, tf.Tensor]) -> None:
        """Raw values of trained examples, by raw feature name."""
        for spec in self._specs:
            fitted, before = self._after.get(spec.name), self._before.get(spec.name)
            values = raw[spec.of].numpy()
            values = values[:: max(1, len(values) // _MOST)]
            if len(values) < _FEW or not isinstance(fitted, Moments):
                continue
            wide = shaped(spec, values.reshape(len(values), -1))
            columns = np.unique(np.linspace(0, wide.shape[1] - 1, _MOST_COLUMNS).astype(np.int64))
            taken = plausible(wide[:, columns])
            judged = [
                _squashed_to(wide[rows, column], float(fitted.deviation[column]))
                for column, rows in zip(columns.tolist(), taken.T, strict=True)
            ]
            self._blocks[spec.name] += any(verdict is not None for verdict in judged)
            squashed = [verdict for verdict in judged if verdict]
            self._squashed[spec.name] += bool(squashed)
            self._closest[spec.name] = min(squashed, default=self._closest.get(spec.name, 1.0))
            for column, rows in zip(columns.tolist(), taken.T, strict=True):
                if isinstance(before, Moments) and spec.name not in self._jumped:
                    self._look(spec.name, wide[rows, column], before, column)

    def _look(self, name: str, values: NDArray[np.float64], before: Moments, column: int) -> None:
        """Whether the values have jumped from what earlier rounds had."""
        deviation = float(before.deviation[column])
        if before.count[column] < _ENOUGH or len(values) < _FEW or deviation <= 0:
            return
        mean, spread = (values.mean() - before.mean[column]) / deviation, values.std() / deviation
        if abs(mean) > _JUMP or spread > _JUMP:
            self._jumped[name] = (
                f"values of {name} have jumped: normalized as the parent does it, a block has mean {mean:.4g} and "
                f"deviation {spread:.4g}, where 0 and 1 are usual; {_REMEDY}"
            )

    def warnings(self) -> dict[str, str]:
        """Sentences, by what they are about."""
        squashed = {
            name: f"the usual values of {name} differ by {self._closest[name]:.1g} once normalized, next to "
            f"few others, so that a network can hardly tell them apart; {_REMEDY}"
            for name, blocks in self._blocks.items()
            if self._squashed[name] > _SQUASHED_SHARE * blocks
        }
        return {f"scale of {name}": sentence for name, sentence in (squashed | self._jumped).items()}


def _squashed_to(values: NDArray[np.float64], deviation: float) -> float | None:
    """By which share of the deviation the usual values differ, if they are squashed, else 0; None where too few values
    differ to say."""
    away = np.abs(values - np.median(values)) if len(values) else values
    unequal = away[away > 0]
    if len(unequal) < _ENOUGH:
        return None
    usual = float(np.median(unequal))
    is_squashed = usual * _SQUASHED < deviation or usual * _SQUASHED_BY_ITS_BLOCK < float(values.std())
    return usual / max(deviation, usual) if is_squashed else 0.0
