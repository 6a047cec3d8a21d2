"""Answers of one distribution are called shifted as seldom as alpha says; others are found, whoever counts them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from common.definition.triggers import Drift
from common.registry.catalog import Version
from services.trainer.live.scores import Scores, scores_of


def _begun(held_out: Any, drift: Drift) -> Scores:
    """Of a version that answered its held-out examples so: counts by numpy's own histogram."""
    edges = np.quantile(held_out, np.arange(1, 20) / 20)
    counts = np.histogram(held_out, [-np.inf, *edges, np.inf])[0]
    scores = [[edge, count] for edge, count in zip([*edges.tolist(), None], counts.tolist(), strict=True)]
    fields = dict.fromkeys(one.name for one in dataclasses.fields(Version))
    known = {"version": 3, "evaluation": {"curves": {"candidate": {"late": {"scores": scores}}}}}
    return Scores.begin(Version(**{**fields, **known}), "late", drift)  # type: ignore[arg-type]  # no more is read


def test_quiet_windows_of_answers_alarm_at_most_as_often_as_alpha_says() -> None:
    drift, windows, alarms = Drift(window_examples=200, alpha=0.05), 300, 0
    for seed in range(windows):
        rng = np.random.default_rng(seed)
        scores = _begun(rng.beta(2, 5, 800), drift)
        scores.add(rng.beta(2, 5, 200).astype(np.float32))
        alarms += scores.alarms
    assert 0 < alarms <= 0.05 * windows + 3 * np.sqrt(0.05 * 0.95 * windows)


def test_other_answers_alarm_once_a_window_and_the_numbers_name_scores() -> None:
    rng, drift = np.random.default_rng(1), Drift(window_examples=500)
    scores = _begun(rng.beta(2, 5, 2000), drift)
    for part in np.split(rng.beta(4, 5, 1700).astype(np.float32), [300, 900]):
        scores = Scores(**vars(scores))  # as another trainer goes on from what is stored
        scores.add(part)
    shown = scores.shown()
    assert (shown["windows"], shown["alarms"], shown["alarm"]["number"]) == (3, 3, 3)
    (fault,) = shown["alarm"]["shifted"]
    assert (fault["feature"], fault["distance"] > fault["threshold"] > 0) == ("scores", True)
    assert shown["says"].startswith(f"scores {fault['distance']:.3g} above {fault['threshold']:.3g} (alpha 0.01; 500 ")
    assert sum(scores.counts) == 200, "which wait for the next window"


def test_a_version_without_counts_says_so_and_what_is_no_number_is_the_highest_answer() -> None:
    fields = dict.fromkeys(one.name for one in dataclasses.fields(Version))
    version = Version(**{**fields, "version": 1, "evaluation": {}})  # type: ignore[arg-type]  # no more is read
    empty = Scores.begin(version, "late", Drift())
    empty.add(np.ones(5000, np.float32))
    assert empty.shown()["says"] == "version 1 has no counts of its answers to compare with"
    begun = _begun(np.linspace(0, 1, 100), Drift(window_examples=50))
    begun.add(np.array([np.nan, 0.0], np.float32))
    assert (begun.counts[0], begun.counts[-1]) == (1, 1)


@pytest.mark.parametrize(
    ("task", "output", "expected"),
    [
        ("binary", [[0.25], [0.5]], [0.25, 0.5]),
        ("multiclass", [[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]], [0.7, 0.5]),
        ("regression", [3.0, -1.0], [3.0, -1.0]),
    ],
)
def test_an_answer_is_one_number(task: str, output: list[Any], expected: list[float]) -> None:
    assert scores_of(task, np.array(output, np.float32)).tolist() == np.array(expected, np.float32).tolist()
