"""How often a rollout's judge stops a version that is no worse, and how many labelled predictions a bad one takes to be
found: the judge's own code on drawn losses, no services.

    python -m benchmarks.rollout [--runs 1000]

Each draw: both versions are wrong on 20 % of the examples and differ on one in ten; the bad one is wrong on 1 or 5
points more. `turning bad`: it is no worse for 5,000 examples first.

Then planted bad versions: ten of each of ten kinds, measured by the gate on held-out rows and, as if a person had
promoted them all, by the judge on labelled predictions.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Cell, publish
from common.definition.gate import Gate
from common.definition.rollout import Judge
from common.quality import metrics_of_rows
from common.registry.catalog import Decision
from services.registry.versions.gate import judge as judged_by_gate
from services.trainer.live.evidence import WORSE, Comparison, losses_of_rows

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


_PLANTED, _HELD_OUT = 10, 500
_GATE = Gate(metric="accuracy", max_regression=0.01)
_TASK = "binary"
_SLICES = 4
Planted = Callable[[np.random.Generator, Array, Array], Array]
"""A bad version's logits, of the good one's and the slice of each row; shape [n]."""
KINDS: dict[str, Planted] = {
    "inverted label": lambda _, logits, slices: -logits,
    "frozen output": lambda _, logits, slices: np.full_like(logits, 2.0),
    "NaN on a slice": lambda _, logits, slices: np.where(slices == 0, np.nan, logits),
    "a slice lost": lambda _, logits, slices: np.where(slices == 0, -1.0, logits),
    "noisy weights": lambda rng, logits, slices: logits + rng.normal(0, 2.5, len(logits)),
    "rows in another order": lambda rng, logits, slices: rng.permutation(logits),
    "shifted threshold": lambda _, logits, slices: logits + 1.5,
    "skew in serving": lambda _, logits, slices: 0.5 * logits - 1.5,
    "3x slower": lambda _, logits, slices: logits,
    "larger than memory": lambda _, logits, slices: logits,
}
_IN_SERVING_ALONE = ("skew in serving",)


def rows_of(rng: np.random.Generator, kind: str, count: int, *, is_live: bool) -> tuple[Array, Array]:
    """(probability, label) of the bad version and of the good one, shape [count, 2] each, on the same examples."""
    logits, slices = rng.normal(0, 2.5, count), rng.integers(0, _SLICES, count).astype(np.float64)
    labels = (rng.random(count) < _sigmoid(logits)).astype(np.float64)
    is_good = kind in _IN_SERVING_ALONE and not is_live
    bad = logits if is_good else KINDS[kind](rng, logits, slices)
    return np.stack([_sigmoid(bad), labels], 1), np.stack([_sigmoid(logits), labels], 1)


def _sigmoid(logits: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-logits))
    return found


def is_rejected(rng: np.random.Generator, kind: str) -> bool:
    candidate, parent = (metrics_of_rows(_TASK, rows) for rows in rows_of(rng, kind, _HELD_OUT, is_live=False))
    metrics = {"candidate": candidate, "parent": parent}
    return judged_by_gate(_GATE, metrics=metrics, has_parent=True, held_out_count=_HELD_OUT).decision is Decision.REJECT


def stopped_after(rng: np.random.Generator, kind: str, judge: Judge) -> tuple[int | None, float]:
    """Labels until the judge stops it, None: it does not; and how many answers more than its predecessor's were wrong
    by then."""
    comparison = Comparison.begin(2, 1, judge)
    while comparison.capital.samples < _MOST and comparison.verdict != WORSE:
        bad, good = rows_of(rng, kind, _AT_ONCE, is_live=True)
        losses, others = (losses_of_rows(_TASK, judge, rows.tolist()) for rows in (bad, good))
        comparison.add(judge, losses, others, at=0.0)
    return comparison.capital.samples if comparison.verdict == WORSE else None, comparison.total


def planted_row(kind: str, alpha: float) -> dict[str, Cell]:
    rng, judge = np.random.default_rng(list(kind.encode())), Judge("error_rate", alpha=alpha)
    rejected = [is_rejected(rng, kind) for _ in range(_PLANTED)]
    stops = [stopped_after(rng, kind, judge) for _ in range(_PLANTED)]
    stopped = [(samples, wrong) for samples, wrong in stops if samples is not None]
    let_through = [samples for is_out, (samples, _) in zip(rejected, stops, strict=True) if not is_out]
    return {
        "planted": kind,
        "versions": _PLANTED,
        "rejected by the gate": sum(rejected),
        "let through, stopped by the judge": sum(samples is not None for samples in let_through),
        "caught by neither": sum(samples is None for samples in let_through),
        "judge alone: labels, median": float(np.median([samples for samples, _ in stopped])) if stopped else None,
        "most": max((samples for samples, _ in stopped), default=None),
        "wrong answers more, median": float(np.median([wrong for _, wrong in stopped])) if stopped else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.01)
    given = parser.parse_args()
    rows = [row_of(*case, runs=given.runs, alpha=given.alpha) for case in CASES]
    notes = [f"each rollout is compared on {_MOST:,} labelled predictions at most, looked at after every {_AT_ONCE}"]
    publish("rollout", "A judge of rollouts", rows, notes=notes, facts={"alpha": given.alpha})
    planted = [planted_row(kind, given.alpha) for kind in KINDS]
    notes = [
        f"the gate allows 1 point less accuracy on {_HELD_OUT} held-out rows",
        "neither looks at latency or memory: what is slower or larger answers alike",
    ]
    publish("rollout_planted", "Planted bad versions", planted, notes=notes, facts={"alpha": given.alpha})


if __name__ == "__main__":
    main()
