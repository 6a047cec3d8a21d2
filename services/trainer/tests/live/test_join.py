"""Labels and predictions find each other by key, whatever comes first, twice or late."""

import random
from typing import Any

import numpy as np
import pytest

from services.trainer.live.join import Answer, Join


def _answer(version: int = 1, chance: float = 0.75, alias: str = "production") -> Answer:
    return Answer(version, alias, np.array(chance, np.float32))


def _said(join: Join, *steps: tuple[Any, ...]) -> list[tuple[int, tuple[float, float] | None]]:
    """(version, row) of what got its label, over steps ("predict", key, at, answer) and ("label", key, at, label)."""
    found = []
    for what, *rest in steps:
        found += [(answer.version, answer.row) for _, answer in getattr(join, what)(*rest)]
    return found


def test_a_label_finds_the_answers_of_every_version_and_may_come_first() -> None:
    steps = [("predict", "a", 1.0, _answer(2)), ("label", "a", 2.0, 1.0), ("predict", "a", 2.5, _answer(1, 0.5))]
    assert _said(Join("binary", 10.0), *steps) == [(2, (0.75, 1.0)), (1, (0.5, 1.0))]
    assert sorted(_said(Join("binary", 10.0), *steps[::-1])) == [(1, (0.5, 1.0)), (2, (0.75, 1.0))]


def test_what_comes_twice_changes_nothing() -> None:
    join = Join("binary", 10.0)
    said = _said(
        join,
        ("predict", "a", 1.0, _answer()),
        ("predict", "a", 1.5, _answer(chance=0.1)),
        ("label", "a", 2.0, 1.0),
        ("label", "a", 3.0, 0.0),
    )
    assert said == [(1, (0.75, 1.0))]
    assert (join.counts["duplicate_predictions"], join.counts["duplicate_labels"], join.counts["labelled"]) == (1, 1, 1)


def test_labels_are_in_time_late_never_or_of_no_prediction() -> None:
    join = Join("binary", 10.0)
    said = _said(
        join,
        *(("predict", key, 0.0, _answer()) for key in ("in time", "late", "never")),
        ("label", "in time", 10.0, 1.0),
        ("label", "late", 15.0, 1.0),
        ("label", "nobody", 15.0, 1.0),
        ("predict", "other", 40.0, _answer()),
    )
    assert said == [(1, (0.75, 1.0))]
    counts = {name: count for name, count in join.counts.items() if count}
    assert counts == {"labelled": 1, "late": 1, "never": 1, "unmatched": 1}
    assert join.waiting == 1


def test_any_order_within_the_window_gives_the_same_rows() -> None:
    keys = [f"k{number}" for number in range(50)]
    steps: list[tuple[Any, ...]] = [("predict", key, 0.0, _answer(chance=0.5 + i / 200)) for i, key in enumerate(keys)]
    steps += [("label", key, 0.0, float(i % 2)) for i, key in enumerate(keys)] * 2
    orders = []
    for seed in range(5):
        random.Random(seed).shuffle(steps)
        orders.append(sorted(_said(Join("binary", 10.0), *steps)))
    assert all(one == orders[0] and len(one) == 50 for one in orders)


def test_a_full_window_drops_the_oldest_and_counts_them() -> None:
    join = Join("binary", 10.0, most_keys=3)
    assert _said(join, *(("predict", f"k{n}", 0.0, _answer()) for n in range(5)), ("label", "k0", 1.0, 1.0)) == []
    assert _said(join, ("label", "k4", 1.0, 1.0)) == [(1, (0.75, 1.0))]
    assert join.counts["dropped"] == 3, "k0 and k1, then k2 for the label of k0"


@pytest.mark.parametrize(
    ("task", "output", "label", "row"),
    [
        ("multiclass", [0.2, 0.7, 0.1], 1, (0.7, 1.0)),
        ("multiclass", [0.2, 0.7, 0.1], 0, (0.2, 0.0)),
        ("regression", [2.5], 2, (2.5, 2.0)),
    ],
)
def test_rows_of_every_task(task: str, output: list[float], label: float, row: tuple[float, float]) -> None:
    answer = Answer(1, "production", np.array(output, np.float32))
    [(_, found)] = _said(Join(task, 1.0), ("predict", "a", 0.0, answer), ("label", "a", 0.0, float(label)))
    assert found == pytest.approx(row, abs=1e-6)


def test_a_label_that_is_no_class_of_the_answer_is_unusable() -> None:
    join, answer = Join("multiclass", 1.0), Answer(1, "production", np.array([0.5, 0.5], np.float32))
    assert _said(join, ("predict", "a", 0.0, answer), ("label", "a", 0.0, 7.0)) == []
    assert join.counts["unusable"] == 1
