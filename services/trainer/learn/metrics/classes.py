"""Metrics of one class among several, and of several labels at once."""

from collections.abc import Callable

import numpy as np

from services.trainer.learn.metrics import binary
from services.trainer.learn.metrics.binary import OfCounts
from services.trainer.learn.metrics.judged import Floats, Judged, Weighed, mean_of, sums

# one class among several


def accuracy(data: Judged, option: float | None) -> Weighed:
    return mean_of(data.outputs == data.labels)


def top_k_accuracy(data: Judged, option: float | None) -> Weighed:
    return mean_of(data.columns["rank"] < int(option or 5))


def log_loss(data: Judged, option: float | None) -> Weighed:
    return mean_of(data.columns["loss"])


def ece(data: Judged, option: float | None) -> Weighed:
    right = (data.outputs == data.labels).astype(np.float64)
    return binary.calibration_error(data.columns["top"], right, int(option or 10))


OfClasses = Callable[[Floats, Floats, Floats], float | None]
"""By class: weight of the right ones, of its labels, of its predictions."""


def by_class(value_of: OfClasses) -> Callable[[Judged, float | None], Weighed]:
    """A metric of what is right, labelled and predicted of each class."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        labels, predicted = data.labels.astype(np.int64), data.outputs.astype(np.int64)
        right = labels == predicted

        def value(weights: Floats) -> float | None:
            if not weights.sum() > 0:
                return None
            count = data.class_count
            return value_of(
                sums(labels, weights * right, count),
                sums(labels, weights, count),
                sums(predicted, weights, count),
            )

        return value

    return prepare


def shares(above: Floats, below: Floats) -> Floats:
    """0 where there is nothing to divide by, as scikit-learn has it."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _averaged(of_class: Callable[[Floats, Floats, Floats], Floats], *, is_weighted: bool) -> OfClasses:
    """The mean over the classes that occur or are predicted, or weighted by how often they occur."""

    def value(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
        found = of_class(right, labelled, predicted)
        if is_weighted:
            return float((found * labelled).sum() / labelled.sum())
        there = (labelled > 0) | (predicted > 0)
        return float(found[there].mean())

    return value


def _precision(right: Floats, labelled: Floats, predicted: Floats) -> Floats:
    return shares(right, predicted)


def _recall(right: Floats, labelled: Floats, predicted: Floats) -> Floats:
    return shares(right, labelled)


def _f1(right: Floats, labelled: Floats, predicted: Floats) -> Floats:
    return shares(2 * right, labelled + predicted)


def _iou(right: Floats, labelled: Floats, predicted: Floats) -> Floats:
    return shares(right, labelled + predicted - right)


def _balanced(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
    return float(shares(right, labelled)[labelled > 0].mean())


def _mcc(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
    """Gorodkin: Comparing two K-category assignments by a K-category correlation coefficient, 2004."""
    total = labelled.sum()
    covariance = right.sum() * total - (labelled * predicted).sum()
    spread = (total**2 - (predicted**2).sum()) * (total**2 - (labelled**2).sum())
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


macro_precision = by_class(_averaged(_precision, is_weighted=False))
macro_recall = by_class(_averaged(_recall, is_weighted=False))
macro_f1 = by_class(_averaged(_f1, is_weighted=False))
weighted_precision = by_class(_averaged(_precision, is_weighted=True))
weighted_recall = by_class(_averaged(_recall, is_weighted=True))
weighted_f1 = by_class(_averaged(_f1, is_weighted=True))
mean_iou = by_class(_averaged(_iou, is_weighted=False))
balanced_accuracy = by_class(_balanced)
mcc = by_class(_mcc)


def for_class(of_counts: OfCounts) -> Callable[[Judged, float | None], Weighed]:
    """Of one class against all others; option: which class."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        return binary.counted(data.labels == option, data.outputs == option, of_counts)

    return prepare


# several labels at once


def each_label(of_label: Callable[[Floats, Floats], Weighed]) -> Callable[[Judged, float | None], Weighed]:
    """The mean over the labels for which it is defined."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        prepared = [of_label(data.labels[:, column], data.outputs[:, column]) for column in range(data.labels.shape[1])]

        def value(weights: Floats) -> float | None:
            found = [figure for figure in (measure(weights) for measure in prepared) if figure is not None]
            return sum(found) / len(found) if found else None

        return value

    return prepare


def label_log_loss(data: Judged, option: float | None) -> Weighed:
    return mean_of(binary.entropy(data.labels, data.outputs).mean(axis=1))


def label_accuracy(data: Judged, option: float | None) -> Weighed:
    """The share of right labels, all labels together; one minus the Hamming loss."""
    return mean_of((_predicted(data, option) == (data.labels > 0.5)).mean(axis=1))


def subset_accuracy(data: Judged, option: float | None) -> Weighed:
    return mean_of((_predicted(data, None) == (data.labels > 0.5)).all(axis=1))


def all_labels(of_counts: OfCounts) -> Callable[[Judged, float | None], Weighed]:
    """Of the four counts of all labels together (micro average)."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        width = data.labels.shape[1]
        flat = binary.counted((data.labels > 0.5).ravel(), _predicted(data, option).ravel(), of_counts)
        return lambda weights: flat(np.repeat(weights, width))

    return prepare


def macro_labels(above: Callable[[Floats, Floats, Floats], Floats]) -> Callable[[Judged, float | None], Weighed]:
    """The mean over all labels of a share; 0 for a label that has nothing to divide by."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        actual, predicted = (data.labels > 0.5).astype(np.float64), _predicted(data, None).astype(np.float64)

        def value(weights: Floats) -> float | None:
            if not weights.sum() > 0:
                return None
            column = weights[:, np.newaxis]
            sums = (
                (actual * predicted * column).sum(axis=0),
                (actual * column).sum(axis=0),
                (predicted * column).sum(axis=0),
            )
            return float(above(*sums).mean())

        return value

    return prepare


label_macro_precision = macro_labels(_precision)
label_macro_recall = macro_labels(_recall)
label_macro_f1 = macro_labels(_f1)


def _predicted(data: Judged, option: float | None) -> np.ndarray:
    return data.outputs > binary.logit(0.5 if option is None else option)
