"""Metrics of a label that is true or not, from logits: by rank, at a threshold, and of the probabilities themselves."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from services.trainer.learn.metrics.judged import Batched, Floats, Judged, Weighed, mean_of, quotients, ratio, sums

OfCounts = Callable[[float, float, float, float], float | None]
"""True positives, false positives, true negatives, false negatives, each a sum of weights, to a value."""


def probabilities(logits: Floats) -> Floats:
    """sigmoid, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def entropy(labels: Floats, logits: Floats) -> Floats:
    """Per example, of the logits: finite at any."""
    return np.maximum(logits, 0.0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))


def auc_of(labels: Floats, scores: Floats) -> Weighed:
    """Area under the ROC curve: the probability that a positive scores above a negative, ties counting one half.

    Exact, by ranks (Mann, Whitney: On a test of whether one of two random variables is stochastically larger, 1947).
    Not defined without both classes.
    """
    _, group = np.unique(scores, return_inverse=True)
    rising = np.argsort(group, kind="stable")
    positives, negatives = (rising[chosen[rising]] for chosen in (labels > 0.5, labels <= 0.5))
    lowest, highest = (np.searchsorted(group[negatives], group[positives], side) for side in ("left", "right"))
    has_ties = bool((lowest < highest).any())

    def many(weights: Floats) -> Floats:
        of_positives, of_negatives = (np.take(weights.T, chosen, axis=1) for chosen in (positives, negatives))
        below = np.zeros((weights.shape[1], len(negatives) + 1))
        np.cumsum(of_negatives, axis=1, out=below[:, 1:])
        beaten = np.take(below, lowest, axis=1)
        if has_ties:
            beaten = 0.5 * (beaten + np.take(below, highest, axis=1))
        return quotients(np.einsum("kp,kp->k", of_positives, beaten), of_positives.sum(axis=1) * below[:, -1])

    def value(weights: Floats) -> float | None:
        positive, negative = weights * (labels > 0.5), weights * (labels <= 0.5)
        total = float(positive.sum()) * float(negative.sum())
        if not total > 0:
            return None
        positives, negatives = sums(group, positive), sums(group, negative)
        below = np.cumsum(negatives) - negatives
        return float((positives * (below + 0.5 * negatives)).sum() / total)

    return Batched(value, many)


def pr_auc_of(labels: Floats, scores: Floats) -> Weighed:
    """Average precision: precision at each threshold times the recall it adds, without interpolation.

    As scikit-learn's average_precision_score. Not defined without a positive.
    """
    _, group = np.unique(-scores, return_inverse=True)

    def value(weights: Floats) -> float | None:
        positives = sums(group, weights * (labels > 0.5))
        total = positives.sum()
        if not total > 0:
            return None
        found, taken = np.cumsum(positives), np.cumsum(sums(group, weights))
        precision = np.divide(found, taken, out=np.zeros_like(found), where=taken > 0)
        return float((precision * positives).sum() / total)

    return value


