"""Losses of the order of a group's events; a batch holds whole groups.

pairwise_logistic: of each example the mean over those of its group that are less relevant of log(1 + exp(-(s_i - s_j)))
    (Burges and others: Learning to Rank using Gradient Descent, 2005).
pairwise_hinge: of the same pairs, what s_i - s_j lacks to the margin (Herbrich, Graepel, Obermayer: Large Margin Rank
    Boundaries for Ordinal Regression, 2000).
listwise_softmax: of each group the cross-entropy between its relevances, which are made to add up to 1, and the softmax
    of its scores (Cao and others: Learning to Rank: From Pairwise Approach to Listwise Approach, 2007); an example has
    its own term of that sum.
"""

import tensorflow as tf

from common.definition.losses import Loss

_FAR = -1e30


def losses_of(loss: Loss, relevance: tf.Tensor, groups: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """float32 [n]; 0 for an example that nothing is compared with, or whose group has no relevant one.

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
