"""Metrics of predictions, in float64 over whole slices: no bins, no estimates.

| binary      | auc, log_loss, accuracy (at probability 0.5), calibration (mean prediction / mean label)              |
| multiclass  | accuracy, log_loss                                                                                    |
| multilabel  | log_loss, accuracy: means over all labels of all examples                                             |
| regression, vector_regression, count | rmse, mae: of a vector over all of its numbers; of a count's rate            |
| quantiles   | pinball: mean over the levels of the check function (families/losses.py)                              |

Weighted by the stream's weight feature where it has one. A metric that is not defined on a slice (auc without both
classes, calibration without a positive, anything without examples) is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.losses import Task
from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Columns, Outputs, ScoreFunction
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.user_module import MetricsFunction
from services.trainer.learn import culprits

Floats = NDArray[np.float64]
Labels: TypeAlias = Mapping[str, NDArray[np.generic]]
"""By head."""
CompiledMetrics = Callable[[Labels, Outputs, Outputs], dict[str, float]]
"""What a module's model has compiled: labels, outputs, weights in, all by head; numbers by name out."""
_FEW = 10


def scored(score: ScoreFunction, columns: Columns, count: int) -> tuple[Outputs, dict[int, str]]:
    """Outputs of `count` rows, and the reason for each row that has none: a layer refuses it, or the output is NaN.

    Raises:
        DefinitionFailedError: more than half of the rows are refused.
    """
    outputs: Outputs = {}
    found = dict[int, str]()
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
        outputs = {name: _spread(values, kept, count) for name, values in answered.items()}
    finite = np.ones(count, np.bool_)
    for values in outputs.values():
        finite &= np.isfinite(values.reshape(count, int(np.prod(values.shape[1:])))).all(axis=1)
    for row in np.flatnonzero(~finite).tolist():
        found.setdefault(row, "the model's output for it is not finite")
    return outputs, found


def _spread(values: NDArray[np.float32], kept: Sequence[int], count: int) -> NDArray[np.float32]:
    """The rows at the places `kept` of `count`; the others are NaN."""
    spread = np.full((count, *values.shape[1:]), np.nan, np.float32)
    spread[kept] = values
    return spread


def _refusal(score: ScoreFunction, columns: Columns, rows: Sequence[int]) -> str:
    try:
        score(_rows(columns, rows), len(rows))
    except DefinitionFailedError as error:
        return str(error)
    return ""


def _rows(columns: Columns, rows: Sequence[int]) -> dict[str, tf.Tensor]:
    return {name: tf.gather(column, tf.constant(list(rows), tf.int64)) for name, column in columns.items()}


class Slice:
    """Predictions of one head over one slice, collected block by block; `metrics` at the end."""

    def __init__(self, task: Task, *, levels: Sequence[float] = ()) -> None:
        """`levels`: of a quantiles head."""
        self._task, self._levels = task, levels
        self._columns: tuple[list[Floats], list[Floats], list[Floats]] = ([], [], [])

    @property
    def count(self) -> int:
        return sum(len(part) for part in self._columns[0])

    def add(self, labels: NDArray[np.generic], outputs: NDArray[np.float32], weights: NDArray[np.float32]) -> None:
        """Labels [n] or [n, k], the network's outputs [n] or [n, k] (logits or predictions), weights [n]."""
        first, second = labels.astype(np.float64), outputs.astype(np.float64)
        if self._task in _TERMS:
            first, second = _TERMS[self._task](labels, second)
        elif self._task == "quantiles":
            second = _pinball(first, second, np.array(self._levels))
        for column, values in zip(self._columns, (first, second, weights.astype(np.float64)), strict=True):
            column.append(values)

    def metrics(self) -> dict[str, float]:
        if not self.count:
            return {}
        first, second, weights = (np.concatenate(column) for column in self._columns)
        if not weights.sum() > 0:
            return {}
        return _MEASURES[self._task](first, second, weights)


