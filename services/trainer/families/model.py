"""A definition made ready to train and to score: the transform, the network, the loss.

Estimators are split: the transform (raw features to ids and numbers) has nothing to learn, so training runs it once per
block and the network once per batch. A Keras module takes the raw features itself; there the transform is empty.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Definition, EstimatorParameters, check_classes
from common.schema import PADDING, Feature, Scalar, Schema
from services.trainer import determinism
from services.trainer.families import heads, layer_state
from services.trainer.families.compiled import Compiled, compiled_of
from services.trainer.families.estimators.network import build_network, needed_features
from services.trainer.families.keras_module import build_from_module
from services.trainer.families.port import Arrays, Columns, Signature
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.user_module import AdaptFunction, LossFunction, MetricsFunction, UserModule
from services.trainer.families.wiring import Wiring, wiring_of
from services.trainer.features.parsing import Raw, is_padding
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform, Transformed

_SCORE_ROWS = 4096
_MODULE_PADDING: Mapping[str, np.int64 | str] = {"int64": np.int64(-1), "string": ""}
_NOTHING_COMPILED = Compiled()


@dataclass(frozen=True)
class BuiltModel:
    """Attributes:
    inputs: the raw features it needs, in order of name.
    class_count: 2 for binary, k for multiclass, 0 for regression.
    wiring: how the network is called, and what its outputs are.
    compiled_by_user: what a module has compiled itself.
    adapt: a module's own; fits its preprocessing layers.
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
    wiring: Wiring
    compiled_by_user: Compiled = _NOTHING_COMPILED
    adapt: AdaptFunction | None = None

    @property
    def question(self) -> tuple[object, ...]:
        """What its outputs answer; those of two models can be compared only where it is the same."""
        label = self.definition.label
        return (self.definition.task, label, self.class_count, self.schema.feature(label).vocabulary)

    def transformed(self, raw: Raw) -> Transformed:
        """What training works on: refuses nothing, says what it would refuse."""
        if self.transform is None:
            return Transformed(self._given(raw), {}, {})
        return self.transform(raw)

    def _given(self, raw: Raw) -> dict[str, tf.Tensor]:
        """What a module's network takes: the raw inputs, lists of any length filled up with the empty word and -1."""
        inputs = {feature.name: raw[feature.name] for feature in self.inputs}
        for feature in self.inputs:
            if feature.is_variable_length and feature.dtype in _MODULE_PADDING:
                values = inputs[feature.name]
                inputs[feature.name] = tf.where(is_padding(values), _MODULE_PADDING[feature.dtype], values)
        return inputs

    def fit(self, before: Arrays, blocks: Callable[[], Iterator[Columns]]) -> None:
        """Preprocessing layers learn from the round's trained examples where `before` lacks what they learned.

        First of all, because what is traced afterwards holds their state as constants.
        """
        missing = layer_state.restore(self.network, before)
        if not missing or self.adapt is None:
            return
        with blame_definition(str(self.definition.module), doing="adapt"):
            layer_state.adapt(self.network, self.adapt, self.column_specs(), blocks)
        if before:
            layer_state.restore(self.network, before)

    def scorer(self) -> "Scorer":
        return Scorer(self)

    def signatures(self) -> dict[str, Signature]:
        return {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: Signature(self.inputs, self.serve)}

    @property
    def padding(self) -> Mapping[str, Scalar]:
        """The transform takes the padding for "nothing there"; what a user's layers take it for is not known here."""
        return PADDING if self.transform is not None else {}

    @property
    def exported(self) -> list[object]:
        """Lookup tables and plain tf.Variables anywhere in the network too: an export has to be told of each."""
        found = tf.train.TrackableView(self.network).descendants()
        resources = [
            one for one in found if isinstance(one, tf.saved_model.experimental.TrackableResource | tf.Variable)
        ]
        return [*(variable.value for variable in self.network.variables), *resources]

    def outputs(self, columns: Columns, *, training: bool) -> tf.Tensor:
        """float32 [n] (binary, regression) or [n, k]: logits or predictions."""
        return self.main_output(self.network(self.wiring.arranged(columns), training=training))

    def main_output(self, outputs: Any) -> tf.Tensor:
        """Of what the network returned: the one that the label teaches, as `outputs` gives it."""
        return heads.outputs_of(self.definition.task, self.wiring.named(outputs)[self.wiring.main])

    def column_specs(self) -> dict[str, tf.TensorSpec]:
        """Of the network's inputs, for any number of rows: one compilation serves every block and batch."""
        return {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in self.wiring.columns.items()}

    def compiled(self, function: Callable[..., tf.Tensor], *specs: object) -> Callable[..., tf.Tensor]:
        """A tf.function for these argument types only.

        A user's Python may branch on tensors, as under Keras's own fit; ours does not, and traces faster without.
        """
        return tf.function(function, input_signature=specs, autograph=self.definition.module is not None)

    def loss(self, columns: Columns, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """float32 scalar of a batch: the weighted mean of its losses, with regularisers and what layers add.

        A compiled loss is reduced as Keras reduces it: the weighted sum over the number of examples.
        """
        inputs = self.wiring.arranged(columns)
        outputs = self.network(inputs, training=True)
        if self.compiled_by_user.has_loss:
            taught = {self.wiring.main: labels} if self.wiring.is_named else labels
            given = {self.wiring.main: outputs[self.wiring.main]} if self.wiring.is_named else outputs
            total = self.network.compute_loss(x=inputs, y=taught, y_pred=given, sample_weight=weights)
            return tf.cast(tf.ensure_shape(total, []), tf.float32)
        losses = self._losses(labels, outputs)
        data_loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
        return tf.add_n([data_loss, *(tf.cast(tf.reduce_sum(loss), tf.float32) for loss in self.network.losses)])

    def _losses(self, labels: tf.Tensor, outputs: Any) -> tf.Tensor:
        """Per example, float32 [n]."""
        if self.user_loss is None:
            parameters = self.definition.estimator_parameters or EstimatorParameters()
            main = self.main_output(outputs)
            return heads.loss_of(self.definition.task, labels, main, regression=parameters.loss)
        given = self.wiring.named(outputs) if len(self.wiring.names) > 1 else self.main_output(outputs)
        losses = tf.cast(self.user_loss(labels, given), tf.float32)
        if losses.shape.rank not in (None, 1):
            raise DefinitionFailedError(
                f"{self.definition.module}: loss() returned shape {losses.shape}, expected one loss per example, [n]"
            )
        same_length = tf.debugging.assert_equal(
            tf.shape(losses)[:1], tf.shape(labels), message="loss() must return one loss per example, [n]"
        )
        with tf.control_dependencies([same_length]):
            return tf.ensure_shape(losses, [None])

    def compiled_metrics(self) -> Callable[..., dict[str, float]] | None:
        """What the module's model has compiled to measure: labels, outputs and weights as arrays to numbers by name."""
        if not self.compiled_by_user.has_metrics:
            return None
        network = self.network

        def measured(labels: Any, outputs: Any, weights: Any) -> dict[str, float]:
            network.reset_metrics()
            found = network.compute_metrics(x=None, y=labels, y_pred=outputs, sample_weight=weights)
            return {name: float(value) for name, value in found.items() if name != "loss"}

        return measured

    def serve(self, raw: Raw) -> dict[str, tf.Tensor]:
        """The exported function: raw features to named outputs."""
        columns = self.transform.strict(raw) if self.transform else self._given(raw)
        returned = self.network(self.wiring.arranged(columns), training=False)
        others = self.wiring.named(returned)
        others.pop(self.wiring.main)
        served = heads.served_outputs(self.definition.task, self.main_output(returned))
        return {name: tf.identity(output) for name, output in others.items()} | served


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
        wiring = wiring_of(network.input, network.output, ("outputs",), "outputs")
        return BuiltModel(definition, schema, inputs, transform, network, classes, None, None, seed_state, wiring)
    path = str(definition.module)
    network, wiring = build_from_module(module, schema, definition)
    compiled = compiled_of(
        network, path, task=definition.task, optimizer=definition.training.optimizer, own_loss=module.loss
    )
    classes = {"binary": 2, "regression": 0}.get(definition.task, int(wiring.main_shape[-1] or 0))
    if classes:
        check_classes(schema.feature(definition.label), classes, place=f"{path}: label {definition.label}")
    inputs = tuple(schema.feature(name) for name in sorted(wiring.columns))
    return BuiltModel(
        definition, schema, inputs, None, network, classes, module.loss, module.metrics, seed_state, wiring, compiled,
        module.adapt,
    )  # fmt: skip


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
