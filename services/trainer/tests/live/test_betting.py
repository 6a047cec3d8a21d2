"""The judge's test: false alarms stay below alpha however often one looks, and a bad version is found."""

import numpy as np
import pytest

from common.definition.rollout import Judge
from services.trainer.live.betting import EVERY, Capital
from services.trainer.live.evidence import INCONCLUSIVE, WORSE, Comparison

_RUNS, _LONG, _LOOK = 400, 1500, 20


def _draws(seed: int, mean: float, runs: int, count: int) -> np.ndarray:
    """Differences of two versions' errors, -1, 0 or 1, that differ on a tenth; shape [runs, count]."""
    rng = np.random.default_rng(seed)
    signs = np.where(rng.random((runs, count)) < (1 + mean / 0.1) / 2, 1.0, -1.0)
    return np.where(rng.random((runs, count)) < 0.1, signs, 0.0)


def _first_crossing(differences: np.ndarray, *, alpha: float, margin: float = 0.0) -> int | None:
    capital = Capital(margin)
    for start in range(0, len(differences), _LOOK):
        capital.add(differences[start : start + _LOOK])
        if capital.e_value >= 1 / alpha:
            return capital.samples
    return None


@pytest.mark.parametrize(("mean", "margin"), [(0.0, 0.0), (0.03, 0.03)])
def test_versions_that_are_no_worse_are_stopped_by_mistake_at_most_alpha_times(mean: float, margin: float) -> None:
    alpha = 0.05
    stops = [_first_crossing(one, alpha=alpha, margin=margin) for one in _draws(3, mean, _RUNS, _LONG)]
    assert sum(one is not None for one in stops) <= alpha * _RUNS


def test_five_points_more_errors_are_found_within_1500_labels_of_nineteen_versions_in_twenty() -> None:
    stops = [_first_crossing(one, alpha=0.01) for one in _draws(5, 0.05, 200, _LONG)]
    assert sum(one is not None for one in stops) >= 190


def test_a_version_that_turns_bad_late_is_found_too() -> None:
    good, bad = _draws(7, 0.0, 40, 4 * EVERY), _draws(8, 0.05, 40, 2 * EVERY)
    stops = [_first_crossing(np.concatenate(both), alpha=0.01) for both in zip(good, bad, strict=True)]
    assert sum(one is not None and one > 4 * EVERY for one in stops) >= 36


def test_a_capital_is_the_same_in_whatever_parts_it_comes_and_after_it_was_stored() -> None:
    (differences,) = _draws(9, 0.02, 1, 2 * EVERY + 700)
    whole = Capital(0.01)
    whole.add(differences)
    parts = Capital(0.01)
    for start in range(0, len(differences), 333):
        parts = Capital.from_mapping(parts.to_mapping())
        parts.add(differences[start : start + 333])
    assert parts.samples == whole.samples
    assert parts.e_value == pytest.approx(whole.e_value, rel=1e-9)


def test_one_bet_by_hand() -> None:
    capital = Capital(0.0)
    assert capital.e_value == 1.0
    capital.add(np.array([1.0]))
    shares = np.geomspace(0.01, 0.9, 12)
    assert capital.e_value == pytest.approx(0.5 * (1 + shares).mean() + 0.5)


def _comparison(judge: Judge, losses: list[float], others: list[float]) -> Comparison:
    comparison = Comparison.begin(2, 1, judge)
    comparison.add(judge, np.array(losses), np.array(others), at=1.0)
    return comparison


def test_nothing_is_decided_before_min_samples_and_what_is_undecided_at_max_samples_is_inconclusive() -> None:
    worse = [1.0] * 60, [0.0] * 60
    assert _comparison(Judge("error_rate", min_samples=61), *worse).verdict == ""
    assert _comparison(Judge("error_rate", min_samples=60), *worse).verdict == WORSE
    assert (
        _comparison(Judge("error_rate", min_samples=10, max_samples=20), [1.0] * 20, [1.0] * 20).verdict == INCONCLUSIVE
    )


def test_errors_beyond_the_bound_of_mae_count_alike() -> None:
    judge = Judge("mae", bound=10.0, min_samples=1)
    comparison = _comparison(judge, [10.0, 1e9], [0.0, 1e9])
    assert comparison.shown()["difference"] == 5.0
    assert "mae of version 2 is +5 against version 1 on the same 2 labelled predictions" in comparison.reason(judge)
