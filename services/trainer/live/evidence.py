"""What labelled predictions say: the metrics of each version under each alias, and how production stands to its
predecessor and to its own evaluation."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from common.counted import counted
from common.definition.rollout import Judge
from common.quality import Array, add_sums, losses_of, metrics_of_rows, metrics_of_sums
from common.registry.catalog import Version
from common.registry.plan_notes import WINDOW
from services.trainer.live.betting import Capital, highest_mean

WORSE, INCONCLUSIVE = "worse", "inconclusive"
_CURVE_GROWTH = 1.1
MOST_SLICES = 20
_NO_SLICE = 255
LONGEST_VALUE = 100
"""Characters of the value of a slice: what is stored has a bound."""
_NO_ROWS = np.empty((0, 2), np.float32)
_NO_PLACES = np.empty(0, np.uint8)


@dataclass
class Slice:
    """The examples of a value of the feature of live: slices. `sums` as Track's."""

    value: str
    examples: int = 0
    sums: dict[str, float] = field(default_factory=dict)


@dataclass
class Track:
    """One version under one alias. `sums` as quality.add_sums has them, of all examples since the first; `rows`: the
    newest, shape [n, 2], float32; `places`: of the slice of each in `slices`, shape [n], uint8."""

    version: int
    alias: str
    since: float
    examples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    rows: Any = field(default_factory=lambda: _NO_ROWS)
    slices: list[Slice] = field(default_factory=list)
    places: Any = field(default_factory=lambda: _NO_PLACES)

    def add(self, task: str, rows: Array, window: int, values: Sequence[str]) -> None:
        """`values`: of the feature of live: slices in each row; "": not known."""
        self.examples += len(rows)
        self.sums = add_sums(self.sums, task, rows)
        self.rows = np.concatenate([self.rows, rows.astype(np.float32)])[-window:]
        places = np.array([self._place_of(value) for value in values], np.uint8)
        for place in set(places[places != _NO_SLICE].tolist()):
            own = self.slices[place]
            own.examples += int((places == place).sum())
            own.sums = add_sums(own.sums, task, rows[places == place])
        self.places = np.concatenate([self.places, places])[-window:]

    def _place_of(self, value: str) -> int:
        """The first MOST_SLICES values that come have a place, except long values: the state has a bound."""
        if not 0 < len(value) <= LONGEST_VALUE:
            return _NO_SLICE
        found = next((place for place, part in enumerate(self.slices) if part.value == value), len(self.slices))
        if found == MOST_SLICES:
            return _NO_SLICE
        if found == len(self.slices):
            self.slices.append(Slice(value))
        return found

    def shown(self, task: str, slices: str | None) -> dict[str, Any]:
        """`slices`: the feature of live: slices."""
        found = {"alias": self.alias, "since": self.since, **_measured(task, self, self.rows)}
        if slices is None:
            return found
        parts = [(slice_of, self.rows[self.places == place]) for place, slice_of in enumerate(self.slices)]
        parts.sort(key=lambda part: part[0].value)
        return found | {
            "slices": [
                {"where": {slices: slice_of.value}, **_measured(task, slice_of, rows)} for slice_of, rows in parts
            ]
        }

    def to_mapping(self) -> dict[str, Any]:
        rows, places = (base64.b64encode(array.tobytes()).decode() for array in (self.rows, self.places))
        return {**vars(self), "rows": rows, "places": places, "slices": [vars(part) for part in self.slices]}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, has_slices: bool) -> "Track":
        """has_slices: whether the slices that were stored are still asked for."""
        rows = np.frombuffer(base64.b64decode(mapping["rows"]), np.float32).reshape(-1, 2)
        slices, places = [], np.full(len(rows), _NO_SLICE, np.uint8)
        if has_slices:
            slices = [Slice(**part) for part in mapping["slices"]]
            places = np.frombuffer(base64.b64decode(mapping["places"]), np.uint8)
        return cls(**{**mapping, "rows": rows, "slices": slices, "places": places})


