"""Metrics against figures worked out by hand."""

import math

import numpy as np
import pytest

from common.definition.heads import Head
from common.definition.losses import Loss
from common.schema import Feature
from services.trainer.families.heads import BuiltHead
from services.trainer.learn.evaluation import Slice, Slices, auc


def area(labels: list[int], scores: list[float], weights: list[float] | None = None) -> float | None:
    return auc(np.array(labels, float), np.array(scores), np.array(weights or [1.0] * len(labels)))


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    assert area([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1]) == pytest.approx(3 / 4)
    assert area([1, 1, 0, 0], [4.0, 3.0, 2.0, 1.0]) == 1.0
    assert area([0, 0, 1, 1], [4.0, 3.0, 2.0, 1.0]) == 0.0


def test_ties_count_one_half() -> None:
    assert area([1, 0], [0.5, 0.5]) == 0.5
    assert area([1, 0, 0, 1], [0.5, 0.5, 0.1, 0.9]) == pytest.approx(3.5 / 4)


def test_weights_count_pairs_by_their_product() -> None:
    assert area([1, 0, 0], [0.5, 0.4, 0.6], [2.0, 3.0, 1.0]) == pytest.approx(6 / 8)
    assert area([1, 0, 0, 1], [0.5, 0.4, 0.6, 0.9], [1.0, 1.0, 0.0, 0.0]) == 1.0


def test_auc_agrees_with_counting_all_pairs() -> None:
    random = np.random.default_rng(3)
    labels, scores = random.integers(0, 2, 200), random.integers(0, 20, 200) / 20
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    assert area(labels.tolist(), scores.tolist()) == pytest.approx(np.mean(pairs))


def test_auc_needs_both_classes() -> None:
    assert area([1, 1], [0.5, 0.6]) is None


def measured(
    task: str, labels: list[float], outputs: list[object], weights: list[float] | None = None
) -> dict[str, float]:
    part = Slice(task)  # type: ignore[arg-type] # one of the tasks
    half = len(labels) // 2
    given = np.array(weights or [1.0] * len(labels), np.float32)
    for rows in (slice(0, half), slice(half, None)):
        part.add(np.array(labels)[rows], np.array(outputs, np.float32)[rows], given[rows])
    return part.metrics()


@pytest.mark.covers("met-classification")
def test_binary_metrics() -> None:
    metrics = measured("binary", [1, 0, 1, 0], [logit(0.8), logit(0.4), logit(0.3), logit(0.1)])
    assert metrics["log_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.3, 0.9])), rel=1e-6)
    assert metrics["accuracy"] == 0.75
    assert metrics["calibration"] == pytest.approx((0.8 + 0.4 + 0.3 + 0.1) / 2, rel=1e-6)
    assert metrics["auc"] == pytest.approx(3 / 4)


@pytest.mark.covers("loss-sigmoid")
def test_log_loss_stays_finite_at_logits_of_a_thousand() -> None:
    assert measured("binary", [1, 0], [-1000.0, -1000.0])["log_loss"] == pytest.approx(500.0)
    assert measured("multiclass", [0, 0], [[1000.0, 0.0], [0.0, 1000.0]])["log_loss"] == pytest.approx(500.0)


def test_what_is_not_defined_is_left_out() -> None:
    assert set(measured("binary", [0, 0], [0.1, 0.2])) == {"log_loss", "accuracy"}
    assert Slice("binary").metrics() == {}


@pytest.mark.covers("met-classification")
def test_multiclass_metrics() -> None:
    outputs: list[object] = [np.log([0.7, 0.2, 0.1]), np.log([0.3, 0.3, 0.4])]
    metrics = measured("multiclass", [0, 1], outputs)
    assert metrics["accuracy"] == 0.5
    assert metrics["log_loss"] == pytest.approx(-np.mean(np.log([0.7, 0.3])), rel=1e-6)


@pytest.mark.covers("met-regression-misc")
def test_regression_metrics() -> None:
    metrics = measured("regression", [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 3.0, 2.0])
    assert metrics == {"rmse": pytest.approx(math.sqrt(2.0)), "mae": pytest.approx(1.0)}


def test_weights_weigh() -> None:
    assert measured("regression", [0.0, 0.0], [1.0, 3.0], [3.0, 1.0])["mae"] == pytest.approx(1.5)
    assert measured("binary", [1, 0], [1.0, 1.0], [3.0, 1.0])["accuracy"] == pytest.approx(0.75)


def test_the_definitions_own_metrics_see_all_labels_and_outputs() -> None:
    head = Head("amount", "amount", "regression", Loss("mean_squared_error"))
    built = BuiltHead(head, Feature("amount", "float32"), class_count=0, units=1)
    part = Slices([built], lambda labels, outputs: {"worst": np.abs(labels - outputs).max()}, are_named=False)
    for label, output in ((1.0, 1.5), (2.0, 5.0)):
        weights = {"amount": np.ones(1, np.float32)}
        part.add({"amount": np.array([label])}, {"amount": np.array([output], np.float32)}, weights)
    assert part.metrics()["worst"] == 3.0
