"""Metrics of one class among several, and of several labels at once."""

from collections.abc import Callable, Mapping

import numpy as np

from services.trainer.learn.metrics import binary
from services.trainer.learn.metrics.binary import OfCounts
from services.trainer.learn.metrics.judged import Floats, Judged, Weighed, mean_of, sums

# one class among several


def ece(data: Judged, option: float | None) -> Weighed:
    right = (data.outputs == data.labels).astype(np.float64)
    return binary.calibration_error(data.columns["top"], right, option)


OfClasses = Callable[[Floats, Floats, Floats], float | None]
"""By class: weight of the right predictions, of its labels, of its predictions."""


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
                sums(labels, weights * right, count), sums(labels, weights, count), sums(predicted, weights, count)
            )

        return value

    return prepare


def shares(above: Floats, below: Floats) -> Floats:
    """0 where there is nothing to divide by, as scikit-learn has it."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def averaged(of_class: Callable[[Floats, Floats, Floats], Floats], *, is_weighted: bool) -> OfClasses:
    """The mean over the classes that occur or are predicted, or weighted by how often they occur."""

    def value(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
        found = of_class(right, labelled, predicted)
        if is_weighted:
            return float((found * labelled).sum() / labelled.sum())
        there = (labelled > 0) | (predicted > 0)
        return float(found[there].mean())

    return value


OF_CLASS: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "precision": lambda right, labelled, predicted: shares(right, predicted),
    "recall": lambda right, labelled, predicted: shares(right, labelled),
    "f1": lambda right, labelled, predicted: shares(2 * right, labelled + predicted),
    "iou": lambda right, labelled, predicted: shares(right, labelled + predicted - right),
}
"""Of each class, from what is right, labelled and predicted of it."""


def _balanced(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
    return float(shares(right, labelled)[labelled > 0].mean())


def _mcc(right: Floats, labelled: Floats, predicted: Floats) -> float | None:
    """Gorodkin: Comparing two K-category assignments by a K-category correlation coefficient, 2004."""
    total = labelled.sum()
    covariance = right.sum() * total - (labelled * predicted).sum()
    spread = (total**2 - (predicted**2).sum()) * (total**2 - (labelled**2).sum())
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


BY_CLASS: Mapping[str, OfClasses] = {
    **{f"macro_{name}": averaged(OF_CLASS[name], is_weighted=False) for name in ("precision", "recall", "f1")},
    **{f"weighted_{name}": averaged(OF_CLASS[name], is_weighted=True) for name in ("precision", "recall", "f1")},
    "mean_iou": averaged(OF_CLASS["iou"], is_weighted=False),
    "balanced_accuracy": _balanced,
    "mcc": _mcc,
}


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


def label_accuracy(data: Judged, option: float | None) -> Weighed:
    """The share of right labels, all labels together; one minus the Hamming loss."""
    return mean_of((is_positive(data, option) == (data.labels > 0.5)).mean(axis=1))


def all_labels(of_counts: OfCounts) -> Callable[[Judged, float | None], Weighed]:
    """Of the four counts of all labels together (micro average)."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        width = data.labels.shape[1]
        flat = binary.counted((data.labels > 0.5).ravel(), is_positive(data, option).ravel(), of_counts)
        return lambda weights: flat(np.repeat(weights, width))

    return prepare


def macro_labels(above: Callable[[Floats, Floats, Floats], Floats]) -> Callable[[Judged, float | None], Weighed]:
    """The mean over all labels of a share; 0 for a label that has nothing to divide by."""

    def prepare(data: Judged, option: float | None) -> Weighed:
        actual, predicted = (data.labels > 0.5).astype(np.float64), is_positive(data, None).astype(np.float64)

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


def is_positive(data: Judged, option: float | None) -> np.ndarray:
    return data.outputs > binary.logit(0.5 if option is None else option)