def _measured(task: str, of: Track | Slice, rows: Array) -> dict[str, Any]:
    return {
        "window": {
            "examples": len(rows),
            "metrics": metrics_of_rows(task, rows.astype(np.float64)) if len(rows) else {},
        },
        "total": {"examples": of.examples, "metrics": metrics_of_sums(of.sums, of.examples)},
    }


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

    def add(self, judge: Judge, losses: Array, others: Array, *, at: float) -> int:
        """Takes the losses of production and predecessor on more examples, shape [n] each, and decides after the first
        where it can; gives how many it has taken."""
        if self.verdict or not len(losses):
            return 0
        most = None if judge.max_samples is None else judge.max_samples - self.capital.samples
        differences = differences_of(judge, losses, others)[:most]
        taken = self.capital.add(differences, limit=1 / judge.alpha, least=judge.min_samples)
        self.total += float(differences[:taken].sum()) * judge.scale
        samples, e_value = self.capital.samples, self.capital.e_value
        if samples >= judge.min_samples and e_value >= 1 / judge.alpha:
            self.verdict = WORSE
        elif judge.max_samples is not None and samples >= judge.max_samples:
            self.verdict = INCONCLUSIVE
        if self.verdict or not self.curve or samples >= self.curve[-1][0] * _CURVE_GROWTH:
            self.curve.append([samples, e_value, self.total / samples])
        self.at = at
        return taken

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
        return {**vars(self), "capital": self.capital.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Comparison":
        return cls(**{**mapping, "capital": Capital.from_mapping(mapping["capital"])})


@dataclass
class Decline:
    """The losses of a version in production against those of its own evaluation (triggers: quality). Half of alpha is
    for the evaluation having been lucky, half for the test; after an alarm another test begins.

    Attributes:
        figure: the mean loss of the evaluation; None where it has none.
        highest: what the mean loss was at most on such examples as the evaluation's.
        alarm: the numbers of the last alarm; {} before the first.
    """

    version: int
    figure: float | None
    highest: float
    test: Comparison
    alarms: int = 0
    alarm: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, version: Version, name: str, judge: Judge) -> "Decline":
        """`name`: of the metric among the version's."""
        figure = version.metrics.get("candidate", {}).get(name)
        count = int(version.evaluation.get(WINDOW, {}).get("examples", 0)) or version.events_held_out
        test = Comparison.begin(version.version, 0, judge)
        if figure is None or not count:
            return cls(version.version, None, judge.scale, test)
        figure = 1 - figure if judge.metric == "error_rate" else figure
        share = min(1.0, figure / judge.scale)
        return cls(version.version, figure, highest_mean(share, count, judge.alpha / 2) * judge.scale, test)

    def add(self, judge: Judge, losses: Array, *, at: float) -> None:
        """Takes the losses on more examples, shape [n]."""
        if self.figure is None:
            return
        half = replace(judge, alpha=judge.alpha / 2)
        while len(losses):
            losses = losses[self.test.add(half, losses, np.full(len(losses), self.highest), at=at) :]
            if self.test.verdict == WORSE:
                self.alarms += 1
                self.alarm = {"number": self.alarms, "at": at, **self._numbers()}
                self.test = Comparison.begin(self.version, 0, judge)

    def _numbers(self) -> dict[str, Any]:
        samples = self.test.capital.samples
        numbers: dict[str, Any] = {
            "samples": samples,
            "live": self.test.total / samples + self.highest if samples else None,
            "e_value": self.test.capital.e_value,
        }
        return numbers | {"says": self._sentence(numbers)}

    def _sentence(self, numbers: Mapping[str, Any]) -> str:
        metric, rule = self.test.rule["metric"], self.test.rule
        if self.figure is None:
            return f"version {self.version} has no {metric} in its evaluation to compare with"
        own = f"{self.figure:.4g} in its evaluation, where at most {self.highest:.4g} is meant"
        if not numbers["samples"]:
            return f"no labelled prediction of version {self.version} has come to compare its {metric} with {own}"
        return (
            f"{metric} of version {self.version} is {numbers['live']:.4g} on "
            f"{counted(numbers['samples'], 'labelled prediction')}, {own}; margin {rule['margin']:g}, e-value "
            f"{numbers['e_value']:.4g} of {2 / rule['alpha']:g}"
        )

    def shown(self) -> dict[str, Any]:
        return {
            "version": self.version, **self.test.rule, "figure": self.figure, "highest": self.highest,
            "limit": 2 / self.test.rule["alpha"], **self._numbers(), "alarms": self.alarms, "alarm": self.alarm,
        }  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        return {**vars(self), "test": self.test.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Decline":
        return cls(**{**mapping, "test": Comparison.from_mapping(mapping["test"])})


def differences_of(judge: Judge, losses: Array, others: Array) -> Array:
    """From -1 to 1, shape [n]."""
    found: Array = (np.minimum(losses, judge.scale) - np.minimum(others, judge.scale)) / judge.scale
    return found


def rule_of(judge: Judge) -> dict[str, Any]:
    return {"metric": judge.metric, "margin": judge.margin, "alpha": judge.alpha, "bound": judge.bound}


def losses_of_rows(task: str, judge: Judge, rows: Iterable[tuple[float, float]]) -> Array:
    """Shape [n]. What a model answers that is no number loses as much as there is to lose."""
    losses = losses_of(task, judge.metric, np.asarray(list(rows), np.float64).reshape(-1, 2))
    return np.nan_to_num(losses, nan=judge.scale, posinf=judge.scale)
