"""The held-out examples of a round, kept in memory and measured while it trains."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.metrics import KINDS
from services.trainer.families.heads import ByHead
from services.trainer.families.port import Model, Trainable, TrainingSet
from services.trainer.learn.metrics.collected import Slices, measured_heads
from services.trainer.learn.scoring import scored
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.prepared import PreparedBlock, chosen

MOST_EXAMPLES = 50_000
"""Of the range's beginning. This number shows a faulty model well enough, and memory holds it."""


class Validation:
    """Reads the range once more where it does not fit into memory. What a model answers now depends on its weights
    alone, so a round that is resumed or rebuilt measures the same."""

    def __init__(self, model: Model, data: RoundData) -> None:
        heads = measured_heads(model.heads, model.definition.evaluation.metrics)
        self._heads = [
            replace(head, metrics=tuple(metric for metric in head.wanted if not KINDS[metric.kind].needs_groups))
            for head in heads
        ]
        self._model, self._score = model, model.scorer()
        training = model.definition.training
        most = training.evaluate_steps * training.batch_size if training.evaluate_steps else None
        blocks = chain(data.judges(model), data.prepared(model))
        self._blocks = list(_first(blocks, MOST_EXAMPLES if most is None else most, is_exact=most is not None))

    def metrics(self, training: Trainable) -> dict[str, float]:
        """Of the weights that a version would be served with: their averages where the optimizer keeps them."""
        slices = Slices(
            self._heads, self._model.user_metrics, self._model.compiled_metrics(), are_named=len(self._heads) > 1
        )
        own = self._model.own_evaluation()
        with training.averaged():
            for examples in self._blocks:
                outputs, bad = scored(self._score, examples.columns, examples.count)
                kept = np.array([row for row in range(examples.count) if row not in bad], np.int64)
                slices.add(
                    _of_rows(examples.labels, kept),
                    {name: values[kept] for name, values in outputs.items()},
                    _of_rows(examples.weights, kept),
                )
                if own and not bad:
                    own.add(examples)
        return (own.result() if own else {}) | (slices.metrics() if slices.count else {})


def _of_rows(values: ByHead, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    return {name: value.numpy()[rows] for name, value in values.items()}


def _first(blocks: Iterator[PreparedBlock], most: int, *, is_exact: bool) -> Iterator[TrainingSet]:
    """The held-out examples of blocks, until there are as many; a block is taken whole unless the number is exact."""
    for block in blocks:
        if block.held_out.count:
            is_whole = not is_exact or block.held_out.count <= most
            yield block.held_out if is_whole else chosen(block.held_out, np.arange(most))
            most -= block.held_out.count
        if most <= 0:
            return
