"""A stream with a planted drift: a hyperplane that turns at once.

The generator of Hulten, Spencer, Domingos, Mining time-changing data streams, KDD 2001, as river's
`river.datasets.synth.Hyperplane` has it: x is uniform in [0, 1]^10, the label is 1 where the sum of w x is at least
half the sum of w, and one label in twenty is inverted. Here w is drawn anew at the drift.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from examples.freshness.learner import Floats

_FEATURES, _NOISE = 10, 0.05
DRIFT_SHARE = 0.5
SCHEMA: Mapping[str, Any] = {
    "features": [{"name": "x", "dtype": "float32", "shape": [_FEATURES]}],
    "labels": [{"name": "above", "dtype": "int64", "min": 0, "max": 1}],
}
DEFINITION: Mapping[str, Any] = {
    "name": "hyperplane",
    "stream": "hyperplane",
    "label": "above",
    "seed": 7,
    "estimator": "linear_classifier",
    "features": {"x": {"type": "numeric", "normalize": "zscore"}},
    "training": {"batch_size": 64, "optimizer": {"name": "adam", "learning_rate": 0.02}},
}


def events(count: int, *, seed: int) -> tuple[list[dict[str, Any]], int]:
    """Also the first event after the drift."""
    random = np.random.default_rng(seed)
    drift = int(count * DRIFT_SHARE)
    x = random.random((count, _FEATURES), np.float32)
    before, after = random.random((2, _FEATURES))
    labels = np.concatenate([_above(x[:drift], before), _above(x[drift:], after)])
    labels = labels ^ (random.random(count) < _NOISE)
    return [{"x": row.tolist(), "above": int(label)} for row, label in zip(x, labels, strict=True)], drift


def _above(x: np.ndarray, weights: Floats) -> np.ndarray:
    return np.asarray(x @ weights >= weights.sum() / 2)
