"""Why a metric has no value on the examples of a slice, in words."""

import numpy as np

from common.counted import counted
from common.definition.metrics import Metric
from services.trainer.learn.metrics.binary import logit
from services.trainer.learn.metrics.judged import Judged

_LABEL_IS_ONE_NUMBER = ("binary", "multiclass", "regression", "count", "quantiles", "ranking")


def why(metric: Metric, data: Judged) -> str:
    """The rest of a sentence that begins with the metric's name and "is not defined: "."""
    weighs = data.weights > 0
    count = int(weighs.sum())
    if not count:
        each = "the only held-out event" if data.count == 1 else f"each of the {data.count:,} held-out events"
        return f"{each} has weight 0 or no label" if data.count else "no event is held out"
    if data.task in _LABEL_IS_ONE_NUMBER and len(labels := np.unique(data.labels[weighs])) == 1:
        return f"{_all(count)} the label {labels[0]:g}"
    if metric.kind == "precision" and data.task == "binary":
        threshold = 0.5 if metric.option is None else metric.option
        if not (data.outputs[weighs] > logit(threshold)).any():
            return f"none of {counted(count, 'held-out event')} is predicted to be positive"
    if data.task == "binary" and not (data.labels[weighs] > 0.5).any():
        return f"{_all(count)} a label of at most 0.5"
    return f"it divides by 0 on {counted(count, 'held-out event')}"


def _all(count: int) -> str:
    return "the only held-out event has" if count == 1 else f"all {count:,} held-out events have"
