"""Fits what a head's `calibration` asks for: on a part of the held-out slice, which then judges nobody."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.metrics import Metric
from common.facts import present
from services.trainer.families import calibration
from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Model, TrainingSet
from services.trainer.learn.metrics.collected import MeasuredHead, Slices
from services.trainer.learn.scoring import scored
from services.trainer.rounds.blocks import RoundData

_LEAST_EXAMPLES = 20
_SHOWN = (Metric("ece"), Metric("log_loss"))
Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Labels, outputs and weights of one head."""


def calibrate(model: Model, data: RoundData) -> tuple[dict[str, NDArray[np.generic]], dict[str, Any]]:
    """The arrays for the checkpoint; and by head how far off it was on the part that judges, before and after.

    The model has been trained and not been fitted yet; afterwards it answers with calibrated logits. Both are empty
    where no head asks for it.
    """
    calibrators = {head.name: head.calibrator for head in model.heads if head.calibrator}
    if not calibrators:
        return {}, {}
    fitted_on, judged_on = _scored(model, data)
    facts = {}
    for head in model.heads:
        if head.calibrator is None:
            continue
        labels, logits, weights = (array.astype(np.float64) for array in fitted_on[head.name])
        fault = _fault(labels)
        if not fault:
            head.calibrator.fit(logits, labels, weights)
        facts[head.name] = {
            "method": head.calibrator.method,
            "examples": len(labels),
            "before": _measured(head, judged_on[head.name], is_calibrated=False),
            "after": _measured(head, judged_on[head.name], is_calibrated=True),
            **present(not_fitted=fault),
        }
    return calibration.captured(calibrators), facts


def _scored(model: Model, data: RoundData) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Of the part that fits and of the part that judges, by head."""
    score = model.scorer()
    parts: tuple[list[dict[str, Rows]], list[dict[str, Rows]]] = ([], [])
    for block in data.prepared(model):
        for part, examples in zip(parts, (block.calibrating, block.held_out), strict=True):
            outputs, bad = scored(score, examples.columns, examples.count)
            part.append({name: _rows(examples, name, values, bad) for name, values in outputs.items()})
    fits, judges = (
        {head.name: _joined([answers[head.name] for answers in part]) for head in model.heads} for part in parts
    )
    return fits, judges


def _rows(examples: TrainingSet, name: str, outputs: NDArray[Any], without: Mapping[int, str]) -> Rows:
    weights = examples.weights[name].numpy()
    kept = np.array([row for row in range(examples.count) if row not in without and weights[row] > 0], np.int64)
    return examples.labels[name].numpy()[kept], outputs[kept], weights[kept]


def _joined(parts: list[Rows]) -> Rows:
    labels, outputs, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return labels, outputs, weights


def _fault(labels: NDArray[Any]) -> str:
    """Why nothing can be fitted; empty where it can."""
    if len(labels) < _LEAST_EXAMPLES:
        return f"{len(labels)} held-out examples are too few, {_LEAST_EXAMPLES} are needed"
    return "all held-out examples are of one class" if len(np.unique(labels, axis=0)) < 2 else ""


def _measured(head: BuiltHead, rows: Rows, *, is_calibrated: bool) -> dict[str, float]:
    labels, outputs, weights = rows
    if not len(labels):
        return {}
    given = np.asarray(head.calibrated(outputs)) if is_calibrated else outputs
    slices = Slices([MeasuredHead(head.name, head.task, _SHOWN)])
    slices.add({head.name: labels}, {head.name: given.astype(np.float32)}, {head.name: weights})
    return slices.metrics()
