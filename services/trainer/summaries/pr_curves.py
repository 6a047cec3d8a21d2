"""Precision and recall at even thresholds, as TensorBoard's plugin of that name takes them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
THRESHOLDS = 201


def counts_of(labels: Floats, probabilities: Floats, weights: Floats, *, thresholds: int = THRESHOLDS) -> Floats:
    """float64 [6, thresholds]: weights of true positives, false positives, true negatives and false negatives;
    precision; recall. Thresholds go evenly from 0 to 1; an example is positive at or above one.

    A soft label counts for both sides, by its share. Precision is 1 where nothing is taken, as the plugin has it.

    Args:
        labels: [n], 0 to 1.
        probabilities: [n].
        weights: [n].
    """
    edges = np.linspace(0.0, 1.0, thresholds)
    places = np.searchsorted(edges, probabilities, side="right") - 1
    positive, negative = (
        np.bincount(places, weights * share, thresholds)[::-1].cumsum()[::-1] for share in (labels, 1.0 - labels)
    )
    true_negative, false_negative = negative[0] - negative, positive[0] - positive
    taken = positive + negative
    precision = np.divide(positive, taken, out=np.ones_like(taken), where=taken > 0)
    recall = positive / positive[0] if positive[0] else np.zeros_like(positive)
    return np.stack([positive, negative, true_negative, false_negative, precision, recall])
