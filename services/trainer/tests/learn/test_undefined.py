"""A metric that has no value on a slice says why."""

from typing import Any

import numpy as np
import pytest

from common.definition.metrics import Metric
from services.trainer.learn.metrics.collected import MeasuredHead, Slices


def undefined(task: str, metric: str, labels: Any, outputs: Any, weights: Any) -> dict[str, str]:
    slices = Slices([MeasuredHead("y", task, (Metric(metric),))])
    columns = [{"y": np.asarray(one, np.float32)} for one in (labels, outputs, weights)]
    slices.add(columns[0], columns[1], columns[2])
    return slices.undefined()


@pytest.mark.parametrize(
    ("task", "metric", "labels", "weights", "why"),
    [
        ("binary", "auc", [1, 1, 1], [1, 1, 1], "all 3 held-out events have the label 1"),
        ("binary", "auc", [1, 0, 0], [1, 0, 0], "the only held-out event has the label 1"),
        ("binary", "auc", [1, 0, 0], [0, 0, 0], "each of the 3 held-out events has weight 0 or no label"),
        ("binary", "log_loss", [1, 0], [0, 0], "each of the 2 held-out events has weight 0 or no label"),
        ("binary", "precision", [1, 0, 0], [1, 1, 1], "none of 3 held-out events is predicted to be positive"),
        ("binary", "auc", [1, 0, 1], [1, 1, 1], None),
    ],
)
def test_the_reason_is_the_labels_the_weights_or_the_answers(
    task: str, metric: str, labels: Any, weights: Any, why: str | None
) -> None:
    assert undefined(task, metric, labels, [-1.0] * len(labels), weights) == ({metric: why} if why else {})