class Slices:
    """One Slice per head, and the definition's own metrics over all of them."""

    def __init__(
        self,
        heads: Sequence[BuiltHead],
        user_metrics: MetricsFunction | None = None,
        compiled: CompiledMetrics | None = None,
        *,
        are_named: bool,
    ) -> None:
        """`user_metrics`, `compiled`: the definition's own; then all outputs are kept, else two numbers per example.

        Args:
            are_named: metrics are called head/metric.
        """
        self._slices = {head.name: Slice(head.task, levels=head.head.levels) for head in heads}
        self._user_metrics, self._compiled, self._are_named = user_metrics, compiled, are_named
        self._kept = list[tuple[Labels, Outputs, Outputs]]()
        self.count = 0

    def add(self, labels: Labels, outputs: Outputs, weights: Outputs) -> None:
        """Of the same examples, by head."""
        for name, part in self._slices.items():
            part.add(labels[name], outputs[name], weights[name])
        self.count += len(next(iter(labels.values())))
        if self._user_metrics is not None or self._compiled is not None:
            self._kept.append((labels, outputs, weights))

    def metrics(self) -> dict[str, float]:
        """Raises DefinitionFailedError when the definition's own metrics raise or are not finite numbers."""
        found = {
            f"{name}/{metric}" if self._are_named else metric: value
            for name, part in self._slices.items()
            for metric, value in part.metrics().items()
        }
        own = self._own_metrics() if found else {}
        return own | found if self._compiled else found | own

    def _own_metrics(self) -> dict[str, float]:
        if not self._kept:
            return {}
        labels, outputs, weights = (
            {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
            for blocks in zip(*self._kept, strict=True)
        )
        values: dict[str, float] = {}
        with blame_definition("metrics"):
            if self._compiled is not None:
                values |= self._compiled(labels, outputs, weights)
            if self._user_metrics is not None:
                given = (labels, outputs) if self._are_named else (*labels.values(), *outputs.values())
                values |= {str(name): float(value) for name, value in self._user_metrics(*given).items()}
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


def _multiclass_terms(labels: NDArray[np.generic], logits: Floats) -> tuple[Floats, Floats]:
    """Per example: cross-entropy, and 1.0 where the highest logit (the first of equals) is the label's.

    Labels are classes [n], or distributions [n, k], of which the likeliest class is the label's.
    """
    top = logits.max(axis=1)
    partition = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    if labels.ndim == 2:
        shares = labels.astype(np.float64)
        losses = partition * shares.sum(axis=1) - (shares * logits).sum(axis=1)
        return losses, (logits.argmax(axis=1) == shares.argmax(axis=1)).astype(np.float64)
    classes = labels.astype(np.int64)
    losses = partition - logits[np.arange(len(classes)), classes]
    return losses, (logits.argmax(axis=1) == classes).astype(np.float64)


def _multilabel_terms(labels: NDArray[np.generic], logits: Floats) -> tuple[Floats, Floats]:
    """Per example, means over its labels: cross-entropy, and the share that is on the right side of one half."""
    wanted = labels.astype(np.float64)
    losses = np.maximum(logits, 0.0) - logits * wanted + np.log1p(np.exp(-np.abs(logits)))
    return losses.mean(axis=1), ((logits > 0.0) == (wanted > 0.5)).mean(axis=1)


def _vector_terms(labels: NDArray[np.generic], predictions: Floats) -> tuple[Floats, Floats]:
    """Per example: mean squared and mean absolute error."""
    errors = predictions - labels.astype(np.float64)
    return np.square(errors).mean(axis=1), np.abs(errors).mean(axis=1)


def _pinball(labels: Floats, predictions: Floats, levels: Floats) -> Floats:
    errors = labels[:, np.newaxis] - predictions
    return np.maximum(levels * errors, (levels - 1.0) * errors).mean(axis=1)


def _multiclass(losses: Floats, correct: Floats, weights: Floats) -> dict[str, float]:
    return {"accuracy": _mean(correct, weights), "log_loss": _mean(losses, weights)}


def _regression(labels: Floats, predictions: Floats, weights: Floats) -> dict[str, float]:
    errors = predictions - labels
    return {"rmse": float(np.sqrt(_mean(errors**2, weights))), "mae": _mean(np.abs(errors), weights)}


def _count(counts: Floats, log_rates: Floats, weights: Floats) -> dict[str, float]:
    return _regression(counts, np.exp(log_rates), weights)


def _of_vectors(squares: Floats, sizes: Floats, weights: Floats) -> dict[str, float]:
    return {"rmse": float(np.sqrt(_mean(squares, weights))), "mae": _mean(sizes, weights)}


def _quantiles(_: Floats, losses: Floats, weights: Floats) -> dict[str, float]:
    return {"pinball": _mean(losses, weights)}


def _mean(values: Floats | NDArray[np.bool_], weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


_MEASURES: Mapping[Task, Callable[[Floats, Floats, Floats], dict[str, float]]] = {
    "binary": _binary,
    "multiclass": _multiclass,
    "multilabel": _multiclass,
    "regression": _regression,
    "vector_regression": _of_vectors,
    "count": _count,
    "quantiles": _quantiles,
}
_TERMS: Mapping[Task, Callable[[NDArray[np.generic], Floats], tuple[Floats, Floats]]] = {
    "multiclass": _multiclass_terms,
    "multilabel": _multilabel_terms,
    "vector_regression": _vector_terms,
}
"""Of tasks whose vectors become two numbers per example."""
