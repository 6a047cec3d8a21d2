"""Whether production answers otherwise than it did on its held-out examples (triggers: drift: {scores: true}).

Its keyed answers are cut into windows, each of which is compared by a permutation test (common/statistics/shift.py).
The round has counted its answers to the examples that judged it by twentieths of theirs (`scores` of the version's
drawings), and answers to requests are counted by the same. Which answers make a window follows from the log alone.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.definition.triggers import Drift
from common.registry.catalog import Version
from common.statistics.shift import Finding, find_shift_of_counts

SCORES = "scores"


@dataclass
class Scores:
    """Of one version in production.

    Attributes:
        rule: Drift's fields; another rule begins anew.
        edges: between the parts, rising; empty where the version has no counts.
        before: of its answers to held-out examples, by part.
        counts: of the window that is not whole yet.
        windows: whole windows so far.
        newest: the result of the last whole window; {} before the first.
        alarm: the same of the last that had shifted, with its number.
    """

    version: int
    rule: dict[str, Any]
    edges: list[float]
    before: list[int]
    counts: list[int]
    windows: int = 0
    newest: dict[str, Any] = field(default_factory=dict)
    alarms: int = 0
    alarm: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, version: Version, head: str, drift: Drift) -> "Scores":
        drawn = version.evaluation.get("curves", {}).get("candidate", {}).get(head, {}).get(SCORES, [])
        before = [int(count) for _, count in drawn]
        return cls(version.version, cls.rule_of(drift), [edge for edge, _ in drawn[:-1]], before, [0] * len(before))

    @staticmethod
    def rule_of(drift: Drift) -> dict[str, Any]:
        return {"window_examples": drift.window_examples, "alpha": drift.alpha}

    def add(self, answers: NDArray[np.float32]) -> None:
        """Takes the answers to further examples, shape [n]; missing numbers count as the highest."""
        size = self.rule["window_examples"]
        while self.before and len(answers):
            taken, answers = np.split(answers, [size - sum(self.counts)])
            places = np.searchsorted(np.asarray(self.edges, np.float32), np.nan_to_num(taken, nan=np.inf))
            self.counts = (np.bincount(places, minlength=len(self.counts)) + self.counts).tolist()
            if sum(self.counts) == size:
                self._compare()

    def _compare(self) -> None:
        self.windows += 1
        alpha, seed = self.rule["alpha"], self.version * 1_000_003 + self.windows
        found = find_shift_of_counts(SCORES, self.before, self.counts, alpha=alpha, seed=seed)
        self.newest = {"window": self.windows, **found.to_mapping(), "says": self._sentence(found)}
        self.counts = [0] * len(self.counts)
        if found.shifted:
            self.alarms += 1
            self.alarm = {"number": self.alarms, **self.newest}

    def _sentence(self, found: Finding) -> str:
        sentence = f"{SCORES} {found.distance:.3g} below its threshold"
        if found.shifted:
            sentence = f"{SCORES} {found.distance:.3g} above {found.shifted[0].threshold:.3g}"
        new, old = counted(sum(self.counts), "answer"), counted(sum(self.before), "answer")
        alpha = self.rule["alpha"]
        return f"{sentence} (alpha {alpha:g}; {new} of version {self.version} against {old} of its evaluation)"

    def shown(self) -> dict[str, Any]:
        waiting = f"{sum(self.counts)} of {self.rule['window_examples']} answers of version {self.version} to compare"
        sentence = waiting if self.before else f"version {self.version} has no counts of its answers to compare with"
        return {"version": self.version, **self.rule, "windows": self.windows, "newest": self.newest,
                "says": self.newest.get("says", sentence), "alarms": self.alarms, "alarm": self.alarm}  # fmt: skip


def scores_of(task: str, output: NDArray[Any]) -> NDArray[np.float32]:
    """A number for each row of an output [n, ...]: of multiclass the probability of the highest class."""
    flat = output.reshape(len(output), -1).astype(np.float32)
    return np.asarray(flat.max(axis=1) if task == "multiclass" else flat[:, 0])
