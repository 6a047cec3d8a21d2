"""What labelled predictions say: the metrics of each version under each alias, and how production stands to its
predecessor."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.definition.rollout import Judge
from common.quality import Array, add_sums, losses_of, metrics_of_rows, metrics_of_sums
from services.trainer.live.betting import Capital

WORSE, INCONCLUSIVE = "worse", "inconclusive"
_CURVE_GROWTH = 1.1
_NO_ROWS = np.empty((0, 2), np.float32)


@dataclass
class Track:
    """One version under one alias. `sums` as quality.add_sums has them, of all examples since the first; `rows`: the
    newest, shape [n, 2], float32."""

    version: int
    alias: str
    since: float
    examples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    rows: Any = field(default_factory=lambda: _NO_ROWS)

    def add(self, task: str, rows: Array, window: int) -> None:
        self.examples += len(rows)
        self.sums = add_sums(self.sums, task, rows)
        self.rows = np.concatenate([self.rows, rows.astype(np.float32)])[-window:]

    def shown(self, task: str) -> dict[str, Any]:
        recent = metrics_of_rows(task, self.rows.astype(np.float64))
        return {
            "alias": self.alias,
            "since": self.since,
            "window": {"examples": len(self.rows), "metrics": recent},
            "total": {"examples": self.examples, "metrics": metrics_of_sums(self.sums, self.examples)},
        }

    def to_mapping(self) -> dict[str, Any]:
        rows = base64.b64encode(self.rows.tobytes()).decode()
        return {"version": self.version, "alias": self.alias, "since": self.since, "examples": self.examples,
                "sums": self.sums, "rows": rows}  # fmt: skip

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Track":
        rows = np.frombuffer(base64.b64decode(mapping["rows"]), np.float32).reshape(-1, 2)
        return cls(**{**mapping, "rows": rows})


@dataclass
class Comparison:
    """Production's losses against its predecessor's, on the same examples.

    Attributes:
        rule: Judge's fields of the test itself; another rule begins a new comparison.
        total: of the differences, in the metric's unit.
        curve: [samples, e-value, mean difference], ever further apart.
    """

    version: int
    against: int
    rule: dict[str, Any]
    capital: Capital
    total: float = 0.0
    curve: list[list[float]] = field(default_factory=list)
    verdict: str = ""
    at: float = 0.0

    @classmethod
    def begin(cls, version: int, against: int, judge: Judge) -> "Comparison":
        return cls(version, against, rule_of(judge), Capital(judge.margin / judge.scale))

    def add(self, judge: Judge, losses: Array, others: Array, *, at: float) -> None:
        """Takes the losses of production and predecessor on more examples, shape [n] each, and decides where it can."""
        differences = np.minimum(losses, judge.scale) - np.minimum(others, judge.scale)
        self.capital.add(differences / judge.scale)
        self.total += float(differences.sum())
        samples, e_value = self.capital.samples, self.capital.e_value
        if samples >= judge.min_samples and e_value >= 1 / judge.alpha:
            self.verdict = WORSE
        elif judge.max_samples is not None and samples >= judge.max_samples:
            self.verdict = INCONCLUSIVE
        if self.verdict or not self.curve or samples >= self.curve[-1][0] * _CURVE_GROWTH:
            self.curve.append([samples, e_value, self.total / samples])
        self.at = at

    def reason(self, judge: Judge) -> str:
        samples = self.capital.samples
        return (
            f"{judge.metric} of version {self.version} is {self.total / samples:+.4g} against version {self.against} "
            f"on the same {samples} labelled predictions, margin {judge.margin:g}: {self.verdict} (e-value "
            f"{self.capital.e_value:.4g}, alpha {judge.alpha:g})"
        )

    def shown(self) -> dict[str, Any]:
        samples = self.capital.samples
        return {
            "against": self.against,
            **self.rule,
            "samples": samples,
            "difference": self.total / samples if samples else None,
            "e_value": self.capital.e_value,
            "verdict": self.verdict,
            "curve": self.curve,
            "at": self.at,
        }

    def to_mapping(self) -> dict[str, Any]:
        return {"version": self.version, "against": self.against, "rule": self.rule, "total": self.total,
                "capital": self.capital.to_mapping(), "curve": self.curve, "verdict": self.verdict,
                "at": self.at}  # fmt: skip

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Comparison":
        return cls(**{**mapping, "capital": Capital.from_mapping(mapping["capital"])})


def rule_of(judge: Judge) -> dict[str, Any]:
    return {"metric": judge.metric, "margin": judge.margin, "alpha": judge.alpha, "bound": judge.bound}


def losses_of_rows(task: str, judge: Judge, rows: Iterable[tuple[float, float]]) -> Array:
    """Shape [n]."""
    return losses_of(task, judge.metric, np.asarray(list(rows), np.float64).reshape(-1, 2))
