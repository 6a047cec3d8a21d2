"""Every metric equals scikit-learn's, or a plain formula where it has none, with weights and ties and without."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.neighbors import NearestNeighbors

from common.definition.metrics import KINDS, Metric, read_metric
from services.trainer.learn.metrics.judged import Floats, Judged, joined, judged
from services.trainer.learn.metrics.table import PREPARE, measured

COUNT, CLASSES, LABELS = 240, 4, 3
RANDOM = np.random.default_rng(11)
WEIGHTS = np.round(RANDOM.uniform(0, 3, COUNT), 1)
GROUPS = RANDOM.integers(0, 30, COUNT)

LOGITS = np.round(RANDOM.normal(0, 2, COUNT), 1)
TRUTH = (RANDOM.random(COUNT) < 1 / (1 + np.exp(-LOGITS))).astype(np.int64)
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))
SCORES = np.round(RANDOM.normal(0, 1, (COUNT, CLASSES)), 3)
CHOSEN = np.where(RANDOM.random(COUNT) < 0.6, SCORES.argmax(axis=1), RANDOM.integers(0, CLASSES, COUNT))
SHARES = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
MANY = RANDOM.integers(0, 2, (COUNT, LABELS))
MANY_LOGITS = np.round(RANDOM.normal(0, 2, (COUNT, LABELS)) + MANY, 1)
NUMBERS = RANDOM.normal(5, 2, COUNT)
GUESSES = NUMBERS + RANDOM.normal(0, 1, COUNT)
VECTORS = RANDOM.normal(0, 1, (COUNT, 3))
VECTOR_GUESSES = VECTORS + RANDOM.normal(0, 1, (COUNT, 3))
EVENTS = RANDOM.poisson(3, COUNT)
RATES = np.exp(RANDOM.normal(1, 0.3, COUNT))
LEVELS = (0.1, 0.5, 0.9)
QUANTILES = np.sort(RANDOM.normal(5, 2, (COUNT, 3)), axis=1)
RANKS = (SCORES[np.arange(COUNT), CHOSEN][:, np.newaxis] <= SCORES).sum(axis=1).astype(np.float64)

GIVEN: dict[str, tuple[Any, Any]] = {
    "binary": (TRUTH, LOGITS),
    "multiclass": (CHOSEN, SCORES),
    "multilabel": (MANY, MANY_LOGITS),
    "regression": (NUMBERS, GUESSES),
    "vector_regression": (VECTORS, VECTOR_GUESSES),
    "count": (EVENTS, np.log(RATES)),
    "quantiles": (NUMBERS, QUANTILES),
    "retrieval": (np.zeros(COUNT), RANKS),
    "ranking": (np.stack([TRUTH, GROUPS], axis=1), LOGITS),
    "embedding": (CHOSEN, SCORES),
}


def data(task: str, weights: Floats, *, parts: tuple[int, ...] = (0, 7, 101, COUNT)) -> Judged:
    """Of three uneven blocks."""
    labels, outputs = GIVEN[task]
    blocks = [np.arange(start, end) for start, end in itertools.pairwise(parts)]
    return joined(
        [
            judged(task, labels[rows], outputs[rows], weights[rows], rows, levels=LEVELS, groups=GROUPS[rows])
            for rows in blocks
        ]
    )


def said(logits: Any, threshold: float = 0.5) -> Any:
    return (1 / (1 + np.exp(-logits)) > threshold).astype(int)


def of_four(index: int, threshold: float = 0.5) -> Callable[[Any], float]:
    return lambda w: sk.confusion_matrix(TRUTH, said(LOGITS, threshold), sample_weight=w).ravel()[index]


def sensitivity(weights: Any) -> float:
    false, true, _ = sk.roc_curve(TRUTH, LOGITS, sample_weight=weights, drop_intermediate=False)
    return float(true[false <= 0.1 + 1e-12].max())


def expected_calibration_error(confidence: Any, truth: Any, bins: int = 10) -> Callable[[Any], float]:
    def value(weights: Any) -> float:
        total = 0.0
        for low in range(bins):
            inside = (confidence >= low / bins) & ((confidence < (low + 1) / bins) | (low == bins - 1))
            if weights[inside].sum() > 0:
                gap = np.average(confidence[inside], weights=weights[inside]) - np.average(
                    truth[inside], weights=weights[inside]
                )
                total += abs(gap) * weights[inside].sum()
        return float(total / weights.sum())

    return value


def each(metric: Callable[..., float]) -> Callable[[Any], float]:
    return lambda w: float(np.mean([metric(MANY[:, i], MANY_LOGITS[:, i], sample_weight=w) for i in range(LABELS)]))


def micro(metric: Callable[..., float], threshold: float = 0.5) -> Callable[[Any], float]:
    return lambda w: metric(
        MANY.ravel(), said(MANY_LOGITS, threshold).ravel(), sample_weight=np.repeat(w, LABELS), zero_division=0
    )


def macro(metric: Callable[..., float]) -> Callable[[Any], float]:
    return lambda w: metric(MANY, said(MANY_LOGITS), sample_weight=w, average="macro", zero_division=0)


def average(metric: Callable[..., float], how: str) -> Callable[[Any], float]:
    return lambda w: metric(CHOSEN, SCORES.argmax(axis=1), sample_weight=w, average=how, zero_division=0)


def at(metric: Callable[..., float], threshold: float = 0.5, **more: Any) -> Callable[[Any], float]:
    return lambda w: metric(TRUTH, said(LOGITS, threshold), sample_weight=w, **more)


def of_class(metric: Callable[..., float]) -> Callable[[Any], float]:
    return lambda w: metric(CHOSEN == 2, SCORES.argmax(axis=1) == 2, sample_weight=w)


def numbers(metric: Callable[..., float], labels: Any = NUMBERS, guesses: Any = GUESSES) -> Callable[[Any], float]:
    return lambda w: metric(labels, guesses, sample_weight=w)


def mean(values: Any) -> Callable[[Any], float]:
    return lambda w: float(np.average(values, weights=w))


def percentile(values: Any, share: float) -> Callable[[Any], float]:
    def value(weights: Any) -> float:
        return float(np.quantile(values[weights > 0], share, weights=weights[weights > 0], method="inverted_cdf"))

    return value


def ranked(metric: str) -> Callable[[Any], float]:
    def value(weights: Any) -> float:
        found, sizes = [], []
        for group in np.unique(GROUPS):
            rows = group == GROUPS
            if TRUTH[rows].any():
                ndcg = sk.ndcg_score(TRUTH[rows][None], LOGITS[rows][None], k=3) if rows.sum() > 1 else 1.0
                best = LOGITS[rows][TRUTH[rows] == 1].max()
                found.append(ndcg if metric == "ndcg" else 1 / (LOGITS[rows] >= best).sum())
                sizes.append(weights[rows].mean())
        return float(np.average(found, weights=sizes))

    return value


def cosine(labels: Any, guesses: Any) -> Callable[[Any], float]:
    lengths = np.linalg.norm(labels, axis=1) * np.linalg.norm(guesses, axis=1)
    return mean((labels * guesses).sum(axis=1) / lengths)


ERRORS = np.abs(GUESSES - NUMBERS)
NEAREST = NearestNeighbors(n_neighbors=2, metric="cosine").fit(SCORES).kneighbors(SCORES)[1][:, 1]
LIKELIEST = SHARES.max(axis=1)
EXPECTED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "binary": {
        "auc": lambda w: sk.roc_auc_score(TRUTH, LOGITS, sample_weight=w),
        "pr_auc": lambda w: sk.average_precision_score(TRUTH, LOGITS, sample_weight=w),
        "log_loss": lambda w: sk.log_loss(TRUTH, PROBABILITIES, sample_weight=w),
        "accuracy": at(sk.accuracy_score),
        "accuracy@0.3": at(sk.accuracy_score, 0.3),
        "precision": at(sk.precision_score),
        "precision@0.8": at(sk.precision_score, 0.8),
        "recall": at(sk.recall_score),
        "f1@0.3": at(sk.f1_score, 0.3),
        "specificity": at(sk.recall_score, pos_label=0),
        "sensitivity_at_specificity@0.9": sensitivity,
        "balanced_accuracy": at(sk.balanced_accuracy_score),
        "mcc": at(sk.matthews_corrcoef),
        "mean_iou": at(sk.jaccard_score, average="macro"),
        "brier": lambda w: sk.brier_score_loss(TRUTH, PROBABILITIES, sample_weight=w),
        "calibration": lambda w: np.average(PROBABILITIES, weights=w) / np.average(TRUTH, weights=w),
        "ece": expected_calibration_error(PROBABILITIES, TRUTH),
        "ece@4": expected_calibration_error(PROBABILITIES, TRUTH, bins=4),
        "true_negatives": of_four(0),
        "false_positives": of_four(1),
        "false_negatives": of_four(2),
        "true_positives@0.3": of_four(3, 0.3),
        "mean_label": mean(TRUTH),
        "mean_prediction": mean(PROBABILITIES),
        "ndcg@3": ranked("ndcg"),
        "mrr": ranked("mrr"),
    },
    "multiclass": {
        "accuracy": lambda w: sk.accuracy_score(CHOSEN, SCORES.argmax(axis=1), sample_weight=w),
        "log_loss": lambda w: sk.log_loss(CHOSEN, SHARES, sample_weight=w),
        "top_k_accuracy@2": lambda w: sk.top_k_accuracy_score(CHOSEN, SCORES, k=2, sample_weight=w),
        "balanced_accuracy": lambda w: sk.balanced_accuracy_score(CHOSEN, SCORES.argmax(axis=1), sample_weight=w),
        "mcc": lambda w: sk.matthews_corrcoef(CHOSEN, SCORES.argmax(axis=1), sample_weight=w),
        "ece": expected_calibration_error(LIKELIEST, (SCORES.argmax(axis=1) == CHOSEN).astype(float)),
        "macro_precision": average(sk.precision_score, "macro"),
        "macro_recall": average(sk.recall_score, "macro"),
        "macro_f1": average(sk.f1_score, "macro"),
        "weighted_precision": average(sk.precision_score, "weighted"),
        "weighted_recall": average(sk.recall_score, "weighted"),
        "weighted_f1": average(sk.f1_score, "weighted"),
        "mean_iou": average(sk.jaccard_score, "macro"),
        "class_precision@2": of_class(sk.precision_score),
        "class_recall@2": of_class(sk.recall_score),
        "class_f1@2": of_class(sk.f1_score),
    },
    "multilabel": {
        "auc": each(sk.roc_auc_score),
        "pr_auc": each(sk.average_precision_score),
        "log_loss": lambda w: float(
            np.mean([sk.log_loss(MANY[:, i], 1 / (1 + np.exp(-MANY_LOGITS[:, i])), sample_weight=w) for i in range(3)])
        ),
        "accuracy": lambda w: 1 - sk.hamming_loss(MANY, said(MANY_LOGITS), sample_weight=w),
        "subset_accuracy": lambda w: sk.accuracy_score(MANY, said(MANY_LOGITS), sample_weight=w),
        "precision": micro(sk.precision_score),
        "recall@0.3": micro(sk.recall_score, 0.3),
        "f1": micro(sk.f1_score),
        "macro_precision": macro(sk.precision_score),
        "macro_recall": macro(sk.recall_score),
        "macro_f1": macro(sk.f1_score),
    },
    "regression": {
        "rmse": numbers(sk.root_mean_squared_error),
        "mse": numbers(sk.mean_squared_error),
        "mae": numbers(sk.mean_absolute_error),
        "mape": numbers(sk.mean_absolute_percentage_error),
        "relative_error": mean(ERRORS / np.abs(NUMBERS)),
        "r2": numbers(sk.r2_score),
        "median_ae": numbers(sk.median_absolute_error),
        "absolute_error_percentile": percentile(ERRORS, 0.9),
        "absolute_error_percentile@80": percentile(ERRORS, 0.8),
        "percentage_below@0.5": mean(ERRORS < 0.5),
        "cosine_similarity": mean(np.sign(NUMBERS * GUESSES)),
        "mean_label": mean(NUMBERS),
        "mean_prediction": mean(GUESSES),
    },
    "vector_regression": {
        "mse": numbers(sk.mean_squared_error, VECTORS, VECTOR_GUESSES),
        "r2": numbers(sk.r2_score, VECTORS, VECTOR_GUESSES),
        "cosine_similarity": cosine(VECTORS, VECTOR_GUESSES),
    },
    "count": {
        "poisson_deviance": numbers(sk.mean_poisson_deviance, EVENTS, RATES),
        "mae": numbers(sk.mean_absolute_error, EVENTS, RATES),
    },
    "quantiles": {
        "pinball": lambda w: float(
            np.mean(
                [
                    sk.mean_pinball_loss(NUMBERS, QUANTILES[:, place], alpha=level, sample_weight=w)
                    for place, level in enumerate(LEVELS)
                ]
            )
        ),
        "quantile_loss@0.9": lambda w: sk.mean_pinball_loss(NUMBERS, QUANTILES[:, 2], alpha=0.9, sample_weight=w),
        "coverage": mean((QUANTILES[:, 0] <= NUMBERS) & (QUANTILES[:, 2] >= NUMBERS)),
        "quantile_coverage@0.5": mean(QUANTILES[:, 1] >= NUMBERS),
    },
    "retrieval": {
        "recall_at@2": lambda w: sk.top_k_accuracy_score(CHOSEN, SCORES, k=2, sample_weight=w),
        "reciprocal_rank": lambda w: sk.label_ranking_average_precision_score(
            np.eye(CLASSES, dtype=int)[CHOSEN], SCORES, sample_weight=w
        ),
    },
    "ranking": {"ndcg@3": ranked("ndcg"), "mrr": ranked("mrr")},
    "embedding": {"nearest_accuracy": lambda w: np.average(CHOSEN[NEAREST] == CHOSEN, weights=w)},
}
CASES = [(task, name) for task, names in EXPECTED.items() for name in names]
CLOSE = {
    "absolute_error_percentile": 0.002,
    "absolute_error_percentile@80": 0.02,
}  # NumPy takes the lower of two where weights meet a share exactly


@pytest.mark.covers("met-classification", "met-regression-misc", "met-streaming")
@pytest.mark.parametrize(("task", "name"), CASES)
def test_a_metric_over_three_uneven_blocks_equals_scikit_learns_over_the_whole(task: str, name: str) -> None:
    metric = read_metric(name, task, place="test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for weights in (np.ones(COUNT), WEIGHTS):
            found = measured((metric,), data(task, weights))[name]
            assert found == pytest.approx(EXPECTED[task][name](weights), rel=CLOSE.get(name, 1e-9))


def test_every_metric_of_the_table_is_measured_and_held_to_another_library() -> None:
    tasks = {task for kind in KINDS.values() for task in kind.tasks}
    assert {task: sorted(names) for task, names in PREPARE.items()} == {
        task: sorted(name for name, kind in KINDS.items() if task in kind.tasks) for task in tasks
    }
    assert {name.partition("@")[0] for _, name in CASES} == set(KINDS)


@pytest.mark.covers("met-streaming")
@pytest.mark.parametrize("task", PREPARE)
def test_an_example_without_weight_is_not_there_and_one_of_weight_two_is_there_twice(task: str) -> None:
    weights = RANDOM.integers(0, 3, COUNT).astype(float)
    kinds = [name for name in PREPARE[task] if name not in ("ndcg", "mrr", "nearest_accuracy")]  # they compare rows
    asked = tuple(
        Metric(name, {"class": 1, "quantile": 0.5}.get(option.key, 0.9) if option and option.default is None else None)
        for name in kinds
        for option in [KINDS[name].option if task not in KINDS[name].without_option else None]
    )
    repeated = data(task, np.ones(COUNT)).at(np.repeat(np.arange(COUNT), weights.astype(int)))
    assert measured(asked, data(task, weights)) == pytest.approx(measured(asked, repeated))


@pytest.mark.parametrize("task", PREPARE)
def test_one_class_alone_or_one_example_leaves_out_what_is_not_defined_and_gives_no_nan(task: str) -> None:
    whole = data(task, np.ones(COUNT))
    everything = tuple(read_metric(name, task, place="test") for name in EXPECTED[task])
    for rows in (whole.labels == 0, whole.labels == 1, np.arange(COUNT) == 3):
        chosen = np.array(rows, bool).reshape(COUNT, -1).all(axis=1)
        values = measured(everything, whole.at(np.flatnonzero(chosen)))
        assert all(np.isfinite(value) for value in values.values())
