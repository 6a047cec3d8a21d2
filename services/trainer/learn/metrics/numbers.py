"""Metrics of predicted numbers: errors, counts, quantiles, ranks."""

from collections.abc import Callable

import numpy as np

from services.trainer.learn.metrics.judged import Floats, Judged, Weighed, mean_of

_TINY = float(np.finfo(np.float64).eps)


def errors(data: Judged) -> Floats:
    return data.outputs - data.labels


def per_example(terms: Floats) -> Floats:
    """The mean over the numbers of an example: [n, d] to [n]."""
    return terms if terms.ndim == 1 else terms.reshape(len(terms), -1).mean(axis=1)


def mse(data: Judged, option: float | None) -> Weighed:
    return mean_of(per_example(errors(data) ** 2))


def rmse(data: Judged, option: float | None) -> Weighed:
    squared = mse(data, option)

    def value(weights: Floats) -> float | None:
        found = squared(weights)
        return None if found is None else float(np.sqrt(found))

    return value


def mape(data: Judged, option: float | None) -> Weighed:
    """|error| / |label|, a share and no percentage, as scikit-learn has it: a label of 0 makes it huge."""
    return mean_of(per_example(np.abs(errors(data)) / np.maximum(np.abs(data.labels), _TINY)))


def relative_error(data: Judged, option: float | None) -> Weighed:
    """|error| / |label|, 0 where the label is 0: TensorFlow's mean_relative_error, normalised by the label."""
    size = np.abs(data.labels)
    return mean_of(per_example(np.divide(np.abs(errors(data)), size, out=np.zeros_like(size), where=size > 0)))


def percentage_below(data: Judged, option: float | None) -> Weighed:
    """The share of numbers whose absolute error is below the tolerance: 0 to 1."""
    return mean_of(per_example((np.abs(errors(data)) < float(option or 0.0)).astype(np.float64)))


def r2(data: Judged, option: float | None) -> Weighed:
    """1 minus the squared error over the labels' variance, the mean over a vector's numbers.

    Without variance it is 1 where nothing is wrong and else 0, as scikit-learn has it; not defined below two examples.
    """
    labels, missed = (values.reshape(len(values), -1) for values in (data.labels, errors(data)))

    def value(weights: Floats) -> float | None:
        total = weights.sum()
        if not total > 0 or np.count_nonzero(weights) < 2:
            return None
        column = weights[:, np.newaxis]
        mean = (labels * column).sum(axis=0) / total
        left, spread = (missed**2 * column).sum(axis=0), ((labels - mean) ** 2 * column).sum(axis=0)
        explained = 1.0 - np.divide(left, spread, out=(left > 0).astype(np.float64), where=spread > 0)
        return float(explained.mean())

    return value


def absolute_error_percentile(data: Judged, option: float | None) -> Weighed:
    return percentile_of(per_example(np.abs(errors(data))), 90.0 if option is None else option)


def percentile_of(values: Floats, percent: float) -> Weighed:
    """The smallest value with `percent` of the weight at or below it; where it is met exactly, the mean with the next.

    NumPy's averaged_inverted_cdf, with weights: the median of an even number of equal weights is the mean of two.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]

    def value(weights: Floats) -> float | None:
        placed = weights[order]
        there = placed > 0
        if not there.any():
            return None
        found, reached = ordered[there], np.cumsum(placed[there])
        wanted = percent / 100.0 * reached[-1]
        near = 1e-12 * reached[-1]
        first = min(int(np.searchsorted(reached, wanted - near)), len(found) - 1)
        after = min(first + 1, len(found) - 1) if abs(reached[first] - wanted) <= near else first
        return float((found[first] + found[after]) / 2)

    return value


def cosine_similarity(data: Judged, option: float | None) -> Weighed:
    """Of each example's vector and its prediction; 0 where one of them is 0, as Keras has it."""
    labels, outputs = (values.reshape(len(values), -1) for values in (data.labels, data.outputs))
    length = np.linalg.norm(labels, axis=1) * np.linalg.norm(outputs, axis=1)
    product = (labels * outputs).sum(axis=1)
    return mean_of(np.divide(product, length, out=np.zeros_like(product), where=length > 0))


def poisson_deviance(data: Judged, option: float | None) -> Weighed:
    """2 (y log(y / m) - y + m) of label y and expected count m."""
    labels, expected = data.labels, np.maximum(data.outputs, 1e-300)
    logs = np.log(np.divide(labels, expected, out=np.ones_like(expected), where=labels > 0))
    return mean_of(per_example(2 * (labels * logs - labels + expected)))


# quantiles


def pinball(data: Judged, option: float | None) -> Weighed:
    """The mean over the head's quantiles."""
    return mean_of(np.stack([_pinball(data, index) for index in range(len(data.levels))], axis=1).mean(axis=1))


def quantile_loss(data: Judged, option: float | None) -> Weighed:
    return _at_level(data, option, lambda index: _pinball(data, index))


def _pinball(data: Judged, index: int) -> Floats:
    level, error = data.levels[index], data.labels - data.outputs[:, index]
    return np.maximum(level * error, (level - 1) * error)


def coverage(data: Judged, option: float | None) -> Weighed:
    """The share of labels from the lowest quantile to the highest."""
    inside = (data.labels >= data.outputs.min(axis=1)) & (data.labels <= data.outputs.max(axis=1))
    return mean_of(inside)


def quantile_coverage(data: Judged, option: float | None) -> Weighed:
    """The share of labels at or below the quantile: near its level where it is right."""
    return _at_level(data, option, lambda index: (data.labels <= data.outputs[:, index]).astype(np.float64))


def _at_level(data: Judged, level: float | None, terms: Callable[[int], Floats]) -> Weighed:
    """Not defined for a level that the head does not have."""
    near = [index for index, known in enumerate(data.levels) if level is not None and abs(known - level) < 1e-9]
    return mean_of(terms(near[0])) if near else lambda weights: None


# ranks


def recall_at(data: Judged, k: float | None) -> Weighed:
    """The share of examples whose own item is among the first k: one item is right, so recall is 0 or 1 for each."""
    return mean_of(data.outputs <= float(k or 1))
