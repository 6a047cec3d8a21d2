"""What a network's output means, by task: the loss, and the named outputs of the export.

| task       | network output          | label        | served outputs                                       |
|------------|-------------------------|--------------|------------------------------------------------------|
| binary     | logits float32 [n, 1]   | 0 or 1       | probability float32 [n], logits float32 [n]          |
| multiclass | logits float32 [n, k]   | 0..k-1       | probabilities float32 [n, k], class_id int64 [n]     |
| regression | predictions [n, 1]      | any number   | prediction float32 [n]                               |

A classifier's label may be a word of the schema's vocabulary in place of a number: its class is its place there.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf

from common.definition.model import Task
from common.schema import Feature

LABEL_DTYPES: Mapping[Task, tf.DType] = {"binary": tf.int64, "multiclass": tf.int64, "regression": tf.float32}


def outputs_of(task: Task, network_output: tf.Tensor) -> tf.Tensor:
    """float32 [n] (binary, regression) or [n, k] (multiclass)."""
    output = tf.cast(network_output, tf.float32)
    return output if task == "multiclass" or output.shape.rank == 1 else output[:, 0]


def loss_of(task: Task, labels: tf.Tensor, outputs: tf.Tensor, *, regression: str = "mean_squared_error") -> tf.Tensor:
    """Per example, float32 [n]: cross-entropy of the logits, or Keras's loss of the name `regression`."""
    if task == "multiclass":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)
    if task == "binary":
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=outputs)
    if regression != "mean_squared_error":
        return getattr(keras.losses, regression)(labels[:, tf.newaxis], outputs[:, tf.newaxis])
    return tf.square(outputs - labels)


def served_outputs(task: Task, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    if task == "binary":
        return {"probability": tf.sigmoid(outputs), "logits": tf.identity(outputs)}
    if task == "multiclass":
        return {"probabilities": tf.nn.softmax(outputs), "class_id": tf.argmax(outputs, axis=-1, output_type=tf.int64)}
    return {"prediction": tf.identity(outputs)}


def labels_of(task: Task, feature: Feature, raw: tf.Tensor) -> tf.Tensor:
    """LABEL_DTYPES[task] [n] from the raw label [n] or [n, 1]; -1 for a word that is not in the schema's vocabulary."""
    flat = tf.reshape(raw, [-1])
    if feature.dtype != "string":
        return tf.cast(flat, LABEL_DTYPES[task])
    found = tf.equal(flat[:, tf.newaxis], tf.constant(feature.vocabulary)[tf.newaxis, :])
    ids = tf.argmax(found, axis=-1, output_type=tf.int64)
    return tf.where(tf.reduce_any(found, axis=-1), ids, tf.constant(-1, tf.int64))


def is_label(task: Task, labels: tf.Tensor, class_count: int) -> tf.Tensor:
    """bool [n]: the label is one that the task can have."""
    if task == "regression":
        return tf.math.is_finite(labels)
    return tf.logical_and(labels >= 0, labels < class_count)
