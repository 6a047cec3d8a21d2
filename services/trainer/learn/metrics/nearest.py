"""How well vectors put together what belongs together."""

import numpy as np

from services.trainer.learn.metrics.judged import Floats, Judged, Weighed, ratio

MOST_EXAMPLES = 4096
"""Of a slice's beginning: every two of them are compared."""


def nearest_accuracy(data: Judged, option: float | None) -> Weighed:
    """Of the examples that have another of their label, the share whose nearest other example by cosine is one.

    Recall at 1; of equally near examples the first counts.
    """
    labels, vectors = data.labels[:MOST_EXAMPLES], data.outputs[:MOST_EXAMPLES]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    has_another = counts[place] > 1 if len(labels) else np.zeros(0, np.bool_)
    hits = labels[likeness.argmax(axis=1)] == labels if len(labels) else has_another

    def value(weights: Floats) -> float | None:
        given = weights[:MOST_EXAMPLES] * has_another
        return ratio((given * hits).sum(), given.sum())

    return value
