"""How often a rollout's judge stops a version that is no worse, and how many labelled predictions a bad one takes to be
found: the product's own judges on drawn losses, no services.

    python -m benchmarks.rollout [--runs 1000]

Each draw: both versions are wrong on 20 % of the examples and differ on one in ten; the bad one is wrong on 1 or 5
points more. `turning bad`: it is no worse for 5,000 examples first. They are looked at after every label.

Then canaries that go through three stages under a judge and every guard: equal to production, or at every limit.

Then planted bad versions: ten of each of ten kinds, measured by the gate on held-out rows and, as if a person had made
them all canary, by the judge on labelled predictions and by the guards.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Cell, publish
from common.definition.gate import Gate
from common.definition.rollout import Canary, Judge
from common.quality import metrics_of_rows
from common.registry.catalog import Decision
from common.registry.live import ADVANCE, BACK
from common.registry.reporting import Part, Report
from services.registry.versions.canaries import unfit
from services.registry.versions.gate import judge as judged_by_gate
from services.trainer.live.canary import Trial
from services.trainer.live.evidence import WORSE, Comparison, losses_of_rows
from services.trainer.live.guards import Answered

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
    """Of one rollout; None where it is not stopped."""
    comparison = Comparison.begin(2, 1, judge)
    for count, more in ((equal, 0.0), (most - equal, points)):
        comparison.add(judge, *draw(rng, count, more), at=0.0)
    return comparison.capital.samples - equal if comparison.verdict == WORSE else None


CASES = (("A/A", 0.0, 0), ("+5 points", 0.05, 0), ("+1 point", 0.01, 0), ("+5 points, turning bad", 0.05, _EQUAL))


def row_of(name: str, points: float, equal: int, *, runs: int, alpha: float) -> dict[str, Cell]:
    judge, rng = Judge("error_rate", alpha=alpha), np.random.default_rng(7)
    found = [samples_to_stop(rng, judge, points, equal=equal) for _ in range(runs)]
    right = [seconds for seconds in found if seconds is not None and seconds > 0]
    middle, late = np.quantile(right, (0.5, 0.95)).tolist() if points and right else (None, None)
    return {
        "version": name,
        "rollouts": runs,
        "stopped": sum(seconds is not None for seconds in found),
        "before it was worse": sum(seconds is not None and (seconds <= 0 or not points) for seconds in found),
        "most allowed": int(alpha * runs),
        "samples to the stop, median": middle,
        "95 %": late,
    }


_STAGES = Canary((1.0, 10.0, 50.0), errors=0.01, latency=2.0, answers=0.3, slices="part", memory_bytes=2_000_000_000)
_MARGIN, _FAILING, _SLICES = 0.02, 0.02, 4


def requests(rng: np.random.Generator, count: int, slower: float, errors: float) -> Iterator[tuple[Answered, Answered]]:
    """How production's and the canary's requests end: log-normal times, and these shares of errors more."""
    seconds = rng.lognormal(-4.0, 0.5, (2, count)) * np.array([[1.0], [slower]])
    failed = rng.random((2, count)) < np.array([[_FAILING], [_FAILING + errors]])
    for own, other, is_own, is_other in zip(*seconds.tolist(), *failed.tolist(), strict=True):
        yield Answered(own, is_own), Answered(other, is_other)


def decided_canary(rng: np.random.Generator, judge: Judge, *, at_limits: bool) -> str:
    """The last decision on a canary that is equal to production, or as bad as each limit allows, looked at after every
    50 answers."""
    trial, count = Trial.begin(2, 1, judge, _STAGES), 5 * _AT_ONCE
    slower, errors, apart = (2.0, 0.01, 0.3) if at_limits else (1.0, 0.0, 0.05)
    decision = ""
    while decision in ("", ADVANCE):
        losses, others = draw(rng, count, _MARGIN if at_limits else 0.0)
        trial.add(judge, losses, others, at=0.0)
        trial.guards.of_slices(judge, rng.integers(0, _SLICES, count).astype(str).tolist(), losses, others)
        trial.guards.of_both(judge, (rng.random(count) * 2 * apart).tolist())
        for live, canary in requests(rng, count, slower, errors):
            trial.guards.of_production(live)
            trial.guards.of_canary(canary)
        decision = trial.decide(judge, seconds=0.0)
        trial.at_stage(trial.stage + (decision == ADVANCE), judge)
    return f"{decision} {trial.broken}".strip()


def canary_row(name: str, *, at_limits: bool, runs: int, alpha: float) -> dict[str, Cell]:
    judge, rng = Judge("error_rate", margin=_MARGIN, alpha=alpha), np.random.default_rng(11)
    decisions = Counter(decided_canary(rng, judge, at_limits=at_limits) for _ in range(runs))
    stopped = {decision: count for decision, count in decisions.items() if decision.startswith(BACK)}
    return {
        "canary": name,
        "rollouts": runs,
        "taken away": sum(stopped.values()),
        "most allowed": int(alpha * runs),
        "by": ", ".join(f"{decision.removeprefix(BACK).strip() or 'judge'} {n}" for decision, n in stopped.items())
        or "-",
        "in production": runs - sum(stopped.values()),
    }


_PLANTED, _HELD_OUT = 10, 500
_GATE = Gate(metric="accuracy", max_regression=0.01)
_TASK = "binary"
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


def rows_of(rng: np.random.Generator, kind: str, count: int, *, is_live: bool) -> tuple[Array, Array, Array]:
    """(probability, label) of the bad version and of the good one, shape [count, 2] each, on the same examples; and the
    slice of each, shape [count]."""
    logits, slices = rng.normal(0, 2.5, count), rng.integers(0, _SLICES, count).astype(np.float64)
    labels = (rng.random(count) < _sigmoid(logits)).astype(np.float64)
    is_good = kind in _IN_SERVING_ALONE and not is_live
    bad = logits if is_good else KINDS[kind](rng, logits, slices)
    return np.stack([_sigmoid(bad), labels], 1), np.stack([_sigmoid(logits), labels], 1), slices


def _sigmoid(logits: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-logits))
    return found


def is_rejected(rng: np.random.Generator, kind: str) -> bool:
    candidate, parent = (metrics_of_rows(_TASK, rows) for rows in rows_of(rng, kind, _HELD_OUT, is_live=False)[:2])
    metrics = {"candidate": candidate, "parent": parent}
    return judged_by_gate(_GATE, metrics=metrics, has_parent=True, held_out_count=_HELD_OUT).decision is Decision.REJECT


def stopped_after(rng: np.random.Generator, kind: str, judge: Judge) -> tuple[str, int, float]:
    """What stops it as canary, "" for nothing; after how many answers, and how many more than production's were wrong
    by then. Each answer has its label at once."""
    part = Part(model="m", version=2, numbers={"runner_private_bytes": 3e9 if kind == "larger than memory" else 5e8})
    if unfit({"version": 2, "memory_bytes": _STAGES.memory_bytes}, "m", Report("r", "serving", "", 0.0, parts=(part,))):
        return "memory_bytes", 0, 0.0
    trial, seen = Trial.begin(2, 1, judge, _STAGES), 0
    while seen < _MOST:
        bad, good, slices = rows_of(rng, kind, _AT_ONCE, is_live=True)
        losses, others = (losses_of_rows(_TASK, judge, rows.tolist()) for rows in (bad, good))
        trial.add(judge, losses, others, at=0.0)
        trial.guards.of_slices(judge, slices.astype(str).tolist(), losses, others)
        trial.guards.of_both(judge, np.nan_to_num(np.abs(bad[:, 0] - good[:, 0]), nan=1.0).tolist())
        for live, canary in requests(rng, _AT_ONCE, 3.0 if kind == "3x slower" else 1.0, 0.0):
            trial.guards.of_production(live)
            trial.guards.of_canary(canary)
        seen += _AT_ONCE
        if trial.decide(judge, seconds=0.0) == BACK:
            return trial.broken or "judge", seen, trial.pair.total
    return "", seen, trial.pair.total


def planted_row(kind: str, alpha: float) -> dict[str, Cell]:
    rng, judge = np.random.default_rng(list(kind.encode())), Judge("error_rate", margin=_MARGIN, alpha=alpha)
    rejected = [is_rejected(rng, kind) for _ in range(_PLANTED)]
    stops = [stopped_after(rng, kind, judge) for _ in range(_PLANTED)]
    stopped = [(answers, wrong) for by, answers, wrong in stops if by]
    return {
        "planted": kind,
        "versions": _PLANTED,
        "rejected by the gate": sum(rejected),
        "taken away as canary": len(stopped),
        "by": ", ".join(f"{by} {count}" for by, count in Counter(by for by, *_ in stops if by).items()) or "-",
        "caught by neither": sum(not (out or by) for out, (by, *_) in zip(rejected, stops, strict=True)),
        "answers until then, median": float(np.median([answers for answers, _ in stopped])) if stopped else None,
        "most": max((answers for answers, _ in stopped), default=None),
        "wrong answers more, median": float(np.median([wrong for _, wrong in stopped])) if stopped else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.01)
    given = parser.parse_args()
    facts: dict[str, Cell] = {"alpha": given.alpha}
    rows = [row_of(*case, runs=given.runs, alpha=given.alpha) for case in CASES]
    notes = [f"each rollout is compared on {_MOST:,} labelled predictions at most, looked at after every label"]
    publish("rollout", "A judge of rollouts", rows, notes=notes, facts=facts)
    canaries = [
        canary_row(name, at_limits=at_limits, runs=given.runs, alpha=given.alpha)
        for name, at_limits in (("equal to production", False), ("at every limit", True))
    ]
    notes = [f"guards: errors {_STAGES.errors}, latency {_STAGES.latency}, answers {_STAGES.answers}, {_SLICES} slices"]
    notes += ["three stages of 500 labelled predictions, looked at after every 50"]
    publish("rollout_canary", "Canaries that are no worse than allowed", canaries, notes=notes, facts=facts)
    planted = [planted_row(kind, given.alpha) for kind in KINDS]
    notes = [f"the gate allows 1 point less accuracy on {_HELD_OUT} held-out rows"]
    publish("rollout_planted", "Planted bad versions", planted, notes=notes, facts=facts)


if __name__ == "__main__":
    main()