def roc_points(labels: Floats, scores: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """False positive rate, true positive rate and share of all weight, from the strictest threshold on; all from 0."""
    _, group = np.unique(-scores, return_inverse=True)
    positives, negatives = sums(group, weights * (labels > 0.5)), sums(group, weights * (labels <= 0.5))
    true, false = (np.concatenate([[0.0], np.cumsum(counts)]) for counts in (positives, negatives))
    return false / max(false[-1], 1e-300), true / max(true[-1], 1e-300), (true + false) / max(weights.sum(), 1e-300)


def sensitivity_at_specificity(data: Judged, option: float | None) -> Weighed:
    """The largest share of positives found at a threshold that lets through so few negatives; option: specificity."""
    _, group = np.unique(-data.outputs, return_inverse=True)
    allowed = 1.0 - float(option or 0.0)

    def value(weights: Floats) -> float | None:
        positives = sums(group, weights * (data.labels > 0.5))
        negatives = sums(group, weights * (data.labels <= 0.5))
        if not positives.sum() > 0 or not negatives.sum() > 0:
            return None
        true, false = np.cumsum(positives), np.cumsum(negatives)
        fits = false <= allowed * false[-1] * (1 + 1e-12)
        return float(true[fits].max(initial=0.0) / true[-1])

    return value


def calibration(data: Judged, option: float | None) -> Weighed:
    """The mean prediction over the mean label; not defined without a positive."""
    predicted, actual = mean_of(probabilities(data.outputs)), mean_of(data.labels)

    def value(weights: Floats) -> float | None:
        rate = actual(weights)
        mean = predicted(weights)
        return mean / rate if rate and mean is not None and rate > 0 else None

    return value


def calibration_error(confidence: Floats, truth: Floats, bins: float | None) -> Weighed:
    """|mean confidence - mean truth| of equally wide bins (10 by default) of confidence, weighed by their shares.

    Expected calibration error (Guo et al.: On Calibration of Modern Neural Networks, 2017).
    """
    count = int(bins or 10)
    group = np.minimum((confidence * count).astype(np.int64), count - 1)

    def value(weights: Floats) -> float | None:
        gaps = np.abs(sums(group, weights * (confidence - truth), count)).sum()
        return ratio(float(gaps), float(weights.sum()))

    return value


def at_threshold(of_counts: OfCounts) -> Callable[[Judged, float | None], Weighed]:
    """A metric of the four confusion counts; option: the probability above which an example counts as positive."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        return counted(data.labels > 0.5, data.outputs > logit(0.5 if option is None else option), of_counts)

    return prepare


def counted(actual: np.ndarray, predicted: np.ndarray, of_counts: OfCounts) -> Weighed:
    """`actual`, `predicted`: bool [n]."""
    code = 2 * actual.astype(np.int64) + predicted

    def value(weights: Floats) -> float | None:
        true_negative, false_positive, false_negative, true_positive = sums(code, weights, 4).tolist()
        if not weights.sum() > 0:
            return None
        return of_counts(true_positive, false_positive, true_negative, false_negative)

    def many(weights: Floats) -> Floats:
        true_negative, false_positive, false_negative, true_positive = (
            (code == place).astype(np.float64) @ weights for place in range(4)
        )
        counts = zip(true_positive, false_positive, true_negative, false_negative, strict=True)
        found = [of_counts(*map(float, row)) if sum(row) > 0 else None for row in counts]
        return np.array([np.nan if value is None else value for value in found])

    return Batched(value, many)


def logit(probability: float) -> float:
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else math.log(probability / (1 - probability))


def _mean_there(*shares: float | None) -> float | None:
    """Of those that are defined."""
    found = [share for share in shares if share is not None]
    return sum(found) / len(found) if found else None


def _mcc(tp: float, fp: float, tn: float, fn: float) -> float:
    """Matthews correlation coefficient; 0 where one class alone occurs or is predicted, as scikit-learn has it."""
    product = math.sqrt(tp + fp) * math.sqrt(tp + fn) * math.sqrt(tn + fp) * math.sqrt(tn + fn)
    return (tp * tn - fp * fn) / product if product > 0 else 0.0


COUNTED: Mapping[str, OfCounts] = {
    "accuracy": lambda tp, fp, tn, fn: ratio(tp + tn, tp + fp + tn + fn),
    "precision": lambda tp, fp, tn, fn: ratio(tp, tp + fp),
    "recall": lambda tp, fp, tn, fn: ratio(tp, tp + fn),
    "f1": lambda tp, fp, tn, fn: ratio(2 * tp, 2 * tp + fp + fn),
    "specificity": lambda tp, fp, tn, fn: ratio(tn, tn + fp),
    "balanced_accuracy": lambda tp, fp, tn, fn: _mean_there(ratio(tp, tp + fn), ratio(tn, tn + fp)),
    "mean_iou": lambda tp, fp, tn, fn: _mean_there(ratio(tp, tp + fp + fn), ratio(tn, tn + fp + fn)),
    "mcc": _mcc,
    "true_positives": lambda tp, fp, tn, fn: tp,
    "false_positives": lambda tp, fp, tn, fn: fp,
    "true_negatives": lambda tp, fp, tn, fn: tn,
    "false_negatives": lambda tp, fp, tn, fn: fn,
}
"""By metric: recall and its like are means over the classes that occur, IoU also over those that are predicted."""
