"""Metrics against figures worked out by hand; test_metrics_against_sklearn.py has blocks, weights and ties."""

import math
from typing import Any

import numpy as np
import pytest

from common.definition.metrics import Metric
from services.trainer.learn.metrics.classes import averaged, shares
from services.trainer.learn.metrics.collected import MeasuredHead, Slices, takes_weights
from services.trainer.learn.metrics.judged import Batched, judged
from services.trainer.learn.metrics.table import prepared


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


@pytest.mark.parametrize("metric", ["auc", "log_loss", "precision", "recall"])
def test_many_weights_at_once_measure_what_each_measures_alone(metric: str) -> None:
    """Resamples of the bootstrap; with ties, weights of 0, and a column without a positive."""
    random = np.random.default_rng(1)
    labels, outputs = np.array([1, 0, 1, 0, 0, 1.0]), np.array([0.5, 0.5, 2.0, -1.0, 3.0, -1.0])
    measure = prepared(Metric(metric), judged("binary", labels, outputs, np.ones(6), np.arange(6)))
    weights = random.poisson(1.0, (6, 40)).astype(np.float64)
    weights[labels > 0.5, 0] = 0.0
    assert isinstance(measure, Batched)
    alone = [measure(column) for column in weights.T]
    expected = [math.nan if value is None else value for value in alone]
    assert measure.many(weights).tolist() == pytest.approx(expected, nan_ok=True)
    if metric != "log_loss":
        assert alone[0] in (None, 0.0)


def measured(task: str, labels: list[float], outputs: list[object]) -> dict[str, float]:
    part = Slices([MeasuredHead("y", task)])
    half = len(labels) // 2
    given = np.ones(len(labels), np.float32)
    for rows in (slice(0, half), slice(half, None)):
        part.add({"y": np.array(labels)[rows]}, {"y": np.array(outputs, np.float32)[rows]}, {"y": given[rows]})
    return part.metrics()


@pytest.mark.covers("met-classification")
def test_binary_metrics() -> None:
    metrics = measured("binary", [1, 0, 1, 0], [logit(0.8), logit(0.4), logit(0.3), logit(0.1)])
    assert metrics["log_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.3, 0.9])), rel=1e-6)
    assert metrics["accuracy"] == 0.75
    assert metrics["calibration"] == pytest.approx((0.8 + 0.4 + 0.3 + 0.1) / 2, rel=1e-6)
    assert metrics["auc"] == pytest.approx(3 / 4)


@pytest.mark.covers("loss-sigmoid")
def test_a_class_that_neither_occurs_nor_is_predicted_is_in_no_mean() -> None:
    recall = averaged(lambda right, labelled, predicted: shares(right, labelled), is_weighted=False)
    assert recall(*np.array([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1.0, 1.0, 0.0]])) == 0.75


def test_log_loss_stays_finite_at_logits_of_a_thousand() -> None:
    assert measured("binary", [1, 0], [-1000.0, -1000.0])["log_loss"] == pytest.approx(500.0)
    assert measured("multiclass", [0, 0], [[1000.0, 0.0], [0.0, 1000.0]])["log_loss"] == pytest.approx(500.0)


def own(function: Any, *, weights: list[float]) -> dict[str, float]:
    part = Slices([MeasuredHead("y", "regression")], function)
    for label, output, weight in zip([1.0, 2.0], [1.5, 5.0], weights, strict=True):
        part.add({"y": np.array([label])}, {"y": np.array([output], np.float32)}, {"y": np.array([weight], np.float32)})
    return part.metrics()


@pytest.mark.covers("met-classification")
def test_the_definitions_metrics_see_all_labels_and_outputs_and_in_a_third_argument_the_weights() -> None:
    def with_weights(labels: Any, outputs: Any, weights: Any) -> dict[str, float]:
        return {"mine": np.average(np.abs(labels - outputs), weights=weights)}

    def with_a_choice(labels: Any, outputs: Any, share: float = 0.5) -> dict[str, float]:
        return {"mine": share}

    assert own(lambda labels, outputs: {"worst": np.abs(labels - outputs).max()}, weights=[1, 1])["worst"] == 3.0
    assert own(with_weights, weights=[3, 1])["mine"] == pytest.approx((3 * 0.5 + 3.0) / 4)
    assert own(with_a_choice, weights=[3, 1])["mine"] == 0.5


def test_a_function_whose_arguments_cannot_be_known_gets_labels_and_outputs() -> None:
    assert not takes_weights(max)


def test_examples_without_weight_measure_nothing() -> None:
    assert own(lambda labels, outputs: {"mine": 1.0}, weights=[0, 0]) == {}


@pytest.mark.parametrize(
    ("task", "metric", "labels", "weights", "why"),
    [
        ("binary", "auc", [1, 1, 1], [1, 1, 1], "all 3 held-out events have the label 1"),
        ("binary", "auc", [1, 0, 0], [1, 0, 0], "the only held-out event has the label 1"),
        ("binary", "auc", [1, 0, 0], [0, 0, 0], "each of the 3 held-out events has weight 0 or no label"),
        ("binary", "log_loss", [1, 0], [0, 0], "each of the 2 held-out events has weight 0 or no label"),
        ("binary", "precision", [1, 0, 0], [1, 1, 1], "none of 3 held-out events is predicted to be positive"),
        ("binary", "auc", [1, 0, 1], [1, 1, 1], None),
    ],
)
def test_a_metric_without_a_value_names_the_labels_the_weights_or_the_answers(
    task: str, metric: str, labels: Any, weights: Any, why: str | None
) -> None:
    slices = Slices([MeasuredHead("y", task, (Metric(metric),))])
    given, outputs, of = ({"y": np.asarray(one, np.float32)} for one in (labels, [-1.0] * len(labels), weights))
    slices.add(given, outputs, of)
    assert (slices.undefined(), metric in slices.metrics()) == ({metric: why} if why else {}, why is None)
