"""A definition made ready to train and to score: the transform, the network, the loss.

Estimators are split: the transform (raw features to ids and numbers) has nothing to learn, so training runs it once per
block and the network once per batch. A Keras module takes raw features, and the transform's where the definition has
features of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.inputs import WITH_CONTEXT
from common.definition.model import Definition
from common.facts import present
from common.feature_keys import Scalar
from common.schema import PADDING, Feature, Schema
from services.trainer.families import hidden_state, layer_state, module_inputs
from services.trainer.families.authors_code import called
from services.trainer.families.bottleneck import Bottleneck
from services.trainer.families.compiled import Compiled, measured_by
from services.trainer.families.estimators.batch_tables import BatchTable
from services.trainer.families.estimators.layers import of_frozen
from services.trainer.families.heads import BuiltHead, ByHead
from services.trainer.families.hooks import HookSet
from services.trainer.families.model_fn import ModelFnEvaluation, ModelFnNetwork
from services.trainer.families.module_checks import check_logits
from services.trainer.families.placement import Placement
from services.trainer.families.port import Arrays, Columns, Signature
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.shared_context import SharedContext
from services.trainer.families.user_module import AdaptFunction, LossFunction, MetricsFunction
from services.trainer.families.wiring import Wiring
from services.trainer.features.parsing import Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform, Transformed
from services.trainer.keras_internals import without_copy
from services.trainer.shards.bits import is_seed
from services.trainer.shards.gradients import Whole

_SCORE_ROWS = 4096
_FEATURES = ".bottleneck"
"""Below the cache, beside the models, none of which may have this name."""
_NOTHING_COMPILED = Compiled()


@dataclass(frozen=True)
class BuiltModel:
    """Attributes:
    inputs: the raw features it needs, in order of name.
    heads: what it learns and answers, in the definition's order.
    wiring: how the network is called, and what its outputs are.
    compiled_by_user: what a module has compiled itself.
    adapt: a module's own; fits its preprocessing layers.
    hooks: of a module and of training.hooks (families/hooks.py).
    bottleneck: what is computed before training (bottleneck.py); `wiring` then is of the network behind it.
    placement: where layers compute (placement.py).
    seed_state: of Keras's own generator; draws of layers without one follow from it.
    batch_tables: by name, embedding tables of which the network holds the rows of one batch only.
    shared: features that rows of a request share (shared_context.py).
    unknown: variables of a module's that may not be used (hidden_state.py).
    """

    definition: Definition
    schema: Schema
    inputs: tuple[Feature, ...]
    transform: Transform | None
    network: keras.Model
    heads: tuple[BuiltHead, ...]
    user_loss: LossFunction | Mapping[str, LossFunction] | None
    user_metrics: MetricsFunction | None
    seed_state: keras.Variable
    wiring: Wiring
    compiled_by_user: Compiled = _NOTHING_COMPILED
    adapt: AdaptFunction | None = None
    hooks: tuple[HookSet, ...] = ()
    bottleneck: Bottleneck | None = None
    placement: Placement = field(default_factory=Placement)
    batch_tables: Mapping[str, BatchTable] = field(default_factory=dict)
    shared: SharedContext | None = None
    unknown: hidden_state.Made = ()

    @property
    def _taught(self) -> keras.Model:
        """What training calls; it shares its layers with the network."""
        return self.bottleneck.tail if self.bottleneck else self.network

    @property
    def _wanted(self) -> Wiring:
        """How the network is called, from the stream's features on."""
        return self.bottleneck.wiring if self.bottleneck else self.wiring

    @property
    def _model_fn(self) -> ModelFnNetwork | None:
        return self.network if isinstance(self.network, ModelFnNetwork) else None

    @property
    def makes_layers(self) -> bool:
        return self._model_fn is not None

    def facts(self) -> dict[str, Any]:
        return present(
            bottleneck=self.bottleneck.report() if self.bottleneck else None, placement=self.placement.report()
        )

    def timings(self) -> dict[str, float]:
        """`bottleneck` is the part of `read` and `evaluate` in which the base ran or its features were read."""
        return present(bottleneck=self.bottleneck and self.bottleneck.seconds)

    def keep_below(self, folder: Path) -> None:
        if self.bottleneck:
            self.bottleneck.directory = folder / _FEATURES

    def transformed(self, raw: Raw) -> Transformed:
        """What training works on: refuses nothing, says what it would refuse."""
        done = self.transform(raw) if self.transform else Transformed({}, {}, {})
        given = self._given(raw) | done.columns
        return replace(done, columns=self.bottleneck.columns_of(given) if self.bottleneck else given)

    def _given(self, raw: Raw) -> dict[str, tf.Tensor]:
        """What a module's network takes of raw features, lists of any length filled up with its fillers."""
        if self.definition.module is None:
            return {}
        made = self.transform.outputs if self.transform else ()
        columns = {name: tensor for name, tensor in self._wanted.columns.items() if name not in made}
        return module_inputs.given(self.inputs, columns, raw)

    def _strictly(self, raw: Raw) -> dict[str, tf.Tensor]:
        """Everything that the network takes; running it fails where an example breaks a feature's rule."""
        return self._given(raw) | (self.transform.strict(raw) if self.transform else {})

    def fit(self, before: Arrays, blocks: Callable[[], Iterator[Columns]]) -> None:
        """The module's adapt sees the round's trained examples, where `before` is empty or lacks what a layer learned.

        What else it assigned before lasts as any variable does. First of all, because what is traced afterwards holds
        the layers' state as constants.
        """
        missing = layer_state.restore(self.network, before)
        if self.adapt is None or (before and not missing):
            return
        if lists := sorted(module_inputs.list_names(self.wiring.columns)):
            raise DefinitionFailedError(
                f"{self.definition.module}: adapt gets plain batches, and {', '.join(lists)} is ragged or sparse"
            )
        with blame_definition(str(self.definition.module), doing="adapt"):
            layer_state.adapt(self.network, self.adapt, self.column_specs(), blocks)
        if before:
            layer_state.restore(self.network, before)

    def scorer(self) -> "Scorer":
        return self._scorer

    @cached_property
    def _scorer(self) -> "Scorer":
        return Scorer(self)

    def signatures(self) -> dict[str, Signature]:
        found = {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: Signature(self.inputs, self.serve)}
        if self.shared:
            found[WITH_CONTEXT] = Signature(self.inputs, self._with_context, self.shared.names)
        if network := self._model_fn:
            found |= {name: Signature(self.inputs, self._exported(network, name)) for name in network.signature_names}
        return found

    def _exported(self, network: ModelFnNetwork, name: str) -> Callable[[Raw], dict[str, tf.Tensor]]:
        """What model_fn's export_outputs has under a name; under serving_default beside the heads' outputs."""
        is_default = name == tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

        def answer(raw: Raw) -> dict[str, tf.Tensor]:
            own = {key: tf.identity(value) for key, value in network.exported(name, self._strictly(raw)).items()}
            return own | self.serve(raw) if is_default else own

        return answer

    @property
    def padding(self) -> Mapping[str, Scalar]:
        """The transform takes the padding for "nothing there"; a user's layers know it where they ask for the mask."""
        lists = {feature.name for feature in self.inputs if feature.is_variable_length}
        if self.definition.module:
            columns = self._wanted.columns
            lists = module_inputs.masked_names(self.inputs, columns) | module_inputs.list_names(columns)
        return {
            feature.name: PADDING[feature.dtype] for feature in self.inputs if lists & {feature.name, feature.rows_of}
        }

    def restate(self, statistics: Statistics) -> bool:
        if self.transform and not self.transform.fitted.restate(statistics):
            return False
        for head in self.heads:
            if head.calibrator:
                head.calibrator.reset()
        if self.bottleneck:
            self.bottleneck.begin_again()
        return True

    @property
    def exported(self) -> list[object]:
        """Lookup tables and plain tf.Variables anywhere in the network too: an export has to track each."""
        found = tf.train.TrackableView(self.network).descendants()
        resources = [
            resource
            for resource in found
            if isinstance(resource, tf.saved_model.experimental.TrackableResource | tf.Variable)
        ]
        calibrations = [head.calibrator.variable for head in self.heads if head.calibrator]
        fitted = self.transform.fitted.variables if self.transform else []
        return [*(variable.value for variable in self.network.variables), *resources, *calibrations, *fitted]

    def outputs(self, columns: Columns, *, training: bool) -> dict[str, tf.Tensor]:
        """By head, float32 [n] or [n, units]: logits or predictions, as families/heads.py says."""
        with self.looked_at(is_answer=not training) as results:
            results.append(self._taught(self.wiring.arranged(columns), training=training))
        return self.by_head(results[0])

    def looked_at(self, *, is_answer: bool = False) -> AbstractContextManager[list[Any]]:
        """hidden_state.only_known_state, of the module's code that is traced within."""
        path = self.definition.module
        seeds = [self.seed_state, *(variable for variable in self.network.variables if is_seed(variable))]
        return hidden_state.only_known_state(
            path, self.unknown, [seed.value for seed in seeds], is_answer=is_answer, makes_layers=self.makes_layers
        )

    def by_head(self, outputs: Any) -> dict[str, tf.Tensor]:
        """Of what the network returned, as `outputs` gives it."""
        named = self.wiring.named(outputs)
        if self.definition.module:
            for head in self.heads:
                check_logits(head, named[self.wiring.taught[head.name]], self.definition.module)
        return {head.name: head.outputs_of(named[self.wiring.taught[head.name]]) for head in self.heads}

    @property
    def has_weights(self) -> bool:
        """Whether examples may weigh differently: the stream says so, or a label may be missing."""
        return self.schema.weight is not None or any(head.label.may_be_missing for head in self.heads)

    def column_specs(self) -> dict[str, tf.TensorSpec]:
        """Of the network's inputs, for any number of rows: one compilation serves every block and batch."""
        return {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in self.wiring.columns.items()}

    def batch_specs(self) -> tuple[dict[str, tf.TensorSpec], ...]:
        """Of columns, labels and weights of a batch."""
        labels = {head.name: head.label_spec for head in self.heads}
        return self.column_specs(), labels, dict.fromkeys(labels, tf.TensorSpec([None], tf.float32))

    def compiled(self, function: Callable[..., tf.Tensor], *specs: object) -> Callable[..., tf.Tensor]:
        """A tf.function for these argument types only, or the function itself where execution is eager."""
        if self.definition.training.execution == "eager":
            return function
        return self.graph_of(function, *specs)

    def graph_of(self, function: Callable[..., tf.Tensor], *specs: object) -> Any:
        """A tf.function, however the definition wants its steps executed."""
        return tf.function(function, input_signature=specs, autograph=False)

    def loss(self, columns: Columns, labels: ByHead, weights: ByHead, whole: Whole | None = None) -> tf.Tensor:
        """float32 scalar of a batch, everything included."""
        return self.loss_and_added(columns, labels, weights, whole)[0]

    def loss_and_added(
        self, columns: Columns, labels: ByHead, weights: ByHead, whole: Whole | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """float32 scalars of a batch: the weighted mean of its losses, with regularisers and what layers add; and these
        additions alone, NaN where a compute_loss of the module's own makes one number of all.

        Of several heads the means are added, each times the head's weight. A compiled loss is reduced as Keras reduces
        it: the weighted sum over the number of examples. Of a shard it is its part of the `whole` batch's.
        """
        with self.looked_at() as results:
            results += self._loss_and_added(columns, labels, weights, whole)
        return results[0], results[1]

    def differentiated(
        self, batch: tuple[Any, ...], variables: Sequence[Any], scale: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    ) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        """loss_and_added of a batch, and of the loss, scaled, a gradient for each of the variables; None: none."""
        with tf.GradientTape() as tape:
            loss, added = self.loss_and_added(*batch)
            scaled = scale(loss)
        return loss, added, tape.gradient(scaled, variables)

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Puts back what a look moves: moving statistics, generators of random numbers."""
        moving = [*self.network.non_trainable_variables, self.seed_state]
        kept = [variable.value.read_value() for variable in moving]
        try:
            yield
        finally:
            for variable, value in zip(moving, kept, strict=True):
                variable.assign(value)

    def _loss_and_added(
        self, columns: Columns, labels: ByHead, weights: ByHead, whole: Whole | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        share = 1.0 if whole is None else whole.share
        inputs = self.wiring.arranged(columns)
        outputs = self._taught(inputs, training=True)
        if self.compiled_by_user.has_loss:
            taught = self.wiring.by_output(labels)
            of_classes = {
                weighed.name: weighed.class_weighted(weights[weighed.name], labels[weighed.name])
                for weighed in self.heads
            }
            weighted = self.wiring.weights_by_output(of_classes)
            given = self.wiring.taught_outputs(outputs)
            total = called(self.network.compute_loss, x=inputs, y=taught, y_pred=given, sample_weight=weighted)
            loss = tf.cast(tf.ensure_shape(total, []), tf.float32) * share
            return loss, tf.constant(np.nan) if self.compiled_by_user.computes_loss else self._sum(self._added(share))
        data_losses = []
        losses = self._losses(labels, outputs)
        for head in [weighed.head for weighed in self.heads if weighed.name in losses]:
            total = tf.reduce_sum(weights[head.name]) if whole is None else whole.weights[head.name]
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses[head.name] * weights[head.name]), total)
            data_losses.append(mean if head.weight == 1.0 else head.weight * mean)
        added = self._added(share)
        if not data_losses and not added:
            raise DefinitionFailedError(
                f"{self.definition.module}: every head has weight 0 and no layer adds a loss (add_loss, regularisers), "
                f"so nothing would be learned"
            )
        return tf.add_n([*data_losses, *added]), self._sum(added)

    def _added(self, share: Any) -> list[tf.Tensor]:
        """What regularisers and layers add to the loss, each times the share."""
        return [share * tf.cast(tf.reduce_sum(loss), tf.float32) for loss in self._taught.losses]

    @staticmethod
    def _sum(losses: list[tf.Tensor]) -> tf.Tensor:
        return tf.add_n([tf.zeros([]), *losses])

    def _losses(self, labels: ByHead, outputs: Any) -> dict[str, tf.Tensor]:
        """Per example, float32 [n], by head; heads of weight 0 are left out."""
        answers = self.by_head(outputs)
        own = self._own_losses(labels, outputs, answers)
        return {
            head.name: self._checked(own[head.name], head, labels[head.name])
            if head.name in own
            else head.losses_of(labels[head.name], answers[head.name])
            for head in self.heads
            if head.head.weight
        }

    def _own_losses(self, labels: ByHead, outputs: Any, answers: ByHead) -> Mapping[str, Any]:
        """What the module's loss() gives, by head; empty where it has none."""
        if self.user_loss is None:
            return {}
        path = self.definition.module
        if isinstance(self.user_loss, Mapping):
            return {name: called(function, labels[name], answers[name]) for name, function in self.user_loss.items()}
        if len(self.heads) == 1:
            name = self.heads[0].name
            given = self.wiring.named(outputs) if len(self.wiring.names) > 1 else answers[name]
            return {name: called(self.user_loss, labels[name], given)}
        found = called(self.user_loss, dict(labels), self.wiring.named(outputs) | dict(answers))
        names = [head.name for head in self.heads]
        if not isinstance(found, Mapping) or sorted(found) != sorted(names):
            returned = f"a dict of {', '.join(map(str, found))}" if isinstance(found, Mapping) else type(found).__name__
            raise DefinitionFailedError(
                f"{path}: loss() returned {returned}, expected a dict with the losses of each head: {', '.join(names)}"
            )
        return found

    def _checked(self, given: Any, head: BuiltHead, labels: tf.Tensor) -> tf.Tensor:
        """A module's own losses of a head: one per example."""
        losses = tf.cast(given, tf.float32)
        if losses.shape.rank not in (None, 1):
            raise DefinitionFailedError(
                f"{self.definition.module}: loss() returned shape {losses.shape}, expected one loss per example, [n]"
            )
        same_length = tf.debugging.assert_equal(
            tf.shape(losses)[:1], tf.shape(labels)[:1], message="loss() must return one loss per example, [n]"
        )
        with tf.control_dependencies([same_length]):
            return head.class_weighted(tf.ensure_shape(losses, [None]), labels)

    def compiled_metrics(self) -> Callable[..., dict[str, float]] | None:
        """What the module's model has compiled to measure: labels, outputs and weights as arrays to numbers by name.

        The arrays come by head.
        """
        if not self.compiled_by_user.has_metrics:
            return None
        return partial(measured_by, self.network, self.wiring)

    def own_evaluation(self) -> ModelFnEvaluation | None:
        return self._evaluation() if self._evaluation else None

    @cached_property
    def _evaluation(self) -> Callable[[], ModelFnEvaluation] | None:
        if (network := self._model_fn) is None:
            return None
        return partial(ModelFnEvaluation, network, self.compiled(network.evaluated, *self.batch_specs()))

    def serve(self, raw: Raw) -> dict[str, tf.Tensor]:
        """The exported function: raw features to named outputs."""
        return self._answered(self._strictly(raw))

    def _with_context(self, raw: Raw) -> dict[str, tf.Tensor]:
        """As `serve`, of one row of what all rows share."""
        assert self.shared
        rows, columns = self.shared.columns(raw)
        return self._answered(self._given(rows) | columns)

    def _answered(self, columns: Columns) -> dict[str, tf.Tensor]:
        with self.placement.ignored(), self.looked_at(is_answer=True) as results:
            returned = self.network(self._wanted.arranged(columns), training=False)
            results.append(returned)
        taught = set(self.wiring.taught.values())
        served = {
            name: _as_float32(output) for name, output in self.wiring.named(returned).items() if name not in taught
        }
        answers = self.by_head(returned)
        for head in self.heads:
            prefix = f"{head.name}/" if len(self.heads) > 1 else ""
            served |= {
                f"{prefix}{name}": output for name, output in head.served(head.calibrated(answers[head.name])).items()
            }
        return served


def _as_float32(output: tf.Tensor) -> tf.Tensor:
    """Of a lower precision: answers are float32; anything else as it is."""
    return tf.cast(output, tf.float32) if output.dtype in (tf.float16, tf.bfloat16) else tf.identity(output)


class Scorer:
    """Predictions of a frozen model, compiled once: columns of any number of rows to outputs as float32 arrays."""

    def __init__(self, model: BuiltModel) -> None:
        self._model = model
        self._call = model.compiled(self._scored, model.column_specs())

    def _scored(self, columns: Columns) -> dict[str, tf.Tensor]:
        with of_frozen():
            answers = self._model.outputs(columns, training=False)
        return {head.name: head.calibrated(answers[head.name]) for head in self._model.heads}

    def __call__(self, columns: Columns, count: int) -> dict[str, NDArray[np.float32]]:
        """By head, `count` rows; scored a few thousand at a time, so that memory stays small."""
        if not count:
            return {head.name: np.zeros((0, *head.output_width), np.float32) for head in self._model.heads}
        parts = []
        names = self._model.column_specs()
        for variable in self._model.network.variables:
            without_copy(variable)
        with blame_definition(self._model.definition.module or "the estimator"):
            for start in range(0, count, _SCORE_ROWS):
                rows = {name: columns[name][start : start + _SCORE_ROWS] for name in names}
                parts.append({name: output.numpy() for name, output in self._call(rows).items()})
        return {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}
