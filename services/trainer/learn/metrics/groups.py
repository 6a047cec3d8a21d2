"""Metrics of the order in which a group's examples are put; `evaluation.group_by` says which belong together."""

from collections.abc import Callable

import numpy as np

from services.trainer.learn.metrics.judged import Floats, Judged, Weighed, mean_of, ratio, sums

MOST_EXAMPLES = 4096
"""Of a slice's beginning: every two of them are compared."""


def ndcg(data: Judged, option: float | None) -> Weighed:
    """Discounted gain of the best-scored k over that of the best order; groups without a relevant example are left out.

    Linear gain and mean gain of ties, as scikit-learn's ndcg_score (McSherry, Najork: Computing Information Retrieval
    Performance Measures Efficiently in the Presence of Tied Scores, 2008).
    """
    top = int(option or 10)

    def of_group(relevance: Floats, scores: Floats) -> float | None:
        best = _gain(relevance, relevance, top)
        return _gain(relevance, scores, top) / best if best > 0 else None

    return _mean_of_groups(data, of_group)


def _gain(relevance: Floats, scores: Floats, top: int) -> float:
    discount = 1.0 / np.log2(np.arange(len(scores)) + 2.0)
    discount[top:] = 0.0
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    means = sums(group, relevance) / sizes
    ends = np.cumsum(sizes)
    reached = np.concatenate([[0.0], np.cumsum(discount)])
    return float((means * (reached[ends] - reached[ends - sizes])).sum())


def mrr(data: Judged, option: float | None) -> Weighed:
    """One over the place of the best-scored relevant example; of ties the last place counts."""

    def of_group(relevance: Floats, scores: Floats) -> float | None:
        relevant = relevance > 0
        if not relevant.any():
            return None
        return 1.0 / max(1, int((scores >= scores[relevant].max()).sum()))

    return _mean_of_groups(data, of_group)


def _mean_of_groups(data: Judged, of_group: Callable[[Floats, Floats], float | None]) -> Weighed:
    """Each group weighs as the mean of its examples; not defined where no feature names the groups."""
    if "group" not in data.columns:
        return lambda weights: None
    _, group, sizes = np.unique(data.columns["group"], return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    pieces = np.split(order, np.cumsum(sizes)[:-1]) if len(order) else []
    found = [of_group(data.labels[rows], data.outputs[rows]) for rows in pieces]
    there = np.array([figure is not None for figure in found], bool)
    values = np.array([figure or 0.0 for figure in found])
    mean = mean_of(values)

    def value(weights: Floats) -> float | None:
        return mean(there * sums(group, weights, len(sizes)) / sizes) if len(sizes) else None

    return value


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
