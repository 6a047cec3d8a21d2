"""How often a rollout's judge stops a version that is no worse, and how many labelled predictions a bad one takes to be
found: the judge's own code on drawn losses, no services.

    python -m benchmarks.rollout [--runs 1000]

Each draw: both versions are wrong on 20 % of the examples and differ on one in ten; the bad one is wrong on 1 or 5
points more. `turning bad`: it is no worse for 5,000 examples first.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Cell, publish
from common.definition.rollout import Judge
from services.trainer.live.evidence import WORSE, Comparison

_AT_ONCE = 10
_DIFFERING = 0.1
_MOST = 20_000
_EQUAL = 5_000
Array = NDArray[np.float64]


def draw(rng: np.random.Generator, count: int, points: float) -> tuple[Array, Array]:
    """Losses of a version and of its predecessor, 0 or 1; the first is wrong on `points` more."""
    differs = rng.random(count) < _DIFFERING
    is_worse = rng.random(count) < (1 + points / _DIFFERING) / 2
    losses = np.where(differs, is_worse, rng.random(count) < 0.2).astype(np.float64)
    return losses, np.where(differs, 1 - losses, losses)


def samples_to_stop(
    rng: np.random.Generator, judge: Judge, points: float, *, equal: int = 0, most: int = _MOST
) -> int | None:
    """Of one rollout, looked at after every ten labels; None where it is not stopped."""
    comparison = Comparison.begin(2, 1, judge)
    while comparison.capital.samples < most:
        is_equal = comparison.capital.samples < equal
        comparison.add(judge, *draw(rng, _AT_ONCE, 0.0 if is_equal else points), at=0.0)
        if comparison.verdict == WORSE:
            return comparison.capital.samples - equal
    return None


CASES = (("A/A", 0.0, 0), ("+5 points", 0.05, 0), ("+1 point", 0.01, 0), ("+5 points, turning bad", 0.05, _EQUAL))


def row_of(name: str, points: float, equal: int, *, runs: int, alpha: float) -> dict[str, Cell]:
    judge, rng = Judge("error_rate", alpha=alpha), np.random.default_rng(7)
    found = [samples_to_stop(rng, judge, points, equal=equal) for _ in range(runs)]
    right = [one for one in found if one is not None and one > 0]
    middle, late = np.quantile(right, (0.5, 0.95)).tolist() if points and right else (None, None)
    return {
        "version": name,
        "rollouts": runs,
        "stopped": sum(one is not None for one in found),
        "before it was worse": sum(one is not None and (one <= 0 or not points) for one in found),
        "most allowed": int(alpha * runs),
        "samples to the stop, median": middle,
        "95 %": late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.01)
    given = parser.parse_args()
    rows = [row_of(*case, runs=given.runs, alpha=given.alpha) for case in CASES]
    notes = [f"each rollout is compared on {_MOST:,} labelled predictions at most, looked at after every {_AT_ONCE}"]
    publish("rollout", "A judge of rollouts", rows, notes=notes, facts={"alpha": given.alpha})


if __name__ == "__main__":
    main()
