"""A definition made ready to train and to score: the transform, the network, the loss.

Estimators are split: the transform (raw features to ids and numbers) has nothing to learn, so training runs it once per
block and the network once per batch. A Keras module takes the raw features itself; there the transform is empty.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Definition, check_classes
from common.schema import Feature, Schema
from services.trainer import determinism
from services.trainer.families import heads
from services.trainer.families.estimators.network import build_network, needed_features
from services.trainer.families.keras_module import (
    LossFunction,
    MetricsFunction,
    UserModule,
    blame_definition,
    build_from_module,
    load_module,
)
from services.trainer.features.parsing import Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform, Transformed

_SCORE_ROWS = 4096
Columns = Mapping[str, tf.Tensor]


@dataclass(frozen=True)
class BuiltModel:
    """Attributes:
    inputs: the raw features it needs, in order of name.
    class_count: 2 for binary, k for multiclass, 0 for regression.
    seed_state: of Keras's own generator; draws of layers without one follow from it.
    """

    definition: Definition
    schema: Schema
    inputs: tuple[Feature, ...]
    transform: Transform | None
    network: keras.Model
    class_count: int
    user_loss: LossFunction | None
    user_metrics: MetricsFunction | None
    seed_state: keras.Variable

    @property
    def question(self) -> tuple[object, ...]:
        """What its outputs answer; those of two models can be compared only where it is the same."""
        label = self.definition.label
        return (self.definition.task, label, self.class_count, self.schema.feature(label).vocabulary)

    def transformed(self, raw: Raw) -> Transformed:
        """What training works on: refuses nothing, says what it would refuse."""
        if self.transform is None:
            return Transformed({feature.name: raw[feature.name] for feature in self.inputs}, {}, {})
        return self.transform(raw)

    def outputs(self, columns: Columns, *, training: bool) -> tf.Tensor:
        """float32 [n] (binary, regression) or [n, k]: logits or predictions."""
        inputs = keras.tree.map_structure(lambda tensor: columns[tensor.name], self.network.input)
        return heads.outputs_of(self.definition.task, self.network(inputs, training=training))

    def column_specs(self) -> dict[str, tf.TensorSpec]:
        """Of the network's inputs, for any number of rows: one compilation serves every block and batch."""
        return {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.network.inputs}

    def compiled(self, function: Callable[..., tf.Tensor], *specs: object) -> Callable[..., tf.Tensor]:
        """A tf.function for these argument types only.

        A user's Python may branch on tensors, as under Keras's own fit; ours does not, and traces faster without.
        """
        return tf.function(function, input_signature=specs, autograph=self.definition.module is not None)

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Per example, float32 [n]."""
        if self.user_loss is None:
            return heads.loss_of(self.definition.task, labels, outputs)
        return tf.cast(self.user_loss(labels, outputs), tf.float32)

    def serve(self, raw: Raw) -> dict[str, tf.Tensor]:
        """The exported function: raw features to named outputs."""
        columns = self.transform.strict(raw) if self.transform else raw
        return heads.served_outputs(self.definition.task, self.outputs(columns, training=False))


def load_user_module(
    definition: Definition, files: Mapping[str, bytes], *, digest: str, directory: Path
) -> UserModule | None:
    """The definition's Keras module, or None for an estimator."""
    if definition.module is None:
        return None
    return load_module(files, definition.module, digest=digest, directory=directory)


def build(
    definition: Definition, schema: Schema, statistics: Statistics, module: UserModule | None, *, seed: int
) -> BuiltModel:
    """Builds it from the seed: equal arguments give equal initial weights and equal variable paths.

    Raises:
        DefinitionFailedError: a user's module does not give a usable model.
    """
    seed_state = determinism.start_from_seed(seed)
    if module is None:
        parameters = definition.estimator_parameters
        assert parameters is not None
        transform = Transform(definition.features, needed_features(parameters), statistics, schema)
        inputs = tuple(schema.feature(name) for name in transform.raw_names)
        network = build_network(definition, transform)
        classes = 0 if definition.task == "regression" else parameters.classes
        return BuiltModel(definition, schema, inputs, transform, network, classes, None, None, seed_state)
    network = build_from_module(module, schema, definition)
    names = sorted({tensor.name for tensor in network.inputs})
    classes = {"binary": 2, "regression": 0}.get(definition.task, int(network.outputs[0].shape[-1] or 0))
    if classes:
        check_classes(schema.feature(definition.label), classes, place=f"{definition.module}: label {definition.label}")
    inputs = tuple(schema.feature(name) for name in names)
    return BuiltModel(definition, schema, inputs, None, network, classes, module.loss, module.metrics, seed_state)


class Scorer:
    """Predictions of a frozen model, compiled once: columns of any number of rows to outputs as float32 arrays."""

    def __init__(self, model: BuiltModel) -> None:
        self._model = model
        self._call = model.compiled(lambda columns: model.outputs(columns, training=False), model.column_specs())

    def __call__(self, columns: Columns, count: int) -> NDArray[np.float32]:
        """`count` rows; scored a few thousand at a time, so that memory stays small."""
        width = () if self._model.definition.task != "multiclass" else (self._model.class_count,)
        if not count:
            return np.zeros((0, *width), np.float32)
        parts = []
        names = self._model.column_specs()
        with blame_definition(self._model.definition.module or "the estimator"):
            for start in range(0, count, _SCORE_ROWS):
                rows = {name: columns[name][start : start + _SCORE_ROWS] for name in names}
                parts.append(self._call(rows).numpy())
        return np.concatenate(parts).astype(np.float32)
