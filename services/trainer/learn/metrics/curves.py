"""What a page can draw of a version: a few dozen points for any number of examples.

| task        | drawings                                                                                             |
|-------------|------------------------------------------------------------------------------------------------------|
| all         | task, count                                                                                          |
| binary      | roc [[false positive rate, true positive rate]], pr [[recall, precision]], calibration, confusion    |
| multiclass  | calibration (of the highest class), confusion, classes [[class, precision, recall, share of labels]] |
| multilabel  | labels [[label, precision, recall, share of positives]]                                              |
| numbers     | error_percentiles [[percent, absolute error]], residuals [[from, to, share]],                        |
|             | predicted [[mean prediction, mean label, share]], tenths of the examples by prediction               |
| quantiles   | levels [[level, share of labels at or below]]                                                        |
| retrieval   | recall_at [[k, share of examples whose item is among the first k]]                                   |

scores: [[up to, count]], twentieths of the answers of binary (probability), multiclass (of the highest class) and
numbers; null: all above.
calibration: [[mean prediction, share of positives, share of all weight]], by tenths of probability, without empty ones.
confusion: {classes, counts}: a row per label, a column per prediction, sums of weights; past 20 classes the most
frequent, and then "others". All shares are of weight.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.learn.metrics import binary, classes, numbers
from services.trainer.learn.metrics.judged import Floats, Judged, sums

_POINTS, _BINS, _SHOWN_CLASSES = 50, 10, 20
_PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
_RANKS = (1, 2, 5, 10, 20, 50, 100)
Drawing = Mapping[str, Any]


def drawings(data: Judged | None) -> dict[str, Any]:
    """JSON-ready, as the table above says; only task and count where nothing weighs."""
    if data is None:
        return {}
    drawing: dict[str, Any] = {"task": data.task, "count": data.count}
    if not data.weights.sum() > 0 or data.task not in _DRAW:
        return drawing
    return drawing | dict(_DRAW[data.task](data))


def _binary(data: Judged) -> Drawing:
    actual = data.labels > 0.5
    drawn: dict[str, Any] = {
        "calibration": _calibration(binary.probabilities(data.outputs), data.labels, data.weights),
        "confusion": _confusion(actual.astype(np.int64), (data.outputs > 0).astype(np.int64), data.weights, 2),
        "scores": _scores(binary.probabilities(data.outputs)),
    }
    if 0 < (data.weights * actual).sum() < data.weights.sum():
        false, true, taken = binary.roc_points(data.labels, data.outputs, data.weights)
        rate = (data.weights * actual).sum() / data.weights.sum()
        precision = np.divide(true * rate, taken, out=np.ones_like(true), where=taken > 0)
        drawn["roc"] = _thinned(false, true)
        drawn["pr"] = _thinned(true, precision)
    return drawn


def _multiclass(data: Judged) -> Drawing:
    labels, predicted = data.labels.astype(np.int64), data.outputs.astype(np.int64)
    count = data.class_count
    right = sums(labels, data.weights * (labels == predicted), count)
    labelled = sums(labels, data.weights, count)
    answered = sums(predicted, data.weights, count)
    precision, recall = classes.shares(right, answered), classes.shares(right, labelled)
    shown = _most_frequent(labelled + answered)
    return {
        "calibration": _calibration(data.columns["top"], (labels == predicted).astype(np.float64), data.weights),
        "scores": _scores(data.columns["top"]),
        "confusion": _confusion(labels, predicted, data.weights, count),
        "classes": [
            [index, *_rounded(precision[index], recall[index], labelled[index] / labelled.sum())]
            for index in shown.tolist()
        ],
    }


def _multilabel(data: Judged) -> Drawing:
    column = data.weights[:, np.newaxis]
    actual, answered = data.labels > 0.5, data.outputs > 0
    right, labelled = (actual & answered) * column, actual * column
    precision = classes.shares(right.sum(axis=0), (answered * column).sum(axis=0))
    recall = classes.shares(right.sum(axis=0), labelled.sum(axis=0))
    share = labelled.sum(axis=0) / data.weights.sum()
    shown = _most_frequent(share)
    return {"labels": [[index, *_rounded(precision[index], recall[index], share[index])] for index in shown.tolist()]}


def _numbers(data: Judged) -> Drawing:
    errors = (data.outputs - data.labels).reshape(data.count, -1).mean(axis=1)
    percentiles = [[percent, numbers.percentile_of(np.abs(errors), percent)(data.weights)] for percent in _PERCENTS]
    return {
        "error_percentiles": percentiles,
        "residuals": _histogram(errors, data.weights),
        "predicted": _tenths(data),
        **({"scores": _scores(data.outputs.reshape(-1))} if data.outputs.size == data.count else {}),
    }


def _quantiles(data: Judged) -> Drawing:
    shares = [
        float(((data.labels <= data.outputs[:, place]) * data.weights).sum() / data.weights.sum())
        for place in range(len(data.levels))
    ]
    return {"levels": [[level, share] for level, share in zip(data.levels, shares, strict=True)]}


def _ranks(data: Judged) -> Drawing:
    return {"recall_at": [[k, numbers.recall_at(data, k)(data.weights)] for k in _RANKS]}


_DRAW: Mapping[str, Callable[[Judged], Drawing]] = {
    "binary": _binary,
    "multiclass": _multiclass,
    "multilabel": _multilabel,
    "regression": _numbers,
    "vector_regression": _numbers,
    "count": _numbers,
    "quantiles": _quantiles,
    "retrieval": _ranks,
}


def _thinned(across: Floats, up: Floats) -> list[list[float]]:
    """At most _POINTS of the points, evenly along the way across and up, the first and the last among them."""
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(across)) + np.abs(np.diff(up)))])
    wanted = np.linspace(0.0, length[-1], _POINTS)
    chosen = np.unique([0, *np.searchsorted(length, wanted[1:-1]).tolist(), len(length) - 1])
    return [_rounded(across[point], up[point]) for point in chosen.tolist()]


def _calibration(confidence: Floats, truth: Floats, weights: Floats) -> list[list[float]]:
    group = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    total, mean, true = (sums(group, weights * values, _BINS) for values in (np.ones_like(truth), confidence, truth))
    return [
        _rounded(mean[part] / total[part], true[part] / total[part], total[part] / total.sum())
        for part in np.flatnonzero(total > 0).tolist()
    ]


def _confusion(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], weights: Floats, class_count: int
) -> dict[str, Any]:
    often = _most_frequent(sums(labels, weights, class_count) + sums(predicted, weights, class_count))
    shown = np.sort(often) if class_count > _SHOWN_CLASSES else np.arange(class_count)
    place = np.full(class_count, len(shown), np.int64)
    place[shown] = np.arange(len(shown))
    width = len(shown) + (len(shown) < class_count)
    counts = sums(place[labels] * width + place[predicted], weights, width * width)
    return {
        "classes": [*shown.tolist(), *(["others"] if width > len(shown) else [])],
        "counts": [_rounded(*row) for row in counts.reshape(width, width).tolist()],
    }


def _most_frequent(totals: Floats) -> NDArray[np.int64]:
    """The classes that occur, the most frequent first, at most _SHOWN_CLASSES."""
    order = np.argsort(-totals, kind="stable")[:_SHOWN_CLASSES]
    return order[totals[order] > 0]


def _histogram(values: Floats, weights: Floats) -> list[list[float]]:
    """Twenty equally wide steps between the 1st and the 99th percentile; what lies beyond is in the outer steps."""
    low, high = (numbers.percentile_of(values, percent)(weights) or 0.0 for percent in (1, 99))
    if not high > low:
        return [[low, high, 1.0]]
    shares, edges = np.histogram(np.clip(values, low, high), bins=2 * _BINS, range=(low, high), weights=weights)
    return [_rounded(edges[part], edges[part + 1], shares[part] / shares.sum()) for part in range(len(shares))]


def _scores(values: Floats) -> list[list[float | None]]:
    """Equal answers fall into the same part, so there may be fewer."""
    edges = np.unique(np.quantile(values, np.arange(1, 2 * _BINS) / (2 * _BINS)).astype(np.float32))
    counts = np.bincount(np.searchsorted(edges, values.astype(np.float32)), minlength=len(edges) + 1)
    return [[edge, count] for edge, count in zip([*edges.tolist(), None], counts.tolist(), strict=True)]


def _tenths(data: Judged) -> list[list[float]]:
    predicted, labels = (values.reshape(data.count, -1).mean(axis=1) for values in (data.outputs, data.labels))
    order = np.argsort(predicted, kind="stable")
    found = []
    for rows in np.array_split(order, min(_BINS, data.count)):
        weights = data.weights[rows]
        if weights.sum() > 0:
            means = ((values[rows] * weights).sum() / weights.sum() for values in (predicted, labels))
            found.append(_rounded(*means, weights.sum() / data.weights.sum()))
    return found


def _rounded(*values: float) -> list[float]:
    """Six digits: it is drawn, and not reckoned with."""
    return [float(f"{value:.6g}") for value in values]
