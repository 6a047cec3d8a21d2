"""What a network's outputs mean, head by head: labels to learn from, the loss, and the named outputs of the export.

| task              | network output            | labels here              | served outputs                     |
|-------------------|---------------------------|--------------------------|------------------------------------|
| binary            | logits [n] or [n, 1]      | int64 0, 1; soft float32 | probability [n], logits [n]        |
| multiclass        | logits [n, k]             | int64 0..k-1; soft [n,k] | probabilities [n, k], class_id [n] |
| multilabel        | logits [n, k]             | float32 [n, k], 0 and 1  | probabilities [n, k], logits       |
| regression        | predictions [n] or [n, 1] | float32 [n]              | prediction [n]                     |
| vector_regression | predictions [n, k]        | float32 [n, k]           | prediction [n, k]                  |
| count             | log of rates [n], [n, 1]  | float32 [n]              | prediction [n], the rate; log_rate |
| quantiles         | predictions [n, levels]   | float32 [n]              | quantiles [n, levels]              |
| ranking           | scores [n] or [n, 1]      | float32 [n, 2]: relevance| prediction [n], the score          |
|                   |                           | and number of the group  |                                    |
| retrieval         | ranks [n]                 | float32 [n], zeros       | families/retrieval.py              |

An embedding is served with length 1, as its loss sees it. class_id is int64, all other outputs are float32. Of several
heads each output is served as <head>/<output>. A label that is a word of the schema's vocabulary is its place there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from common.definition.heads import Head
from common.definition.labels import class_count, unit_count
from common.definition.losses import Task
from common.schema import Feature, Schema
from services.trainer.families import losses as head_losses
from services.trainer.families.calibration import Calibrator
from services.trainer.features.parsing import is_padding

ByHead = Mapping[str, tf.Tensor]
VECTORS: frozenset[Task] = frozenset({"multiclass", "multilabel", "vector_regression", "quantiles", "embedding"})
"""Tasks of which an example has a vector of outputs."""


@dataclass(frozen=True)
class BuiltHead:
    """A head on a stream's label and a network's output.

    Attributes:
        class_count: 2 for binary, k for multiclass and multilabel, 0 for numbers.
        units: numbers that the network gives per example.
    calibrator: where the definition asks for calibration.
    """

    head: Head
    label: Feature
    class_count: int
    units: int
    calibrator: Calibrator | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.head.name

    @property
    def task(self) -> Task:
        return self.head.task

    @property
    def question(self) -> tuple[object, ...]:
        """What its outputs answer; those of two models can be compared only where it is the same."""
        more = (self.head.levels,) if self.task == "quantiles" else ()
        return (self.task, self.head.label, self.class_count, self.label.vocabulary, *more)

    @property
    def label_spec(self) -> tf.TensorSpec:
        """Of a batch of labels, as `labels_of` gives them."""
        if self.task == "ranking":
            return tf.TensorSpec([None, 2], tf.float32)
        if self.task in ("multilabel", "vector_regression") or self.is_distribution:
            return tf.TensorSpec([None, self.units], tf.float32)
        is_class = self.task in ("binary", "multiclass", "embedding") and self.label.dtype != "float32"
        return tf.TensorSpec([None], tf.int64 if is_class else tf.float32)

    @property
    def is_distribution(self) -> bool:
        """Labels are a share of each class."""
        return self.task == "multiclass" and self.label.dtype == "float32"

    @property
    def is_standardized(self) -> bool:
        """The definition says mean and deviation of the label."""
        return (self.head.mean, self.head.deviation) != (Head.mean, Head.deviation)

    @property
    def output_width(self) -> tuple[int, ...]:
        """Of an example's outputs: () or (units,)."""
        return (self.units,) if self.task in VECTORS else ()

    def is_missing(self, raw: tf.Tensor) -> tf.Tensor:
        """bool [n]: the event has no such label, which the schema allows."""
        first = tf.reshape(raw, [tf.shape(raw)[0], -1])[:, 0] if raw.shape.rank and raw.shape.rank > 1 else raw
        return is_padding(first)

    def labels_of(self, raw: tf.Tensor, groups: tf.Tensor | None = None) -> tf.Tensor:
        """Labels as `label_spec` says from the raw label; -1 for a word that is not in the schema's vocabulary.

        A label that is missing is 0 or zeros.

        Args:
            groups: of a ranking, int64 [n], below 2^24; None: all are one group.
        """
        if self.task == "ranking":
            relevance = tf.cast(tf.reshape(raw, [-1]), tf.float32)
            numbers = tf.zeros_like(relevance) if groups is None else tf.cast(groups, tf.float32)
            return tf.stack([relevance, numbers], axis=1)
        labels = self._labels_of(raw)
        if not self.label.may_be_missing:
            return labels
        missing = self.is_missing(raw)
        missing = missing[:, tf.newaxis] if labels.shape.rank == 2 else missing
        return tf.where(missing, tf.zeros_like(labels), labels)

    def _labels_of(self, raw: tf.Tensor) -> tf.Tensor:
        if self.task == "retrieval":  # the item is a column of the model
            return tf.zeros(tf.shape(raw)[:1])
        if self.task == "multilabel" and self.label.is_variable_length:
            return _many_hot(self.label, raw, self.class_count)
        spec = self.label_spec
        if spec.shape.rank == 2:
            return tf.cast(tf.reshape(raw, [-1, self.units]), tf.float32)
        flat = tf.reshape(raw, [-1])
        return tf.cast(flat, spec.dtype) if self.label.dtype != "string" else _places(self.label, flat)

    def is_label(self, labels: tf.Tensor) -> tf.Tensor:
        """bool [n]: the task can have the label."""
        if self.task == "embedding":
            return labels >= 0
        if labels.dtype == tf.int64:
            return tf.logical_and(labels >= 0, labels < self.class_count)
        good = tf.math.is_finite(labels)
        if self.task in ("binary", "multilabel"):
            good = tf.logical_and(good, tf.logical_and(labels >= 0.0, labels <= 1.0))
        elif self.is_distribution or self.task in ("count", "ranking"):
            good = tf.logical_and(good, labels >= 0.0)
        if labels.shape.rank == 2:
            good = tf.reduce_all(good, axis=1)
        if self.is_distribution:
            good = tf.logical_and(good, tf.abs(tf.reduce_sum(labels, axis=1) - 1.0) < _SUM_TOLERANCE)
        return good

    def outputs_of(self, network_output: tf.Tensor) -> tf.Tensor:
        """float32 [n], or [n, units] (VECTORS); of numbers, in units of the label."""
        output = tf.cast(network_output, tf.float32)
        if self.is_standardized:
            output = output * self.head.deviation + self.head.mean
        return output if self.task in VECTORS or output.shape.rank == 1 else output[:, 0]

    def calibrated(self, outputs: tf.Tensor) -> tf.Tensor:
        """What is served and judged: `outputs` unless the head is calibrated."""
        return self.calibrator(outputs) if self.calibrator else outputs

    def losses_of(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """float32 [n]."""
        if self.is_standardized:
            labels, outputs = ((values - self.head.mean) / self.head.deviation for values in (labels, outputs))
        losses = head_losses.losses_of(self.head, labels, outputs, class_count=self.class_count)
        return self.class_weighted(losses, labels)

    def class_weighted(self, losses: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Each times the weight of its label's class; a soft label's is the mean over the classes it names."""
        given = self.head.class_weights
        if not given:
            return losses
        known = self.label.vocabulary or tuple(str(number) for number in range(self.class_count))
        factors = tf.constant([given.get(name, 1.0) for name in known], tf.float32)
        if labels.dtype == tf.int64:
            return losses * tf.gather(factors, labels)
        if labels.shape.rank == 1:
            return losses * (factors[0] * (1.0 - labels) + factors[1] * labels)
        return losses * tf.linalg.matvec(labels, factors)

    def served(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """By name, without the head's."""
        predicted = head_losses.predictions_of(self.task, outputs)
        match self.task:
            case "binary":
                return {"probability": predicted, "logits": tf.identity(outputs)}
            case "multiclass":
                return {"probabilities": predicted, "class_id": tf.argmax(outputs, axis=-1, output_type=tf.int64)}
            case "multilabel":
                return {"probabilities": predicted, "logits": tf.identity(outputs)}
            case "count":
                return {"prediction": predicted, "log_rate": tf.identity(outputs)}
            case "embedding":
                return {"embedding": predicted}
            case "quantiles":
                return {"quantiles": tf.identity(outputs)}
            case _:
                return {"prediction": tf.identity(outputs)}


_SUM_TOLERANCE = 1e-3


def built_heads(
    heads: tuple[Head, ...], schema: Schema, widths: Mapping[str, int] | None = None
) -> tuple[BuiltHead, ...]:
    """`widths`: of a module's outputs, by head; they say the number of classes where nothing else does."""
    built = []
    for head in heads:
        label = schema.feature(head.label)
        classes = class_count(head, label) if widths is None or head.task != "multiclass" else widths[head.name]
        units = unit_count(head, label, classes) if head.task != "embedding" else (widths or {})[head.name]
        calibrator = Calibrator(head.calibration) if head.calibration else None
        built.append(BuiltHead(head, label, classes, units, calibrator))
    return tuple(built)


def answered_by(heads: Iterable[BuiltHead], others: Iterable[BuiltHead]) -> dict[str, str]:
    """For each head the head among `others` that answers the same question, by preference of the same name."""
    found = dict[str, str]()
    theirs = list(others)
    for head in heads:
        same = [head_of_theirs.name for head_of_theirs in theirs if head_of_theirs.question == head.question]
        if same:
            found[head.name] = head.name if head.name in same else same[0]
    return found


def _places(label: Feature, flat: tf.Tensor) -> tf.Tensor:
    found = tf.equal(flat[:, tf.newaxis], tf.constant(label.vocabulary)[tf.newaxis, :])
    ids = tf.argmax(found, axis=-1, output_type=tf.int64)
    return tf.where(tf.reduce_any(found, axis=-1), ids, tf.constant(-1, tf.int64))


def _many_hot(label: Feature, raw: tf.Tensor, class_count: int) -> tf.Tensor:
    """float32 [n, classes] from a list of words or ids of any length; a row of -1 where one has no class."""
    known = tf.constant(label.vocabulary) if label.dtype == "string" else tf.range(class_count, dtype=tf.int64)
    found = tf.equal(raw[:, :, tf.newaxis], known)
    is_known = tf.reduce_all(tf.logical_or(tf.reduce_any(found, axis=2), is_padding(raw)), axis=1)
    hot = tf.cast(tf.reduce_any(found, axis=1), tf.float32)
    return tf.where(is_known[:, tf.newaxis], hot, -tf.ones_like(hot))
