"""How good predictions are against known labels: the same words as a version's own metrics.

What a metric needs of a prediction and its label is a row of two numbers, so that a window of rows is small for every
model: (probability, label) of binary, (probability of the true class, whether it was the likeliest) of
multiclass, (prediction, label) of regression and count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-7
Array = NDArray[np.float64]

OUTPUTS: Mapping[str, str] = {
    "binary": "probability",
    "multiclass": "probabilities",
    "regression": "prediction",
    "count": "prediction",
}
"""By task, the output that is measured."""


def metrics_of(
    task: str, predictions: Sequence[Any], labels: Sequence[float | None], *, prefix: str = ""
) -> dict[str, float]:
    """Over the rows that have a label; empty where none has, or the outputs are not the task's.

    binary: accuracy (at 0.5), auc, log_loss; multiclass: accuracy, log_loss; regression, count: rmse, mae.

    Args:
        prefix: of the outputs' names; a head's where a model has several.
    """
    known = [(output, label) for output, label in zip(predictions, labels, strict=True) if label is not None]
    if not known or task not in OUTPUTS:
        return {}
    name = prefix + OUTPUTS[task]
    values = [output.get(name) if isinstance(output, dict) else output for output, _ in known]
    if any(value is None for value in values):
        return {}
    rows = [row_of(task, np.asarray(value), label) for value, (_, label) in zip(values, known, strict=True)]
    return metrics_of_rows(task, np.asarray(rows, np.float64))


def row_of(task: str, output: NDArray[Any], label: float) -> tuple[float, float]:
    """Of one example: `output` as the model answers it, shape [] or [1], of multiclass [k]. Raises ValueError: they do
    not go together: the output has no number, or the label is none of its classes."""
    flat = output.astype(np.float64).ravel()
    if task == "multiclass":
        index = int(label)
        if not 0 <= index < len(flat):
            raise ValueError(f"class {index} is none of {len(flat)}")
        return float(flat[index]), float(flat.argmax() == index)
    if len(flat) != 1:
        raise ValueError(f"the output has {len(flat)} numbers, expected one")
    return float(flat[0]), float(label)


def metrics_of_rows(task: str, rows: Array) -> dict[str, float]:
    """As metrics_of. `rows`: shape [n, 2], n from 1."""
    auc = _auc(rows[:, 0], rows[:, 1] >= 0.5) if task == "binary" else {}
    return metrics_of_sums(add_sums({}, task, rows), len(rows)) | auc


def add_sums(sums: Mapping[str, float], task: str, rows: Array) -> dict[str, float]:
    """Sums over examples, from which their means follow, of these rows as well: for what no window holds."""
    first, second = rows[:, 0], rows[:, 1]
    if task in ("regression", "count"):
        parts = {"squared": (first - second) ** 2, "absolute": np.abs(first - second)}
    else:
        chances = np.where(second >= 0.5, first, 1 - first) if task == "binary" else first
        wrong = losses_of(task, "error_rate", rows)
        parts = {"wrong": wrong, "log_loss": -np.log(np.clip(chances, _SMALLEST, 1.0))}
    return {name: sums.get(name, 0.0) + float(values.sum()) for name, values in parts.items()}


def metrics_of_sums(sums: Mapping[str, float], count: int) -> dict[str, float]:
    """The metrics that are means: all but auc."""
    if "squared" in sums:
        return {"rmse": float(np.sqrt(sums["squared"] / count)), "mae": sums["absolute"] / count}
    return {"accuracy": 1 - sums["wrong"] / count, "log_loss": sums["log_loss"] / count}


LOSSES: Mapping[str, tuple[str, ...]] = {
    "error_rate": ("binary", "multiclass"),
    "brier_score": ("binary",),
    "mae": ("regression", "count"),
}
"""Losses of single examples whose mean is the metric, by metric; and the tasks that have it."""


MEASURED_AS: Mapping[str, str] = {"error_rate": "accuracy", "brier_score": "brier", "mae": "mae"}
"""By metric of LOSSES, the metric of an evaluation that has its mean; the error rate is 1 less the accuracy."""


def losses_of(task: str, metric: str, rows: Array) -> Array:
    """Of each row, shape [n]."""
    first, second = rows[:, 0], rows[:, 1]
    if metric == "mae":
        return np.abs(first - second)
    if metric == "brier_score":
        return (first - second) ** 2
    wrong = (first >= 0.5) != (second >= 0.5) if task == "binary" else second < 0.5
    return wrong.astype(np.float64)


def _auc(scores: Array, is_positive: NDArray[np.bool_]) -> dict[str, float]:
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        return {}
    above = _ranks(scores)[is_positive].sum() - positives * (positives + 1) / 2
    return {"auc": float(above / (positives * negatives))}


def _ranks(values: Array) -> Array:
    """From 1; equal values share the mean of theirs (Mann and Whitney's statistic)."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Array = (last - (counts - 1) / 2)[places]
    return means
