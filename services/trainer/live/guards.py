"""What a canary may not do beside being wrong more often: fail, be slow, answer otherwise, or fail a part of the
examples. Each guard bets against "it keeps to its limit", as the judge does (betting.py).

A canary's answer is compared with production's newest one before it, each of which is used once, so that both had the
same load: the guard `latency` bets that the canary takes more than `factor` times as long more often than every second
time, `errors` that more of its answers are errors. `answers` is of the answers of both on the same example.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.rollout import Judge
from common.quality import Array
from common.registry.catalog import PRODUCTION
from common.statistics.requests import array_of
from protos.prediction_log_pb2 import PredictionLog
from services.trainer.live.betting import Capital
from services.trainer.live.evidence import LONGEST_VALUE, differences_of

ERRORS, LATENCY, ANSWERS, SLICE = "errors", "latency", "answers", "slice"
_MOST_SLICES = 16


@dataclass(frozen=True)
class Answered:
    """How a keyed request ended: which seconds it took and whether with an error."""

    seconds: float
    is_error: bool


@dataclass
class Guards:
    """
    Attributes:
        limits: as Canary.limits.
        tests: by guard, or by "slice VALUE".
        totals: of what each has bet on.
        newest: production's newest answer that no answer of the canary was compared with.
        unbet: by guard, what came since the last bet.
    """

    limits: dict[str, Any]
    tests: dict[str, Capital] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    newest: Answered | None = None
    unbet: dict[str, list[float]] = field(default_factory=dict)

    def of_production(self, answered: Answered) -> None:
        self.newest = answered

    def of_canary(self, answered: Answered) -> None:
        live, self.newest = self.newest, None
        if live is None:
            return
        if ERRORS in self.limits:
            self._bet(ERRORS, self.limits[ERRORS], [float(answered.is_error) - float(live.is_error)])
        if LATENCY in self.limits and not (answered.is_error or live.is_error):
            is_slower = answered.seconds > self.limits[LATENCY] * live.seconds
            self._bet(LATENCY, 0.0, [1.0 if is_slower else -1.0])

    def of_both(self, judge: Judge, distances: Sequence[float]) -> None:
        """How far the answers of both lie apart on the same examples, as `distance` has it."""
        if ANSWERS in self.limits and distances:
            self._bet(ANSWERS, self.limits[ANSWERS] / judge.scale, distances)

    def of_slices(self, judge: Judge, parts: Sequence[str], losses: Array, others: Array) -> None:
        """Losses of canary and production, shape [n] each, by the value of each example; "": it has none.
        Long values, and those after the first _MOST_SLICES, are not tested."""
        differences = differences_of(judge, losses, others)
        for part in dict.fromkeys(parts):
            name = f"{SLICE} {part}"
            known = sum(test.startswith(f"{SLICE} ") for test in self.tests)
            if 0 < len(part) <= LONGEST_VALUE and (name in self.tests or known < _MOST_SLICES):
                chosen = [own == part for own in parts]
                self._bet(name, judge.margin / judge.scale, differences[chosen].tolist())

    def _bet(self, name: str, margin: float, differences: Sequence[float]) -> None:
        self.tests.setdefault(name, Capital(margin))
        self.unbet.setdefault(name, []).extend(differences)

    def settle(self) -> None:
        """Bets on what has come."""
        for name, differences in self.unbet.items():
            self.tests[name].add(np.asarray(differences, np.float64))
            self.totals[name] = self.totals.get(name, 0.0) + sum(differences)
        self.unbet.clear()

    def broken(self, alpha: float) -> str:
        """The guard whose limit is passed; "" where there is none. `alpha`: of each guard, all slices being one."""
        return next((shown["guard"] for shown in self.shown(alpha) if shown["broken"]), "")

    def shown(self, alpha: float) -> list[dict[str, Any]]:
        self.settle()
        return list(self._shown(alpha))

    def _shown(self, alpha: float) -> Iterator[dict[str, Any]]:
        """The k-th slice that there is has alpha / (k (k + 1)): they are as many as come, and these sum to alpha."""
        slices = 0
        for name, test in self.tests.items():
            needed = 1 / alpha
            if name.startswith(f"{SLICE} "):
                slices += 1
                needed *= slices * (slices + 1)
            mean = self.totals[name] / test.samples
            yield {
                "guard": name, "limit": self.limits.get(name), "samples": test.samples,
                "value": (mean + 1) / 2 if name == LATENCY else mean, "e_value": test.e_value, "of": needed,
                "broken": test.e_value >= needed,
            }  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        self.settle()
        newest = [self.newest.seconds, self.newest.is_error] if self.newest else []
        tests = {name: test.to_mapping() for name, test in self.tests.items()}
        return {"limits": self.limits, "tests": tests, "totals": self.totals, "newest": newest}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Guards":
        tests = {name: Capital.from_mapping(test) for name, test in mapping["tests"].items()}
        newest = mapping["newest"]
        return cls(mapping["limits"], tests, dict(mapping["totals"]), Answered(*newest) if newest else None)


def answered_of(logged: PredictionLog) -> Answered | None:
    """None of a shadow of production, which had another load than its requests."""
    if logged.is_shadow and logged.alias == PRODUCTION:
        return None
    return Answered(logged.latency_seconds, bool(logged.error_code))


def parts_of(logged: PredictionLog, name: str | None, rows: int) -> Sequence[str]:
    """The value of the input `name` of each row; "" where it was not logged, or has more than one value a row."""
    proto = logged.predict_log.request.inputs.get(name) if name else None
    array = array_of(proto) if proto is not None else None
    if array is None or array.size != rows:
        return ("",) * rows
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in array.ravel()]


def distance(task: str, judge: Judge, first: NDArray[Any], second: NDArray[Any]) -> float:
    """Of two outputs for an example, from 0 to 1: of classes the total variation, else the difference, at most the
    bound of mae; 1 where one is no number."""
    if first.shape != second.shape:
        return 1.0
    apart = float(np.abs(first.astype(np.float64) - second.astype(np.float64)).sum()) / (
        2 if task == "multiclass" else 1
    )
    return min(apart / judge.scale, 1.0) if np.isfinite(apart) else 1.0
