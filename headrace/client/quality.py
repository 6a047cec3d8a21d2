"""How good predictions are against known labels: the same words as a version's own metrics."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-7


_OUTPUTS = {
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
    rows = [(output, label) for output, label in zip(predictions, labels, strict=True) if label is not None]
    if not rows or task not in _OUTPUTS:
        return {}
    name = prefix + _OUTPUTS[task]
    values = [output.get(name) if isinstance(output, dict) else output for output, _ in rows]
    if any(value is None for value in values):
        return {}
    outputs, truth = np.asarray(values, np.float64), np.asarray([label for _, label in rows], np.float64)
    if task in ("regression", "count"):
        errors = outputs - truth
        return {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    return _binary(outputs, truth) if task == "binary" else _multiclass(outputs, truth.astype(np.int64))


def _binary(outputs: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    found = {"accuracy": float(np.mean((outputs >= 0.5) == (truth >= 0.5)))}
    positives, negatives = int(truth.sum()), int((1 - truth).sum())
    if positives and negatives:
        found["auc"] = float((_ranks(outputs)[truth >= 0.5].sum() - positives * (positives + 1) / 2)
                             / (positives * negatives))  # fmt: skip
    chances = np.clip(np.where(truth >= 0.5, outputs, 1 - outputs), _SMALLEST, 1.0)
    return found | {"log_loss": float(-np.mean(np.log(chances)))}


def _multiclass(outputs: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, float]:
    chances = np.clip(outputs[np.arange(len(truth)), truth], _SMALLEST, 1.0)
    return {
        "accuracy": float(np.mean(outputs.argmax(axis=1) == truth)),
        "log_loss": float(-np.mean(np.log(chances))),
    }


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 1; equal values share the mean of theirs (Mann and Whitney's statistic)."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return means
