"""Confusion matrices, calibration plots and weights as images for TensorBoard, described by their numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary

from services.trainer.summaries.events import image

Floats = NDArray[np.float64]
THRESHOLDS = 201
_CELL, _SIDE, _DOT = 24, 240, 3
_GREY, _INK = 200, 0


def summaries_of(evaluation: Mapping[str, Any]) -> Iterator[Summary]:
    """confusion/<head> and calibration/<head> of the candidate, where its task has them.

    Args:
        evaluation: as a version keeps it; of it `curves` (learn/metrics/curves.py).
    """
    for head, drawn in evaluation.get("curves", {}).get("candidate", {}).items():
        if confusion := drawn.get("confusion"):
            names = [str(name) for name in confusion["classes"]]
            rows = [[f"**{name}**", *row] for name, row in zip(names, confusion["counts"], strict=True)]
            table = _table(["label, predicted", *names], rows)
            yield _image(f"confusion/{head}", _matrix(np.array(confusion["counts"], np.float64)), table)
        if points := drawn.get("calibration"):
            table = _table(["mean prediction", "share of positives", "share of all"], points)
            yield _image(f"calibration/{head}", _plot(points), table)


def _matrix(counts: NDArray[np.float64]) -> NDArray[np.uint8]:
    """A square per cell, a row per label; the darker, the larger its share of the row."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    return np.kron(255.0 * (1.0 - shares), np.ones((_CELL, _CELL))).astype(np.uint8)


def _plot(points: Sequence[Sequence[float]]) -> NDArray[np.uint8]:
    """Dots of (mean prediction, share of positives) beside the diagonal, 0 in the lower left corner."""
    drawn = np.full((_SIDE, _SIDE), 255, np.uint8)
    np.fill_diagonal(drawn[::-1], _GREY)
    for predicted, true, *_ in points:
        across, up = (round(value * (_SIDE - 1)) for value in (predicted, true))
        row = _SIDE - 1 - up
        drawn[max(0, row - _DOT) : row + _DOT + 1, max(0, across - _DOT) : across + _DOT + 1] = _INK
    return drawn


def _image(tag: str, pixels: NDArray[np.uint8], description: str) -> Summary:
    png = tf.io.encode_png(pixels[:, :, np.newaxis]).numpy()
    return image(tag, png, height=pixels.shape[0], width=pixels.shape[1], description=description)


def of_weight(tag: str, values: NDArray[np.generic]) -> Summary:
    """A kernel with a column per output; the more dimensions, the more rows."""
    pixels = as_bytes(values.reshape(-1, values.shape[-1]))
    return _image(tag, pixels, f"from {values.min():.6g} (black) to {values.max():.6g} (white)")


def as_bytes(pixels: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Spread from the smallest to the largest value, unless they are bytes already."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8)
    values = pixels.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    return np.asarray(np.round((values - low) * (255.0 / (high - low) if high > low else 0.0)), np.uint8)


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = [titles, ["---"] * len(titles), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pr_counts(labels: Floats, probabilities: Floats, weights: Floats, *, thresholds: int = THRESHOLDS) -> Floats:
    """As TensorBoard's plugin pr_curve takes it, float64 [6, thresholds]: weights of true positives, false positives,
    true negatives and false negatives; precision; recall. Thresholds go evenly from 0 to 1; an example is positive at
    or above one.

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
