"""How often the trigger `drift` calls a quiet window shifted, and how many events a shift takes to be found: the
trigger's own code on drawn events, no services.

    python -m benchmarks.drift [--windows 1000] [--runs 100]

Each draw: 5,000 learned events of eight features: six normal, one of counts, one of words. Of a shift the first
feature moves by some standard deviations from the first new event on; its delay is the events until a window names
that feature.
"""

import argparse

import numpy as np

from benchmarks.report import Cell, publish
from common.definition.triggers import Drift
from common.statistics.shift import Values, find_shift

_LEARNED, _MOST = 5_000, 20_000
_SHIFTS = (0.05, 0.1, 0.2, 0.5)
POLICIES = (Drift(window_examples=250), Drift(window_examples=1_000), Drift(window_examples=4_000))


def draw(rng: np.random.Generator, count: int, *, further: float = 0.0) -> dict[str, Values]:
    numbers = {f"number_{index}": rng.normal(further * (index == 0), 1.0, count) for index in range(6)}
    words: list[bytes | None] = [
        bytes(word) for word in rng.choice(np.array([b"AA", b"DL", b"UA", b"WN"]), count, p=[0.6, 0.2, 0.15, 0.05])
    ]
    return {**numbers, "count": rng.poisson(3.0, count).astype(np.float64), "word": words}


def quiet_row(drift: Drift, *, windows: int) -> dict[str, Cell]:
    """Each window against separate learned events, so that the windows are independent of each other."""
    rng = np.random.default_rng(7)
    found = 0
    for seed in range(windows):
        window = draw(rng, drift.window_examples)
        found += bool(find_shift(draw(rng, _LEARNED), window, alpha=drift.alpha, seed=seed).shifted)
    return {
        "window": drift.window_examples, "shift": "none", "draws": windows, "found": found,
        "of another feature": None, "expected at most": drift.alpha * windows, "events to the find, median": None,
        "95 %": None,
    }  # fmt: skip


def shift_row(drift: Drift, further: float, *, runs: int) -> dict[str, Cell]:
    rng = np.random.default_rng(11)
    delays, others = [], 0
    for run in range(runs):
        learned = draw(rng, _LEARNED)
        for number in range(1, _MOST // drift.window_examples + 1):
            window = draw(rng, drift.window_examples, further=further)
            named = [
                found.feature
                for found in find_shift(learned, window, alpha=drift.alpha, seed=run * 1_000 + number).shifted
            ]
            others += any(name != "number_0" for name in named)
            if "number_0" in named:
                delays.append(number * drift.window_examples)
                break
    middle, late = np.quantile(delays, (0.5, 0.95)).tolist() if delays else (None, None)
    return {
        "window": drift.window_examples, "shift": f"{further:g} σ", "draws": runs, "found": len(delays),
        "of another feature": others, "expected at most": None, "events to the find, median": middle, "95 %": late,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=100)
    given = parser.parse_args()
    rows = [quiet_row(policy, windows=given.windows) for policy in POLICIES]
    rows += [shift_row(policy, further, runs=given.runs) for policy in POLICIES for further in _SHIFTS]
    notes = [f"a shift is looked for in {_MOST:,} events at most; alpha is of a window, over all eight features"]
    publish("drift", "The trigger drift", rows, notes=notes, facts={"alpha": POLICIES[0].alpha})


if __name__ == "__main__":
    main()
