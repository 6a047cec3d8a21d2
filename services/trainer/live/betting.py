"""Whether the mean of bounded differences lies above a margin, by a test that may be looked at after every sample.

A share s of a capital is bet on each difference x being above the margin m: the capital is multiplied by 1 + s (x - m).
While the mean given the past is at most m, no such capital grows on average, so that the chance that it ever reaches
1 / alpha is at most alpha (Ville's inequality; Waudby-Smith and Ramdas 2023, "Estimating means of bounded random
variables by betting", JRSS B 86:1). The capital of 1 is divided evenly over several shares, because the best is not
known, and over beginnings: a part of it begins anew every few samples, so that a version that turns bad late is found
by a part that has lost nothing before (Shin, Ramdas and Rinaldo 2023, "E-detectors", NEJSDS 2:2). A sum of such
capitals is such a capital again.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EVERY = 1_000
"""Samples between two beginnings."""
_SHARES = np.geomspace(0.01, 0.9, 12)
_MOST_BEGINNINGS = 32
"""Older beginnings are given up: capital that is thrown away breaks no guarantee."""
_MOST_LOG = 700.0


def highest_mean(mean: float, count: int, alpha: float) -> float:
    """The largest mean of variables between 0 and 1 of which `count` that are independent have this mean, or less,
    with a chance of alpha at least (Hoeffding 1963, "Probability inequalities for sums of bounded random variables",
    theorem 1)."""

    def divergence(other: float) -> float:
        pairs = ((mean, other), (1 - mean, 1 - other))
        return sum(p * math.log(p / q) for p, q in pairs if p > 0)

    low, high = mean, 1.0 - 1e-9
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if count * divergence(middle) <= math.log(1 / alpha) else (low, middle)
    return high


class Capital:
    """Against "the mean is at most `margin`"; differences and the margin lie between -1 and 1.

    Attributes:
        samples: how many differences it has bet on.
    """

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._bets = _SHARES / (1 + margin)
        self.samples = 0
        self._logs: dict[int, Array] = {}
        """By number of the beginning, of each share the logarithm of what 1 has become."""

    def add(self, differences: Array, *, limit: float = math.inf, least: int = 0) -> int:
        """Bets on each, in order, until the e-value is `limit` at `least` samples or later.

        Args:
            differences: shape [n].

        Returns:
            On how many it has bet.
        """
        before = self.samples
        for part in np.split(differences, range(EVERY - self.samples % EVERY, len(differences), EVERY)):
            if not len(part):
                continue
            if self.samples % EVERY == 0:
                self._logs[self.samples // EVERY] = np.zeros(len(self._bets))
                self._logs.pop(self.samples // EVERY - _MOST_BEGINNINGS, None)
            gained = np.log1p(self._bets * (part[:, None] - self._margin)).cumsum(axis=0)
            taken = len(part)
            if limit < math.inf:
                enough = self._e_values(gained) >= limit
                enough[: max(0, least - self.samples - 1)] = False
                taken = int(enough.argmax()) + 1 if enough.any() else taken
            for logs in self._logs.values():
                logs += gained[taken - 1]
            self.samples += taken
            if taken < len(part) or (limit < math.inf and enough[-1]):
                break
        return self.samples - before

    def _e_values(self, gained: Array) -> Array:
        """After each of these gains of the beginnings that there are; shape [n] of [n, shares]."""
        numbers = np.fromiter(self._logs, np.int64)
        logs = np.stack(list(self._logs.values()))
        capitals = np.exp(np.minimum(logs + gained[:, None], _MOST_LOG)).mean(axis=2)
        found: Array = capitals @ (1 / ((numbers + 1) * (numbers + 2))) + 1 / (numbers.max() + 2)
        return found

    @property
    def e_value(self) -> float:
        """The capital: 1 at first; from 1 / alpha on, the mean is above the margin with confidence 1 - alpha."""
        return float(self._e_values(np.zeros((1, len(self._bets))))[0]) if self._logs else 1.0

    def to_mapping(self) -> dict[str, Any]:
        logs = {str(number): logs.tolist() for number, logs in self._logs.items()}
        return {"margin": self._margin, "samples": self.samples, "logs": logs}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Capital":
        capital = cls(mapping["margin"])
        capital.samples = mapping["samples"]
        capital._logs = {int(number): np.asarray(logs, np.float64) for number, logs in mapping["logs"].items()}
        return capital
