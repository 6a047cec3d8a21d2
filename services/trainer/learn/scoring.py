"""Outputs of a slice's examples, and what to do about those that have none."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.port import Columns, Outputs, ScoreFunction
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import bad_examples

_FEW = 10


def scored(score: ScoreFunction, columns: Columns, count: int) -> tuple[Outputs, dict[int, str]]:
    """Outputs of `count` rows, and the reason for each row that has none: a layer refuses it, or the output is NaN.
    Raises DefinitionFailedError: more than half of the rows are refused."""
    outputs: Outputs = {}
    found = dict[int, str]()
    try:
        outputs = score(columns, count)
    except DefinitionFailedError as error:
        if not isinstance(error.__cause__, tf.errors.InvalidArgumentError):
            raise
        refused = bad_examples.find(
            range(count), lambda rows: _refusal(score, columns, rows), limit=max(_FEW, count // 2)
        )
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
