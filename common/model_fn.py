"""What a module's `model_fn(features, labels, mode, params, config)` is given and returns (docs/guide/keras.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ModeKeys:
    """What a call is for; the names and values of TensorFlow's estimators."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


@dataclass(frozen=True)
class RunConfig:
    """What a function that takes `config` learns of its round; the names of TensorFlow's estimators.

    Attributes:
        save_checkpoints_steps: training.save_every_steps; None where resume points go by time alone.
        train_batch_size: in examples.
    """

    save_checkpoints_steps: int | None
    train_batch_size: int


@dataclass(frozen=True)
class EstimatorSpec:
    """Any object or dict with these names serves as well; None where the mode does not need it.

    Attributes:
        predictions: a tensor or tensors by name, one of them named after each head; needed by mode infer.
        loss: scalar tensor; needed by the modes train and eval.
        train_op: what updates the variables: a function without arguments, or what updating them has returned.
        optimizer: a Keras optimizer that minimises the loss, in place of a train_op or of model.yaml's optimizer.
        eval_metric_ops: Keras metrics that the call has updated, what tf.compat.v1.metrics gives, or tensors whose mean
            is meant, by name.
        export_outputs: further signatures: a tensor or tensors by name, by the signature's name.
    """

    mode: str = ""
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    optimizer: Any = None
    eval_metric_ops: Mapping[str, Any] = field(default_factory=dict)
    export_outputs: Mapping[str, Any] = field(default_factory=dict)
