"""A head's loss, one value per example, out of its outputs as families/heads.py gives them.

The name's class in keras.losses computes it (common/definition/losses.py), but for four that TensorFlow has in a form
that no logit overflows: the two cross-entropies that are the defaults, the generalized one, and Poisson's of the
logarithm of the rate. Those of the order of a group's events, whose batches hold whole groups, are here:

pairwise_logistic: of each example the mean over those of its group that are less relevant of log(1 + exp(-(s_i - s_j)))
    (Burges and others: Learning to Rank using Gradient Descent, 2005).
pairwise_hinge: of the same pairs, what s_i - s_j lacks to the margin (Herbrich, Graepel, Obermayer: Large Margin Rank
    Boundaries for Ordinal Regression, 2000).
listwise_softmax: of each group the cross-entropy between its relevances, which are made to add up to 1, and the softmax
    of its scores (Cao and others: Learning to Rank: From Pairwise Approach to Listwise Approach, 2007); an example has
    its own term of that sum.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import keras
import tensorflow as tf

from common.definition import keras_names
from common.definition.heads import Head
from common.definition.losses import MARGINS, Loss, Task, keras_class_of

_FAR = -1e30
LossOfHead: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_OF_LOGITS: Mapping[Task, Callable[[tf.Tensor], tf.Tensor]] = {
    "binary": tf.sigmoid, "multilabel": tf.sigmoid, "multiclass": tf.nn.softmax, "count": tf.exp,
    "embedding": lambda vectors: tf.math.l2_normalize(vectors, axis=-1),
}  # fmt: skip


def predictions_of(task: Task, outputs: tf.Tensor) -> tf.Tensor:
    """Probabilities, rates, vectors of length 1 or the outputs themselves, of the outputs' shape."""
    return _OF_LOGITS[task](outputs) if task in _OF_LOGITS else outputs


def losses_of(head: Head, labels: tf.Tensor, outputs: tf.Tensor, *, class_count: int) -> tf.Tensor:
    """float32 [n], before class weights.

    Args:
        labels: as heads.labels_of gives them.
        outputs: float32 [n] or [n, units].
    """
    plain = _PLAIN.get((head.task, head.loss.name))
    if plain is not None and not head.label_smoothing and not labels.shape.rank == outputs.shape.rank == 2:
        return plain(labels, outputs)
    if head.loss.name in MARGINS:
        return _of_pairs(head.loss, labels, predictions_of(head.task, outputs))
    if head.task == "ranking":
        return _of_groups(head.loss, labels[:, 0], labels[:, 1], outputs)
    if head.loss.name == "quantile":
        return _quantile(head, labels, outputs)
    targets = _targets(head, labels, class_count)
    if head.loss.name == "binary_crossentropy":
        return _sigmoid(head, targets, outputs)
    if head.loss.name in ("sparse_categorical_crossentropy", "categorical_crossentropy"):
        return tf.nn.softmax_cross_entropy_with_logits(labels=tf.stop_gradient(targets), logits=outputs)
    if head.loss.name == "categorical_generalized_cross_entropy":
        return _generalized(head.loss, targets, outputs)
    return _by_keras(head, targets, outputs)


