"""Every loss by its name, against formulas in numpy on a fixed case, and the table of names against Keras itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from common.definition import keras_names
from common.definition.heads import Head
from common.definition.losses import DEFAULT_LOSSES, LOSSES, Loss, Task, keras_class_of, read_loss
from common.schema import Feature
from services.trainer.families.heads import BuiltHead

Floats = NDArray[np.float64]


def head(task: Task, loss: object = None, *, label: Feature | None = None, units: int = 3, **keys: Any) -> BuiltHead:
    chosen = read_loss(loss, task, "test") if loss else Loss(DEFAULT_LOSSES[task])
    given = label or Feature("y", "int64" if task in ("binary", "multiclass", "embedding") else "float32")
    classes = {"binary": 2, "multiclass": units, "multilabel": units}.get(task, 0)
    return BuiltHead(Head("y", "y", task, chosen, **keys), given, classes, units)


def losses(of: BuiltHead, labels: Any, outputs: Any) -> Floats:
    spec = of.label_spec
    found = of.losses_of(tf.constant(labels, spec.dtype), tf.constant(outputs, tf.float32))
    assert found.shape == (len(labels),)
    return found.numpy().astype(np.float64)


@pytest.mark.covers("loss-pointwise")
def test_every_loss_of_keras_teaches_a_task() -> None:
    assert set(keras_names.LOSSES) <= set(LOSSES)
    for name, kind in LOSSES.items():
        if keras_class_of(name):
            assert ("from_logits" in keras_names.LOSSES[name].options) == (kind.takes == "logits")


Y = np.array([1.0, -2.0, 0.5])
P = np.array([0.5, 1.0, 0.5])
E = np.abs(Y - P)
REGRESSION: dict[str, tuple[object, Floats]] = {
    "mean_squared_error": ("mse", E**2),
    "mean_absolute_error": ("mae", E),
    "mean_absolute_percentage_error": ("mape", 100 * E / np.abs(Y)),
    "huber": ({"name": "huber", "delta": 0.7}, np.where(E <= 0.7, E**2 / 2, 0.7 * (E - 0.35))),
    "huber near absolute": ({"name": "huber", "delta": 1e-4}, 1e-4 * E),
    "huber near squared": ({"name": "huber", "delta": 1e4}, E**2 / 2),
    "log_cosh": ("logcosh", np.log(np.cosh(E))),
    "quantile": ({"name": "pinball", "level": 0.9}, np.maximum(0.9 * (Y - P), -0.1 * (Y - P))),
}


@pytest.mark.covers("loss-pointwise")
@pytest.mark.parametrize(("loss", "expected"), REGRESSION.values(), ids=REGRESSION.keys())
def test_losses_of_a_number(loss: object, expected: Floats) -> None:
    np.testing.assert_allclose(losses(head("regression", loss), Y, P), expected, rtol=1e-4, atol=1e-6)


S = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
Z = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, -3.0]])
SOFTMAX = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
SIGMOID = 1 / (1 + np.exp(-Z))
ENTROPY = -(S * np.log(SOFTMAX)).sum(1)
ONE_HOT = np.eye(3)[[2, 0]]
SOFT = Feature("y", "float32", (3,))
FLAGS = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
CASES: dict[str, tuple[BuiltHead, Any, Callable[[], Floats]]] = {
    "softmax of soft labels": (head("multiclass", label=SOFT), S, lambda: ENTROPY),
    "softmax of classes": (head("multiclass"), [2, 0], lambda: -np.log((ONE_HOT * SOFTMAX).sum(1))),
    "one-hot": (head("multiclass", "categorical_crossentropy", label=SOFT), ONE_HOT,
                lambda: -np.log((ONE_HOT * SOFTMAX).sum(1))),
    "smoothed": (head("multiclass", label_smoothing=0.3), [2, 0],
                 lambda: -((0.7 * ONE_HOT + 0.1) * np.log(SOFTMAX)).sum(1)),
    "class weights": (head("multiclass", class_weights={"2": 5.0}), [2, 0],
                      lambda: -np.log((ONE_HOT * SOFTMAX).sum(1)) * [5.0, 1.0]),
    "focal of classes": (head("multiclass", {"name": "focal", "gamma": 2, "alpha": 1}), [2, 0],
                         lambda: -(ONE_HOT * (1 - SOFTMAX) ** 2 * np.log(SOFTMAX)).sum(1)),
    "categorical hinge": (head("multiclass", "categorical_hinge"), [2, 0],
                          lambda: np.maximum((Z * (1 - ONE_HOT)).max(1).clip(0) - (Z * ONE_HOT).sum(1) + 1, 0)),
    "Brier": (head("multiclass", "mse"), [2, 0], lambda: ((SOFTMAX - ONE_HOT) ** 2).mean(1)),
    "generalized": (head("multiclass", {"name": "categorical_generalized_cross_entropy", "q": 0.7}), [2, 0],
                    lambda: (1 - (ONE_HOT * SOFTMAX).sum(1) ** 0.7) / 0.7),
    "KL": (head("multiclass", "kl_divergence", label=SOFT), S[:1].repeat(2, 0),
           lambda: (S[0] * np.log(S[0] / SOFTMAX)).sum(1)),
    "dice": (head("multiclass", "dice"), [2, 0], lambda: 1 - 2 * (ONE_HOT * SOFTMAX).sum(1) / (1 + 1)),
    "sigmoid": (head("multilabel"), FLAGS,
                lambda: -(FLAGS * np.log(SIGMOID) + (1 - FLAGS) * np.log(1 - SIGMOID)).mean(1)),
    "positive weight": (head("multilabel", positive_weight=4.0), FLAGS,
                        lambda: -(4 * FLAGS * np.log(SIGMOID) + (1 - FLAGS) * np.log(1 - SIGMOID)).mean(1)),
    "hinge": (head("multilabel", "hinge"), FLAGS, lambda: np.maximum(1 - (2 * FLAGS - 1) * Z, 0).mean(1)),
    "cosine": (head("vector_regression", "cosine_similarity"), S,
               lambda: -(S * Z).sum(1) / np.linalg.norm(S, axis=1) / np.linalg.norm(Z, axis=1)),
    "vector": (head("vector_regression"), S, lambda: ((S - Z) ** 2).mean(1)),
    "quantiles": (head("quantiles", levels=(0.1, 0.5, 0.9)), [1.0, -1.0],
                  lambda: np.maximum(np.array([0.1, 0.5, 0.9]) * ([[1.0], [-1.0]] - Z),
                                     (np.array([0.1, 0.5, 0.9]) - 1) * ([[1.0], [-1.0]] - Z)).mean(1)),
}  # fmt: skip


@pytest.mark.covers("loss-softmax", "loss-sigmoid", "loss-pointwise", "loss-custom")
@pytest.mark.parametrize(("of", "labels", "expected"), CASES.values(), ids=CASES.keys())
def test_losses_of_classes_and_vectors(of: BuiltHead, labels: Any, expected: Callable[[], Floats]) -> None:
    np.testing.assert_allclose(losses(of, labels, Z), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.covers("loss-sigmoid")
def test_losses_of_yes_and_no_and_of_counts() -> None:
    z, y = np.array([2.0, -1.0]), np.array([1, 0])
    p = 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(losses(head("binary"), y, z), -np.log([p[0], 1 - p[1]]), rtol=1e-5)
    np.testing.assert_allclose(
        losses(head("binary", positive_weight=3.0), y, z), -np.log([p[0], 1 - p[1]]) * [3, 1], rtol=1e-5
    )
    focal = losses(head("binary", {"name": "focal", "gamma": 2}), y, z)
    np.testing.assert_allclose(focal, [(1 - p[0]) ** 2 * -np.log(p[0]), p[1] ** 2 * -np.log(1 - p[1])], rtol=1e-4)
    np.testing.assert_allclose(losses(head("binary", "mse"), y, z), (p - y) ** 2, rtol=1e-5)
    np.testing.assert_allclose(losses(head("count"), [3.0, 0.0], z), np.exp(z) - [3 * 2.0, 0.0], rtol=1e-5)


@pytest.mark.covers("loss-softmax", "loss-sigmoid", "loss-pointwise")
@pytest.mark.parametrize(
    ("task", "loss"),
    [(task, name) for name, kind in LOSSES.items() for task in kind.tasks
     if task in ("binary", "multiclass", "multilabel")],
)  # fmt: skip
def test_logits_of_a_thousand_keep_loss_and_gradient_finite(task: Task, loss: str) -> None:
    of = head(task, loss)
    outputs = tf.constant([1000.0, -1000.0] if task == "binary" else [[1000.0, -1000.0, 0.0]] * 2)
    labels = tf.constant([[1.0, 1.0, 0.0]] * 2) if task == "multilabel" else tf.constant([0, 1], tf.int64)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        found = of.losses_of(labels, outputs)
    assert np.isfinite(found.numpy()).all()
    assert np.isfinite(tape.gradient(found, outputs).numpy()).all()


@pytest.mark.covers("loss-softmax")
def test_labels_get_no_gradient() -> None:
    labels, outputs = tf.constant(S, tf.float32), tf.constant(Z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(labels)
        found = head("multiclass", label=SOFT).losses_of(labels, outputs)
    assert tape.gradient(found, labels) is None


def test_a_list_of_words_becomes_a_yes_or_no_for_each() -> None:
    label = Feature("y", "string", (None,), vocabulary=("a", "b", "c"))
    of = head("multilabel", label=label)
    raw = tf.constant([["c", "a"], ["\uffff", "\uffff"], ["d", "\uffff"]])
    labels = of.labels_of(raw)
    np.testing.assert_array_equal(labels[:2], [[1, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(of.is_label(labels), [True, True, False])
