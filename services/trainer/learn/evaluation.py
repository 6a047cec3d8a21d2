"""Metrics of predictions, in float64 over whole slices: no bins, no estimates.

| binary      | auc, log_loss, accuracy (at probability 0.5), calibration (mean prediction / mean label)              |
| multiclass  | accuracy, log_loss                                                                                    |
| regression  | rmse, mae                                                                                             |

Weighted by the stream's weight feature where it has one. A metric that is not defined on a slice (auc without both
classes, calibration without a positive, anything without examples) is left out.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Task
from services.trainer.families.port import Columns, ScoreFunction
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.user_module import MetricsFunction
from services.trainer.learn import culprits

Floats = NDArray[np.float64]
CompiledMetrics = Callable[[NDArray[np.generic], NDArray[np.float32], NDArray[np.float32]], dict[str, float]]
"""What a module's model has compiled: labels, outputs, weights in; numbers by name out."""
_FEW = 10


def scored(score: ScoreFunction, columns: Columns, count: int) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Outputs of `count` rows, and the reason for each row that has none: a layer refuses it, or the output is NaN.

    Raises:
        DefinitionFailedError: more than half of the rows are refused.
    """
    outputs, found = np.zeros(0, np.float32), dict[int, str]()
    try:
        outputs = score(columns, count)
    except DefinitionFailedError as error:
        if not isinstance(error.__cause__, tf.errors.InvalidArgumentError):
            raise
        refused = culprits.find(range(count), lambda rows: _refusal(score, columns, rows), limit=max(_FEW, count // 2))
        if refused.are_all:
            raise
        found = refused.reasons
        kept = [row for row in range(count) if row not in found]
        answered = score(_rows(columns, kept), len(kept))
        outputs = np.full((count, *answered.shape[1:]), np.nan, np.float32)
        outputs[kept] = answered
    finite = np.isfinite(outputs.reshape(count, int(np.prod(outputs.shape[1:])))).all(axis=1)
    for row in np.flatnonzero(~finite).tolist():
        found.setdefault(row, "the model's output for it is not finite")
    return outputs, found


def _refusal(score: ScoreFunction, columns: Columns, rows: Sequence[int]) -> str:
    try:
        score(_rows(columns, rows), len(rows))
    except DefinitionFailedError as error:
        return str(error)
    return ""


def _rows(columns: Columns, rows: Sequence[int]) -> dict[str, tf.Tensor]:
    return {name: tf.gather(column, tf.constant(list(rows), tf.int64)) for name, column in columns.items()}


class Slice:
    """Predictions over one slice, collected block by block; `metrics` at the end."""

    def __init__(
        self, task: Task, user_metrics: MetricsFunction | None = None, compiled: CompiledMetrics | None = None
    ) -> None:
        """`user_metrics`, `compiled`: the definition's own; then all outputs are kept, else two numbers per example."""
        self._task, self._user_metrics, self._compiled = task, user_metrics, compiled
        self._columns: tuple[list[Floats], list[Floats], list[Floats]] = ([], [], [])
        self._outputs: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.generic]] = []

    @property
    def count(self) -> int:
        return sum(len(part) for part in self._columns[0])

    def add(self, labels: NDArray[np.generic], outputs: NDArray[np.float32], weights: NDArray[np.float32]) -> None:
        """Labels [n], the network's outputs [n] or [n, classes] (logits or predictions), weights [n]."""
        first, second = labels.astype(np.float64), outputs.astype(np.float64)
        if self._task == "multiclass":
            first, second = _multiclass_terms(labels.astype(np.int64), second)
        for column, values in zip(self._columns, (first, second, weights.astype(np.float64)), strict=True):
            column.append(values)
        if self._user_metrics is not None or self._compiled is not None:
            self._outputs.append(outputs)
            self._labels.append(labels)

    def metrics(self) -> dict[str, float]:
        """Raises DefinitionFailedError when the definition's own metrics raise or are not finite numbers."""
        if not self.count:
            return {}
        first, second, weights = (np.concatenate(column) for column in self._columns)
        if not weights.sum() > 0:
            return {}
        metrics = _MEASURES[self._task](first, second, weights)
        own = self._own_metrics()
        return own | metrics if self._compiled else metrics | own

    def _own_metrics(self) -> dict[str, float]:
        if self._user_metrics is None and self._compiled is None:
            return {}
        labels, outputs = np.concatenate(self._labels), np.concatenate(self._outputs)
        values: dict[str, float] = {}
        with blame_definition("metrics"):
            if self._compiled is not None:
                values |= self._compiled(labels, outputs, np.concatenate(self._columns[2]).astype(np.float32))
            if self._user_metrics is not None:
                own = self._user_metrics(labels, outputs)
                values |= {str(name): float(value) for name, value in own.items()}
        bad = [name for name, value in values.items() if not np.isfinite(value)]
        if bad:
            raise DefinitionFailedError(f"metrics: {', '.join(bad)} is not finite")
        return values


def auc(labels: Floats, scores: Floats, weights: Floats) -> float | None:
    """Area under the ROC curve: the probability that a positive scores above a negative, ties counting one half.

    Exact, by ranks (Mann, Whitney: On a test of whether one of two random variables is stochastically larger, 1947).
    None without both classes.
    """
    positive, negative = weights * (labels > 0.5), weights * (labels <= 0.5)
    total = float(positive.sum()) * float(negative.sum())
    if not total > 0:
        return None
    _, group = np.unique(scores, return_inverse=True)
    positives, negatives = np.bincount(group, positive), np.bincount(group, negative)
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + 0.5 * negatives)).sum() / total)


def _binary(labels: Floats, logits: Floats, weights: Floats) -> dict[str, float]:
    probabilities = 0.5 * (1.0 + np.tanh(0.5 * logits))
    losses = np.maximum(logits, 0.0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    metrics = {
        "log_loss": _mean(losses, weights),
        "accuracy": _mean((logits > 0.0) == (labels > 0.5), weights),
    }
    area = auc(labels, logits, weights)
    if area is not None:
        metrics["auc"] = area
    positive_rate = _mean(labels, weights)
    if positive_rate > 0:
        metrics["calibration"] = _mean(probabilities, weights) / positive_rate
    return metrics


def _multiclass_terms(labels: NDArray[np.int64], logits: Floats) -> tuple[Floats, Floats]:
    """Per example: cross-entropy, and 1.0 where the highest logit (the first of equals) is the label's."""
    top = logits.max(axis=1)
    partition = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    losses = partition - logits[np.arange(len(labels)), labels]
    return losses, (logits.argmax(axis=1) == labels).astype(np.float64)


def _multiclass(losses: Floats, correct: Floats, weights: Floats) -> dict[str, float]:
    return {"accuracy": _mean(correct, weights), "log_loss": _mean(losses, weights)}


def _regression(labels: Floats, predictions: Floats, weights: Floats) -> dict[str, float]:
    errors = predictions - labels
    return {"rmse": float(np.sqrt(_mean(errors**2, weights))), "mae": _mean(np.abs(errors), weights)}


def _mean(values: Floats | NDArray[np.bool_], weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


_MEASURES: Mapping[Task, Callable[[Floats, Floats, Floats], dict[str, float]]] = {
    "binary": _binary,
    "multiclass": _multiclass,
    "regression": _regression,
}