def _by_keras(head: Head, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    kind = head.loss.kind
    given = outputs if kind.takes in ("logits", "scores") else predictions_of(head.task, outputs)
    if given.shape.rank == 1:
        targets, given = targets[:, tf.newaxis], given[:, tf.newaxis]
    return _keras_loss(head.loss)(targets, given)


def _keras_loss(loss: Loss) -> keras.losses.Loss:
    made = getattr(keras.losses, keras_class_of(loss.name))
    fixed: dict[str, object] = {"from_logits": True} if loss.kind.takes == "logits" else {}
    if loss.name in ("dice", "tversky"):
        fixed["axis"] = (1,)  # per example, not over the batch
    return made(reduction=None, **fixed, **loss.options)


def _targets(head: Head, labels: tf.Tensor, class_count: int) -> tf.Tensor:
    """float32, of the outputs' shape: numbers, 0 or 1, or one-hot, smoothed where the head says so."""
    if head.task == "multiclass" and labels.shape.rank == 1:
        labels = tf.one_hot(labels, class_count, dtype=tf.float32)
    targets = tf.cast(labels, tf.float32)
    if not head.label_smoothing:
        return targets
    even = 1.0 / class_count if head.task == "multiclass" else 0.5
    return targets * (1.0 - head.label_smoothing) + head.label_smoothing * even


def _sigmoid(head: Head, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of each yes or no; of several the mean. The positive weight scales only the positive term."""
    if head.positive_weight is None:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs)
    else:
        losses = tf.nn.weighted_cross_entropy_with_logits(targets, outputs, pos_weight=head.positive_weight)
    return losses if losses.shape.rank == 1 else tf.reduce_mean(losses, axis=1)


def _generalized(loss: Loss, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """(1 - p^q) / q of the label's probability p, by its logarithm: the slope of p^q has no end where p is 0.

    Zhang, Sabuncu: Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels (2018).
    """
    q = loss.options.get("q", keras_names.LOSSES[loss.name].options["q"].default)
    log_p = -tf.nn.softmax_cross_entropy_with_logits(labels=tf.stop_gradient(targets), logits=logits)
    return -tf.math.expm1(q * log_p) / q


def _quantile(head: Head, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean over the levels of max(q e, (q - 1) e) with e = label - prediction.

    Koenker, Bassett: Regression Quantiles (1978), the check function.
    """
    levels = head.levels or (head.loss.options["level"],)
    predictions = outputs[:, tf.newaxis] if outputs.shape.rank == 1 else outputs
    errors = labels[:, tf.newaxis] - predictions
    wanted = tf.constant(levels, tf.float32)
    return tf.reduce_mean(tf.maximum(wanted * errors, (wanted - 1.0) * errors), axis=1)


def _of_pairs(loss: Loss, labels: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Of each example over all others of its batch; 0 where there is none to compare it with.

    triplet: how much farther the farthest of its own kind is than the nearest of another, plus the margin, from 0
        (Hermans, Beyer, Leibe: In Defense of the Triplet Loss, 2017, batch hard).
    contrastive: the mean of the squared distances to its own kind, and of the squares of what is missing to the margin
        to others (Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping, 2006).
    """
    margin = loss.options.get("margin", MARGINS[loss.name])
    squares = tf.maximum(2.0 - 2.0 * tf.matmul(vectors, vectors, transpose_b=True), 1e-12)  # a root has no slope at 0
    distances = tf.sqrt(squares)
    same = tf.equal(labels[:, tf.newaxis], labels[tf.newaxis, :])
    own = tf.logical_and(same, tf.logical_not(tf.eye(tf.shape(labels)[0], dtype=tf.bool)))
    others = tf.logical_not(same)
    if loss.name == "contrastive":
        terms = tf.where(own, squares, 0.0) + tf.where(others, tf.square(tf.maximum(margin - distances, 0.0)), 0.0)
        compared = tf.reduce_sum(tf.cast(tf.logical_or(own, others), tf.float32), axis=1)
        return tf.math.divide_no_nan(tf.reduce_sum(terms, axis=1), compared)
    farthest = tf.reduce_max(tf.where(own, distances, 0.0), axis=1)
    nearest = tf.reduce_min(tf.where(others, distances, 2.0), axis=1)
    is_compared = tf.logical_and(tf.reduce_any(own, axis=1), tf.reduce_any(others, axis=1))
    return tf.where(is_compared, tf.maximum(farthest - nearest + margin, 0.0), 0.0)


def _plain_softmax(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)


_PLAIN: Mapping[tuple[Task, str], LossOfHead] = {
    ("multiclass", "sparse_categorical_crossentropy"): _plain_softmax,
    ("multiclass", "categorical_crossentropy"): _plain_softmax,
    ("regression", "mean_squared_error"): lambda labels, outputs: tf.square(outputs - labels),
    ("count", "poisson"): tf.nn.log_poisson_loss,
}
"""Of labels that are one number each."""


def _of_groups(loss: Loss, relevance: tf.Tensor, groups: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Of the order of a group's events, float32 [n]; 0 for an example that nothing is compared with, or whose group has
    no relevant one.

    Args:
        relevance, groups, scores: float32 [n], the relevance from 0.
    """
    together = tf.equal(groups[:, tf.newaxis], groups[tf.newaxis, :])
    if loss.name == "listwise_softmax":
        totals = tf.linalg.matvec(tf.cast(together, tf.float32), relevance)
        inside = tf.where(together, tf.broadcast_to(scores[tf.newaxis, :], tf.shape(together)), _FAR)
        shares = tf.math.divide_no_nan(relevance, totals)
        return shares * (tf.reduce_logsumexp(inside, axis=1) - scores)
    above = tf.logical_and(together, relevance[:, tf.newaxis] > relevance[tf.newaxis, :])
    ahead = scores[:, tf.newaxis] - scores[tf.newaxis, :]
    if loss.name == "pairwise_hinge":
        terms = tf.maximum(float(loss.options.get("margin", 1.0)) - ahead, 0.0)  # type: ignore[arg-type] # a number
    else:
        terms = tf.nn.softplus(-ahead)
    compared = tf.cast(above, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(terms * compared, axis=1), tf.reduce_sum(compared, axis=1))
