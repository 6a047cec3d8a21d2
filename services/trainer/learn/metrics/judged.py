"""What is kept of each example to measure it: a few float64 columns by task, for any number of classes.

Every metric is prepared once from these columns and is then a function of the weights alone. So one example may weigh
more than another, a slice is a choice of rows, and a resample of the bootstrap costs sums and no sorting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weighed = Callable[[Floats], float | None]
"""Weights float64 [n] to the metric's value; None where it is not defined."""


@dataclass(frozen=True)
class Batched:
    """A Weighed that measures under many weights at once as well.

    Attributes:
        many: weights float64 [n, k] to values [k]; NaN where the metric is not defined.
    """

    of_a_row: Weighed
    many: Callable[[Floats], Floats]

    def __call__(self, weights: Floats) -> float | None:
        return self.of_a_row(weights)


@dataclass(frozen=True)
class Judged:
    """n examples of one head.

    | task              | labels         | outputs                        | columns                                  |
    |-------------------|----------------|--------------------------------|------------------------------------------|
    | binary            | [n], 0 to 1    | logits [n]                     |                                          |
    | multiclass        | [n], class     | class of the highest logit [n] | loss, rank (0: the label's is highest),  |
    |                   |                |                                | top (probability of the highest)         |
    | multilabel        | [n, k], 0 to 1 | logits [n, k]                  |                                          |
    | regression        | [n]            | predictions [n]                |                                          |
    | vector_regression | [n, k]         | predictions [n, k]             |                                          |
    | count             | [n]            | rates [n]                      |                                          |
    | quantiles         | [n]            | [n, levels]                    |                                          |
    | retrieval         | [n], zeros     | ranks [n], from 1              |                                          |
    | ranking           | [n], relevance | scores [n]                     |                                          |
    | embedding         | [n], who it is | vectors [n, k]                 |                                          |

    A column `group` says which examples belong together, where the definition says by what.

    Attributes:
        weights: [n].
        rows: int64 [n], which example of the slice each is; candidate and parent may have scored different examples.
        levels: of a quantile head.
        class_count: 0 where there are no classes.
    """

    task: str
    labels: Floats
    outputs: Floats
    weights: Floats
    rows: NDArray[np.int64]
    columns: Mapping[str, Floats] = field(default_factory=dict)
    levels: tuple[float, ...] = ()
    class_count: int = 0

    @property
    def count(self) -> int:
        return len(self.weights)

    def at(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Judged":
        """Some of the examples, by index or mask."""
        return replace(
            self,
            labels=self.labels[chosen],
            outputs=self.outputs[chosen],
            weights=self.weights[chosen],
            rows=self.rows[chosen],
            columns={name: column[chosen] for name, column in self.columns.items()},
        )


def judged(
    task: str,
    labels: NDArray[np.generic],
    outputs: NDArray[np.floating],
    weights: NDArray[np.floating],
    rows: NDArray[np.int64],
    *,
    levels: tuple[float, ...] = (),
    groups: NDArray[np.int64] | None = None,
) -> Judged:
    """The columns of one block: labels, outputs as families/heads.py says them for the task, weights [n]."""
    given, values = labels.astype(np.float64), outputs.astype(np.float64)
    columns: dict[str, Floats] = {}
    class_count = 2 if task == "binary" else 0
    if task == "multiclass":
        class_count = values.shape[1]
        given, values, columns = _of_classes(given, values)
    if task == "ranking":
        given = given[:, 0]
    if task == "count":
        values = np.exp(values)
    if groups is not None:
        columns["group"] = groups.astype(np.float64)
    return Judged(task, given, values, weights.astype(np.float64), rows, columns, levels, class_count)


def joined(parts: list[Judged]) -> Judged:
    """Blocks of one slice, in order; at least one."""
    first = parts[0]
    return replace(
        first,
        labels=np.concatenate([part.labels for part in parts]),
        outputs=np.concatenate([part.outputs for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
    )


def _of_classes(labels: Floats, logits: Floats) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Class of the label, highest class (the first of equals); cross-entropy, rank of the label, top probability.

    Labels are classes [n], or distributions [n, k], of which the likeliest class is the label's.
    """
    if not len(labels):
        return np.zeros(0), np.zeros(0), {name: np.zeros(0) for name in ("loss", "rank", "top")}
    top = logits.max(axis=1)
    partition = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    own_class = (labels.argmax(axis=1) if labels.ndim == 2 else labels).astype(np.int64)
    own = logits[np.arange(len(own_class)), own_class]
    losses = partition - own
    if labels.ndim == 2:
        losses = partition * labels.sum(axis=1) - (labels * logits).sum(axis=1)
    before = np.arange(logits.shape[1]) < own_class[:, np.newaxis]
    ahead = (logits > own[:, np.newaxis]) | ((logits == own[:, np.newaxis]) & before)
    columns = {"loss": losses, "rank": ahead.sum(axis=1).astype(np.float64), "top": np.exp(top - partition)}
    return own_class.astype(np.float64), logits.argmax(axis=1).astype(np.float64), columns


def mean_of(terms: Floats | NDArray[np.bool_]) -> Weighed:
    """The weighted mean of one number per example; not defined without weight."""

    def value(weights: Floats) -> float | None:
        total = weights.sum()
        return float((terms * weights).sum() / total) if total > 0 else None

    return Batched(value, lambda weights: quotients(terms.astype(np.float64) @ weights, weights.sum(axis=0)))


def quotients(above: Floats, below: Floats) -> Floats:
    """Elementwise; NaN where nothing is below."""
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0)


def ratio(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 else None


def sums(codes: NDArray[np.integer], weights: Floats, count: int = 0) -> Floats:
    """Of the weights, by code: float64 [count], or as many as there are."""
    return np.asarray(np.bincount(codes, weights, minlength=count), np.float64)
