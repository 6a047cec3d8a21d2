"""Slices, curves and intervals of a comparison, over blocks as a round feeds them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from common.definition.evaluation import Evaluation, SliceBy
from common.definition.gate import Gate, Rule
from common.definition.metrics import Metric
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.metrics.binary import auc_of
from services.trainer.learn.metrics.collected import MeasuredHead, Slices
from services.trainer.learn.metrics.comparison import Comparison

COUNT = 400
RANDOM = np.random.default_rng(5)
CARRIERS = RANDOM.choice(np.array([b"AA", b"UA", b"DL", b"B6"], object), COUNT, p=[0.5, 0.3, 0.15, 0.05])
DISTANCES = RANDOM.uniform(0, 2000, COUNT).astype(np.float32)
LABELS = RANDOM.integers(0, 2, COUNT)
GOOD = (LABELS * 2.0 - 1 + RANDOM.normal(0, 1, COUNT)).astype(np.float32)
BAD = RANDOM.normal(0, 1, COUNT).astype(np.float32)
METRICS = (Metric("auc"), Metric("accuracy"))
BLOCKS = ((0, 130), (130, 131), (131, COUNT))


def compared(
    evaluation: Evaluation,
    gate: Gate | None = None,
    *,
    parent: Any = None,
    without: Sequence[int] = (),
    user_metrics: Any = None,
    weights: Any = None,
) -> Comparison:
    """`without`: held-out rows that the candidate cannot score."""
    head = MeasuredHead("late", "binary", METRICS)
    found = Comparison(
        {side: Slices([head], user_metrics) for side in ("candidate", "parent", "progressive")},
        evaluation,
        gate or Gate("auc"),
        seed=3,
    )
    given = np.ones(COUNT, np.float32) if weights is None else weights
    for start, end in BLOCKS:
        raw = {"carrier": CARRIERS[start:end], "distance": DISTANCES[start:end]}
        found.next_block(raw, raw, held_out_count=end - start, trained_count=end - start)
        kept = np.array([row for row in range(end - start) if row + start not in without], np.int64)
        rows = kept + start
        found.add("candidate", {"late": LABELS[rows]}, {"late": GOOD[rows]}, {"late": given[rows]}, kept)
        if parent is not None:
            every = np.arange(end - start)
            rows = every + start
            for side in ("parent", "progressive"):
                found.add(side, {"late": LABELS[rows]}, {"late": parent[rows]}, {"late": given[rows]}, every)
    return found


def slice_of(details: Mapping[str, Any], **where: str) -> Mapping[str, Any]:
    return next(one for one in details["slices"] if one["where"] == where)


@pytest.mark.covers("eco-tfma")
def test_each_value_of_a_feature_has_the_metrics_of_its_examples_alone() -> None:
    details = compared(Evaluation(slices=(SliceBy(("carrier",)),)), parent=BAD, without=(3, 140)).details()
    mine = (CARRIERS == b"UA") & ~np.isin(np.arange(COUNT), (3, 140))
    found = slice_of(details, carrier="UA")
    assert found["count"] == mine.sum()
    assert found["metrics"]["candidate"]["auc"] == pytest.approx(roc_auc_score(LABELS[mine], GOOD[mine]))
    theirs = CARRIERS == b"UA"
    expected = pytest.approx(roc_auc_score(LABELS[theirs], BAD[theirs]))
    assert found["metrics"]["parent"]["auc"] == found["metrics"]["progressive"]["auc"] == expected
    assert json.loads(json.dumps(details)) == details


@pytest.mark.covers("eco-tfma")
def test_numbers_are_cut_at_boundaries_and_features_are_crossed() -> None:
    by = (SliceBy(("distance",), (500.0, 1000.0)), SliceBy(("carrier", "distance"), most=200))
    details = compared(Evaluation(slices=by)).details()
    first = [one for one in details["slices"] if one["by"] == ["distance"]]
    assert {one["where"]["distance"]: one["count"] for one in first} == {
        "< 500": int((DISTANCES < 500).sum()),
        "500 to 1000": int(((DISTANCES >= 500) & (DISTANCES < 1000)).sum()),
        ">= 1000": int((DISTANCES >= 1000).sum()),
    }
    assert {tuple(one["where"]) for one in details["slices"] if one["by"] != ["distance"] and one["where"]} == {
        ("carrier", "distance")
    }


def test_rare_values_are_measured_together_and_counted_but_for_those_that_a_rule_names() -> None:
    by = Evaluation(slices=(SliceBy(("carrier",), most=1),))
    details = compared(by, Gate(rules=(Rule("auc", min_value=0.5, slice={"carrier": "B6"}),))).details()
    assert [one["where"] for one in details["slices"]] == [{"carrier": "AA"}, {"carrier": "B6"}, None]
    others = details["slices"][-1]
    assert (others["value_count"], others["count"]) == (2, int(np.isin(CARRIERS, (b"UA", b"DL")).sum()))
    assert sum(one["count"] for one in details["slices"]) == COUNT


def test_nothing_held_out_measures_nothing_and_no_weight_neither() -> None:
    head = MeasuredHead("late", "binary", METRICS)
    evaluation = Evaluation(slices=(SliceBy(("carrier",)),))
    gate = Gate("auc", confidence=0.9)
    empty = Comparison(
        {side: Slices([head]) for side in ("candidate", "parent", "progressive")}, evaluation, gate, seed=1
    )
    none = np.zeros(0, np.int64)
    empty.next_block({"carrier": np.zeros(0, object)}, {"carrier": CARRIERS[:3]}, held_out_count=0, trained_count=3)
    nothing = np.zeros(0, np.float32)
    empty.add("candidate", {"late": none}, {"late": nothing}, {"late": nothing}, none)
    assert (empty.details(), empty.metrics()["candidate"]) == ({}, {})
    weightless = compared(evaluation, gate, parent=BAD, weights=np.zeros(COUNT, np.float32))
    assert weightless.metrics()["candidate"] == {}
    assert weightless.details()["intervals"] == {"auc": {}}
    assert slice_of(weightless.details(), carrier="AA")["metrics"]["candidate"] == {}


def test_a_definitions_own_metrics_that_fail_on_a_slice_are_left_out_there_alone() -> None:
    def own(labels: Any, outputs: Any) -> dict[str, float]:
        if len(labels) < 100:
            raise ValueError("too few")
        return {"mine": float(len(labels))}

    found = compared(Evaluation(slices=(SliceBy(("carrier",)),)), user_metrics=own)
    assert found.metrics()["candidate"]["mine"] == COUNT
    assert slice_of(found.details(), carrier="AA")["metrics"]["candidate"]["mine"] > 100
    assert set(slice_of(found.details(), carrier="B6")["metrics"]["candidate"]) == {"auc", "accuracy"}

    def nan(labels: Any, outputs: Any) -> dict[str, float]:
        return {"mine": np.nan}

    with pytest.raises(DefinitionFailedError, match="mine is not finite"):
        compared(Evaluation(), user_metrics=nan).metrics()


def test_the_interval_of_a_difference_is_paired_seeded_and_covers_the_figure() -> None:
    near = GOOD + RANDOM.normal(0, 0.05, COUNT).astype(np.float32)
    gate = Gate("auc", max_regression=0.01, confidence=0.95)
    found = compared(Evaluation(), gate, parent=near).details()["intervals"]["auc"]
    low, high = found["difference"]
    one, other = (
        auc_of(LABELS.astype(np.float64), outputs.astype(np.float64))(np.ones(COUNT)) for outputs in (GOOD, near)
    )
    assert one is not None
    assert other is not None
    assert low <= one - other <= high
    assert found["candidate"][0] < one < found["candidate"][1]
    alone = found["candidate"][1] - found["candidate"][0]
    assert high - low < alone / 5, "what both find hard takes nothing from the comparison"
    again = compared(Evaluation(), gate, parent=near).details()["intervals"]["auc"]
    assert again == found
    same = compared(Evaluation(), gate, parent=GOOD).details()["intervals"]["auc"]
    assert same["difference"] == [0.0, 0.0]


def test_the_interval_of_a_mean_is_as_wide_as_its_standard_error_says() -> None:
    gate = Gate("accuracy", min_value=0.5, confidence=0.95)
    low, high = compared(Evaluation(), gate).details()["intervals"]["accuracy"]["candidate"]
    right = ((GOOD > 0) == (LABELS > 0.5)).mean()
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(right * (1 - right) / COUNT), rel=0.15)


def test_a_rule_of_a_slice_has_the_interval_of_that_slice() -> None:
    gate = Gate(rules=(Rule("auc", max_regression=0.1, slice={"carrier": None}),), confidence=0.9)
    details = compared(Evaluation(slices=(SliceBy(("carrier",)),)), gate, parent=BAD, without=(0, 399)).details()
    assert "intervals" not in details
    for one in details["slices"]:
        low, high = one["intervals"]["auc"]["candidate"]
        assert low <= one["metrics"]["candidate"]["auc"] <= high


@pytest.mark.covers("met-classification")
def test_curves_are_few_points_that_draw_what_the_metrics_say() -> None:
    found = compared(Evaluation(), parent=BAD)
    drawn = found.details()["curves"]
    mine = drawn["candidate"]["late"]
    assert set(drawn) == {"candidate", "parent"}
    assert len(mine["roc"]) <= 50
    assert len(mine["pr"]) <= 50
    across, up = np.array(mine["roc"]).T
    area = float(((up[1:] + up[:-1]) / 2 * np.diff(across)).sum())
    assert area == pytest.approx(found.metrics()["candidate"]["auc"], abs=0.01)
    (negatives, false), (missed, true) = mine["confusion"]["counts"]
    assert (negatives + true) / (negatives + false + missed + true) == found.metrics()["candidate"]["accuracy"]
    assert sum(share for *_, share in mine["calibration"]) == pytest.approx(1, abs=1e-4)
    edges, counts = [edge for edge, _ in mine["scores"][:-1]], [count for _, count in mine["scores"]]
    assert mine["scores"][-1][0] is None
    assert edges == sorted(set(edges))
    assert (len(counts), sum(counts)) == (20, mine["count"])
    assert max(counts) - min(counts) <= 1, "twentieths"
