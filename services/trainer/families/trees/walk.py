"""A grown ensemble as arrays, and the walk through all of its trees at once as tensor arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ensemble:
    """All nodes of all trees one after another. A leaf's children are itself, so that deep and shallow trees end alike.

    Attributes:
        roots: int32 [trees].
        outputs: int32 [trees], the output that a tree adds to.
        feature, left, right: int32 [nodes]; `left` is taken where the column is below the threshold.
        threshold: float32 [nodes].
        is_left_default: bool [nodes], where a missing value (NaN) goes.
        value: float32 [nodes], of leaves; 0 elsewhere.
        base: float32 [outputs], the margin without trees.
        depth: of the deepest tree.
    """

    roots: NDArray[np.int32]
    outputs: NDArray[np.int32]
    feature: NDArray[np.int32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    threshold: NDArray[np.float32]
    is_left_default: NDArray[np.bool_]
    value: NDArray[np.float32]
    base: NDArray[np.float32]
    depth: int


def ensemble_of(trees: Sequence[Mapping[str, Any]], tree_outputs: Sequence[int], base: NDArray[np.float32]) -> Ensemble:
    """From the trees of XGBoost's JSON model: https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html"""
    starts = np.cumsum([0, *(len(tree["left_children"]) for tree in trees)])
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("feature", "left", "right", "threshold", "default")}
    leaves, depth = [], 0
    for start, tree in zip(starts, trees, strict=False):
        left, right = (np.array(tree[name], np.int32) for name in ("left_children", "right_children"))
        is_leaf, own = left < 0, np.arange(len(left), dtype=np.int32)
        conditions = np.array(tree["split_conditions"], np.float32)
        parts["feature"].append(np.where(is_leaf, 0, np.array(tree["split_indices"], np.int32)))
        parts["left"].append(np.where(is_leaf, own, left) + np.int32(start))
        parts["right"].append(np.where(is_leaf, own, right) + np.int32(start))
        parts["threshold"].append(np.where(is_leaf, np.float32(0), conditions))
        parts["default"].append(np.array(tree["default_left"], np.bool_))
        leaves.append(np.where(is_leaf, conditions, np.float32(0)))
        depth = max(depth, _depth(left, right))
    joined = {
        name: np.concatenate([*arrays, np.zeros(0, np.float32 if name == "threshold" else np.int32)])
        for name, arrays in parts.items()
    }
    return Ensemble(
        roots=starts[:-1].astype(np.int32),
        outputs=np.array(tree_outputs, np.int32),
        feature=joined["feature"].astype(np.int32),
        left=joined["left"].astype(np.int32),
        right=joined["right"].astype(np.int32),
        threshold=joined["threshold"].astype(np.float32),
        is_left_default=joined["default"].astype(np.bool_),
        value=np.concatenate([*leaves, np.zeros(0, np.float32)]).astype(np.float32),
        base=base.astype(np.float32),
        depth=depth,
    )


def margins(ensemble: Ensemble, columns: tf.Tensor) -> tf.Tensor:
    """float32 [n, outputs] of columns float32 [n, columns], NaN for none: the base and what every tree adds."""
    count = tf.shape(columns)[0]
    base = tf.tile(tf.constant(ensemble.base)[tf.newaxis], [count, 1])
    if not len(ensemble.roots):
        return base
    node = tf.tile(tf.constant(ensemble.roots)[tf.newaxis], [count, 1])
    feature, threshold = tf.constant(ensemble.feature), tf.constant(ensemble.threshold)
    left, right, by_default = (
        tf.constant(ensemble.left), tf.constant(ensemble.right), tf.constant(ensemble.is_left_default)
    )  # fmt: skip
    for _ in range(ensemble.depth):
        values = tf.gather(columns, tf.gather(feature, node), batch_dims=1)
        goes_left = tf.where(tf.math.is_nan(values), tf.gather(by_default, node), values < tf.gather(threshold, node))
        node = tf.where(goes_left, tf.gather(left, node), tf.gather(right, node))
    added = tf.gather(tf.constant(ensemble.value), node)
    of_output = tf.one_hot(ensemble.outputs, len(ensemble.base), dtype=tf.float32)
    return base + tf.matmul(added, of_output)


def _depth(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """Steps from the root to the deepest leaf."""
    depth, level = 0, [0]
    while level := [int(child) for node in level if left[node] >= 0 for child in (left[node], right[node])]:
        depth += 1
    return depth
