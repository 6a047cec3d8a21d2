"""Probabilities that are as often right as they say: a map of a head's logits, fitted after training.

temperature: logits / T. Guo and others: On Calibration of Modern Neural Networks (2017).
platt: a * logit + b, against labels that are drawn in a little. Platt: Probabilistic Outputs for Support Vector
    Machines (1999).
isotonic: the rising steps that are nearest to the labels, joined by straight lines (pool adjacent violators; Zadrozny,
    Elkan: Transforming Classifier Scores into Accurate Multiclass Probability Estimates, 2002).

A head that has not been fitted gives its logits as they are, to the bit.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

PREFIX = "calibration/"
_KNOTS = 64
_LEAST = 1e-4
"""Of an isotonic probability; the other end is as far from 1."""
Floats = NDArray[np.float64]


class Calibrator:
    """Of one head. `state` is float32: [scale, shift], or [2, knots], the logits and what becomes of them."""

    def __init__(self, method: str) -> None:
        self.method = method
        self._unfitted = np.zeros((2, _KNOTS)) if method == "isotonic" else np.array([1.0, 0.0])
        self.variable = tf.Variable(self._unfitted, dtype=tf.float32, trainable=False, name="calibration")

    def reset(self) -> None:
        """As it was before it was fitted."""
        self.variable.assign(self._unfitted.astype(np.float32))

    @property
    def state(self) -> NDArray[np.float32]:
        return np.asarray(self.variable.numpy(), np.float32)

    def __call__(self, logits: tf.Tensor) -> tf.Tensor:
        """float32 [n] or [n, k], of the same shape."""
        if self.method != "isotonic":
            return logits * self.variable[0] + self.variable[1]
        below, above = self.variable[0], self.variable[1]
        place = tf.clip_by_value(tf.searchsorted(below, logits, side="right") - 1, 0, _KNOTS - 2)
        start, end = tf.gather(below, place), tf.gather(below, place + 1)
        share = tf.clip_by_value(tf.math.divide_no_nan(logits - start, end - start), 0.0, 1.0)
        first, last = tf.gather(above, place), tf.gather(above, place + 1)
        return tf.where(below[-1] > below[0], first + share * (last - first), logits)

    def fit(self, logits: Floats, labels: Floats, weights: Floats) -> None:
        """`labels`: 0 to 1 of [n] logits; of [n, k] classes [n] or distributions [n, k]. They are not all the same."""
        if self.method == "isotonic":
            fitted = _isotonic(logits, labels, weights)
        elif self.method == "platt":
            fitted = _platt(logits, labels, weights)
        else:
            fitted = np.array([1.0 / _temperature(logits, labels, weights), 0.0])
        self.variable.assign(fitted.astype(np.float32))


def captured(calibrators: Mapping[str, Calibrator]) -> dict[str, NDArray[np.generic]]:
    """As arrays of a checkpoint, by head."""
    return {f"{PREFIX}{name}": calibrator.state for name, calibrator in calibrators.items()}


def restore(calibrators: Iterable[tuple[str, Calibrator]], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Those that are there and of the same method's shape; the others stay as they are."""
    for name, calibrator in calibrators:
        found = arrays.get(f"{PREFIX}{name}")
        if found is not None and found.shape == tuple(calibrator.variable.shape):
            calibrator.variable.assign(found)


def _temperature(logits: Floats, labels: Floats, weights: Floats) -> float:
    """The temperature from 1/20 to 20 of the least cross-entropy, which has one valley in 1/T: by golden section."""
    low, high, ratio = np.log(0.05), np.log(20.0), (np.sqrt(5.0) - 1.0) / 2.0

    def entropy(at: float) -> float:
        return float((_entropies(logits * np.exp(at), labels) * weights).sum())

    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if entropy(left) <= entropy(right) else (left, high)
    return float(np.exp(-(low + high) / 2.0))


def _entropies(logits: Floats, labels: Floats) -> Floats:
    if logits.ndim == 1:
        return np.maximum(logits, 0.0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    top = logits.max(axis=1)
    whole = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    if labels.ndim == 2:
        return whole - (logits * labels).sum(axis=1)
    return whole - logits[np.arange(len(logits)), labels.astype(np.int64)]


def _platt(logits: Floats, labels: Floats, weights: Floats) -> Floats:
    """Newton's steps, each halved until it does not raise the cross-entropy."""
    positive = float((weights * labels).sum())
    negative = float(weights.sum()) - positive
    targets = labels * (positive + 1.0) / (positive + 2.0) + (1.0 - labels) / (negative + 2.0)
    columns = np.stack([logits, np.ones_like(logits)], axis=1)
    found = np.array([1.0, 0.0])

    def entropy(at: Floats) -> float:
        return float((_entropies(columns @ at, targets) * weights).sum())

    for _ in range(50):
        chances = 0.5 * (1.0 + np.tanh(0.5 * (columns @ found)))
        slope = columns.T @ (weights * (chances - targets))
        curve = (columns * (weights * chances * (1.0 - chances))[:, np.newaxis]).T @ columns + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(curve, slope), 1.0
        while entropy(found - size * step) > entropy(found) and size > 1e-6:
            size /= 2.0
        found = found - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    return found


def _isotonic(logits: Floats, labels: Floats, weights: Floats) -> Floats:
    """Knots [2, 64] with equal shares of the examples between them."""
    order = np.argsort(logits, kind="stable")
    means, sizes, ends = list[float](), list[float](), list[int]()
    for place, row in enumerate(order.tolist()):
        mean, size = float(labels[row]), float(weights[row])
        while means and means[-1] >= mean:
            mean = (mean * size + means[-1] * sizes[-1]) / max(size + sizes[-1], 1e-300)
            size += sizes.pop()
            means.pop()
            ends.pop()
        means.append(mean)
        sizes.append(size)
        ends.append(place)
    rising = np.asarray(means)[np.searchsorted(ends, np.arange(len(order)))]
    chosen = np.linspace(0, len(order) - 1, _KNOTS).round().astype(np.int64)
    chances = np.clip(rising[chosen], _LEAST, 1.0 - _LEAST)
    return np.stack([logits[order][chosen], np.log(chances / (1.0 - chances))])
