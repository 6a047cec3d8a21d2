"""The steps of a network: one compiled graph that loops over the batches of a block, with hooks around each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.compiled import users_step
from services.trainer.families.heads import ByHead
from services.trainer.families.hooks import HookFailedError
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Columns, Losses, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError, blame_definition, describe
from services.trainer.learn.asynchronous import ServedSteps, running_of
from services.trainer.learn.augmenting import Augmentation
from services.trainer.learn.batches import cut_for, refuse_padding
from services.trainer.learn.bucketing import Buckets
from services.trainer.learn.code_places import places_of
from services.trainer.learn.feeding import Feeding, Run
from services.trainer.learn.freezing import rate_factors, scale_rates
from services.trainer.learn.gradients import checked, merge_before_apply, taught_by_gradients_alone
from services.trainer.learn.hooks import RunningHooks
from services.trainer.learn.norms import Norms
from services.trainer.learn.pruning import kernels_of, prune
from services.trainer.learn.session import SessionRun
from services.trainer.learn.several_optimizers import SeveralOptimizers
from services.trainer.learn.xla import Compilations, lacking, refuse_uncompiled
from services.trainer.shards.exchange import Exchange
from services.trainer.shards.gradients import ShardedGradients
from services.trainer.shards.local_steps import BatchOf, LocalSteps
from services.trainer.shards.team import Team, WorkerLostError

_SMALL_VALUES = 65_536


class NotFiniteError(Exception):
    """A loss or a weight is NaN or infinite; the message says which, and at which step.

    `facts` is what is known beside the words: step, operation, layer, place; rows of the block, later events.
    """

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})


@dataclass(frozen=True)
class Fault:
    reason: str
    is_numeric: bool

    def raised(self, more: str = "", facts: Mapping[str, Any] | None = None) -> Exception:
        sentence = self.reason + more
        return NotFiniteError(sentence, facts) if self.is_numeric else DefinitionFailedError(sentence)


class Steps:
    """Args:
    optimizers: the first counts the steps; a module with its own train_step may have several.
    """

    def __init__(
        self,
        model: BuiltModel,
        optimizers: Sequence[keras.optimizers.Optimizer],
        hooks: RunningHooks,
        team: Team,
        buckets: Buckets | None,
    ) -> None:
        self._model, self._section, self._by_user = model, model.definition.training, model.compiled_by_user
        self._optimizers, self._optimizer, self._hooks, self._team = optimizers, optimizers[0], hooks, team
        self._variables = model.network.trainable_variables
        self._norms = Norms(self._variables, every=self._section.norms_every_steps)
        refuse_padding(model)
        self._cut = cut_for(self._section, buckets)
        self._augmentation = Augmentation(model, self._optimizer) if self._section.augment else None
        if self._by_user.has_train_step:
            hooks.refuse_gradients("the module's own train_step computes and applies them")
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            hooks.refuse_gradients("mixed_precision: float16 scales them; take bfloat16")
        self._kernels = self._pruned_kernels()
        self._applied: keras.optimizers.Optimizer | SeveralOptimizers = self._optimizer
        self._local: LocalSteps | None = None  # a train_step of the user's own is traced before there are any
        traced = self._give_optimizer()
        self._local = self._local_by(team)
        self._sharded = None if self._local else self._sharded_by(team)
        self._whole_gradients: Any = self._differentiated
        if self._section.jit_compile:  # the optimizer's own operations stay outside
            refuse_uncompiled(model)
            self._whole_gradients = tf.function(self._differentiated, jit_compile=True, autograph=False)
        self._xla = Compilations()
        self._compiled = self._by(self._train_batches, *self._specs(), traced=traced)
        iterator = tf.data.IteratorSpec(self._specs()[:3])
        streamed = self._by(self._train_streamed, iterator, tf.TensorSpec([], tf.int32))
        self._feeding = Feeding(self._section.input, self._compiled, streamed)
        self._alone: Run | None = None
        self._served = ServedSteps(model, self._optimizer, team.coordinator) if team.coordinator else None

    @property
    def norm_names(self) -> tuple[str, ...]:
        """Of the columns after the second of what `attempt` gives."""
        return self._norms.names

    def attempt(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, Fault | None]:
        """A step per batch until one is at fault: float32 [n, 2 + norms], the losses before it, what was added in each,
        and the norms. The variables then are of no use.
        """
        if self._served:
            losses, fault = self._served.attempt(examples, order, bounds)
            return losses, Fault(*fault) if fault else None
        if self._section.jit_compile:
            self._xla.add([self._section.batch_size] if self._section.fixed_batch else np.diff(bounds).tolist())
        try:
            losses = self._steps(examples, order, bounds)
        except DefinitionFailedError as error:
            return self.none, self._fault_of(error)
        finite = np.isfinite(losses[:, 0])
        if finite.all():
            return losses, None
        bad = int(np.argmin(finite))
        return losses[:bad], Fault(f"the loss became {losses[bad, 0]}", is_numeric=True)

    def attempt_alone(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, Fault | None]:
        """The same steps as `attempt` takes, without the other processes."""
        kept = self._sharded, self._feeding
        self._sharded = self._sharded_by(replace(self._team, workers=1))
        self._alone = self._alone or self._by(self._train_batches, *self._specs())
        self._feeding = Feeding("memory", self._alone, self._alone)
        try:
            return self.attempt(examples, order, bounds)
        finally:
            self._sharded, self._feeding = kept

    @property
    def none(self) -> Losses:
        return np.zeros((0, 2 + len(self.norm_names)), np.float32)

    def _fault_of(self, error: DefinitionFailedError) -> Fault:
        """Where a layer refuses an example; raises for everything that no example can be blamed for."""
        cause = error.__cause__
        if self._team.workers > 1 and isinstance(cause, tf.errors.OpError):
            raise WorkerLostError(f"a step of {self._team.workers} workers failed: {describe(cause)}") from error
        if isinstance(error, HookFailedError) or not isinstance(cause, tf.errors.InvalidArgumentError):
            raise error
        self._hooks.fail_if_at_fault(cause)
        if missing := lacking(cause):
            raise DefinitionFailedError(f"training.jit_compile is true, and XLA lacks {missing}") from error
        return Fault(describe(cause), is_numeric=False)

    def _steps(self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> Losses:
        with blame_definition(self._about):
            return self._feeding.losses(examples, order, bounds)

    def _by(self, function: Any, *specs: object, traced: Any = None) -> Run:
        """The function as `training.execution` wants it run; `traced` is the same as a graph, where there is one."""
        if self._section.execution == "eager":
            return function
        compiled = traced or self._model.graph_of(function, *specs)
        if self._section.execution != "session" or function == self._train_streamed:
            return compiled
        with blame_definition(self._about):
            return SessionRun(compiled, self._about)

    @property
    def _about(self) -> str:
        return self._model.definition.module or "the estimator"

    def begin(self, seed: int) -> None:
        """A round of this seed; counts what is handed over from here on."""
        if self._augmentation:
            self._augmentation.begin(seed)
        self._feeding.begin()
        self._xla.begin()

    @property
    def texts(self) -> Mapping[str, str]:
        """Of files of the version, by name."""
        return self._xla.texts

    def code_places(self) -> dict[str, str]:
        """The line of code of each operation of a step; empty where steps are taken eagerly or in a session."""
        traced = getattr(self._compiled, "get_concrete_function", None)
        return places_of(traced().graph) if traced else {}

    def note_compiled(self, examples: TrainingSet) -> None:
        """Keeps what XLA makes of loss and gradients of a batch, after all of its rewriting."""
        count = tf.constant(min(self._section.batch_size, examples.count))
        batch = self._cut(examples.parts, tf.constant(0), count)
        with blame_definition(self._about):
            self._xla.text = str(self._whole_gradients.experimental_get_compiler_ir(*batch)(stage="optimized_hlo"))

    def facts(self) -> dict[str, Any]:
        """How the steps are run and fed, for the version's record; empty for one compiled graph and whole blocks."""
        how = self._section.execution
        compiled = {"xla": self._xla.facts()} if self._section.jit_compile else {}
        taught = {"optimizers": self._applied.facts()} if isinstance(self._applied, SeveralOptimizers) else {}
        changed = {"augment": self._augmentation.facts()} if self._augmentation else {}
        return ({} if how == "graph" else {"execution": how}) | self._feeding.facts() | compiled | taught | changed

    def _give_optimizer(self) -> Any:
        """Builds the optimizers. Those of a train_step of the user's own learn from it which variables are theirs: it
        is traced, and since that makes variables TensorFlow traces it once more, for the function that is returned."""
        factors = rate_factors(self._variables, self._section.learning_rates)
        for optimizer in self._optimizers:
            merge_before_apply(optimizer)
            scale_rates(optimizer, factors)
        if not self._by_user.has_train_step:
            if self._section.optimizers:
                self._applied = SeveralOptimizers(self._optimizers, self._variables, self._section)
            else:
                self._optimizer.build(self._variables)
            return None
        if not self._by_user.optimizers:
            self._model.network.compile(optimizer=self._optimizer)
        with blame_definition(str(self._model.definition.module)):
            traced = self._model.graph_of(self._train_batches, *self._specs())
            traced.get_concrete_function()
        return traced

    def _specs(self) -> tuple[object, ...]:
        """Of what `_train_batches` takes."""
        return *self._model.batch_specs(), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)

    def _train_batches(
        self, columns: dict[str, tf.Tensor], labels: ByHead, weights: ByHead, order: tf.Tensor, bounds: tf.Tensor
    ) -> tf.Tensor:
        columns, labels, weights = (
            {name: tf.gather(values, order) for name, values in part.items()} for part in (columns, labels, weights)
        )
        steps = tf.size(bounds) - 1

        def batch_of(step: tf.Tensor) -> list[Any]:
            return self._cut((columns, labels, weights), bounds[step], bounds[step + 1])

        return self._supersteps(self._local, batch_of, steps) if self._local else self._loop(batch_of, steps)

    def _train_streamed(self, batches: Any, steps: tf.Tensor) -> tf.Tensor:
        def batch_of(step: tf.Tensor) -> list[Any]:
            parts = batches.get_next()
            return self._cut(parts, tf.constant(0), tf.shape(next(iter(parts[2].values())))[0])

        return self._loop(batch_of, steps)

    def _loop(self, batch_of: BatchOf, steps: tf.Tensor) -> tf.Tensor:
        def take_step(step: tf.Tensor, is_finite: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, ...]:
            loss, added, norms = self._train_batch_with_hooks(*batch_of(step))
            row = tf.concat([tf.stack([loss, added]), norms], axis=0)
            return step + 1, tf.math.is_finite(loss), losses.write(step, row)

        losses = tf.TensorArray(tf.float32, size=steps, element_shape=[2 + len(self.norm_names)])
        *_, losses = tf.while_loop(
            lambda step, is_finite, losses: tf.logical_and(is_finite, step < steps),
            take_step,
            (tf.constant(0), tf.constant(True), losses),
        )
        return losses.stack()

    def _supersteps(self, local: LocalSteps, batch_of: BatchOf, steps: tf.Tensor) -> tf.Tensor:
        local.begin()
        most = self._section.local_steps

        def superstep(first: tf.Tensor, is_finite: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, ...]:
            end = tf.minimum(first + most, steps)
            found = local.superstep(lambda *batch: self._train_batch(*batch)[:2], batch_of, first, end)
            return end, tf.reduce_all(tf.math.is_finite(found[:, 0])), losses.write(first // most, found)

        losses = tf.TensorArray(tf.float32, size=(steps + most - 1) // most, element_shape=[most, 2])
        *_, losses = tf.while_loop(
            lambda first, is_finite, losses: tf.logical_and(is_finite, first < steps),
            superstep,
            (tf.constant(0), tf.constant(True), losses),
        )
        return tf.reshape(losses.stack(), [-1, 2])[:steps]

    def _train_batch_with_hooks(self, columns: Columns, labels: ByHead, weights: ByHead) -> tuple[tf.Tensor, ...]:
        if self._augmentation:
            columns, labels = self._augmentation(columns, labels)
        taught = next(iter(labels.values())) if len(labels) == 1 else labels
        kept = self._hooks.before_step(columns, taught)
        loss, added, norms = self._train_batch(columns, labels, weights)
        self._hooks.after_step(loss, kept)
        return loss, added, norms

    def _train_batch(self, columns: Columns, labels: ByHead, weights: ByHead) -> tuple[tf.Tensor, ...]:
        """The loss, NaN where a gradient is not finite; what was added in it, NaN where that is unknown; and norms."""
        if self._by_user.has_train_step:
            return self._users_step(columns, labels, weights), tf.constant(np.nan), self._norms.unknown
        loss, added, gradients = self._gradients(columns, labels, weights)
        found = zip(gradients, self._variables, strict=True)
        moved = [(gradient, variable) for gradient, variable in found if gradient is not None]
        if not moved:
            raise DefinitionFailedError("the loss depends on none of the model's trainable variables")
        taught = [variable for _, variable in moved]
        with tf.control_dependencies([loss]):
            given = self._hooks.on_gradients([gradient for gradient, _ in moved], taught)
            norms = self._norms.around(self._applied, given, taught)
            self._prune()
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            return loss, added, norms  # it leaves such gradients out and scales down by itself
        return checked(loss, [*given, *self._running_values()]), added, norms

    def _prune(self) -> None:
        if self._section.prune:
            prune(self._kernels, self._section.prune, self._optimizer.iterations.value)

    def _pruned_kernels(self) -> list[keras.Variable]:
        if not self._section.prune:
            return []
        if self._by_user.has_train_step:
            raise DefinitionFailedError(
                f"{self._model.definition.module}: training.prune is given, and the module's train_step takes the steps"
            )
        return kernels_of(self._variables)

    def _gradients(self, columns: Columns, labels: ByHead, weights: ByHead) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        """Columns, labels and weights to the loss, what was added, and a gradient for each variable that is taught."""
        scale = self._optimizer.scale_loss
        if self._sharded:
            with taught_by_gradients_alone(self._variables, self._section.shards):
                losses, gradients = self._sharded(self._model.loss_and_added, columns, labels, weights, scale=scale)
            return losses[0], losses[1], gradients
        return self._whole_gradients(columns, labels, weights)

    def _differentiated(self, *batch: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        return self._model.differentiated(batch, self._variables, self._optimizer.scale_loss)

    def _local_by(self, team: Team) -> LocalSteps | None:
        """None where shards go on together, step by step."""
        if self._section.local_steps == 1:
            return None
        if self._hooks.has_step_hooks:
            raise DefinitionFailedError(
                f"{self._model.definition.module}: training.local_steps is {self._section.local_steps}, and "
                f"before_step, on_gradients and after_step belong to steps that all shards take together"
            )
        exchange, running = self._exchange_of(team), running_of(self._model)
        variables = [
            *self._variables,
            *running,
            *(slot for optimizer in self._optimizers for slot in optimizer.variables),
        ]
        return LocalSteps(exchange, variables, self._section.local_steps)

    def _sharded_by(self, team: Team) -> ShardedGradients | None:
        """None where a batch is one piece."""
        if self._section.shards == 1:
            return None
        return ShardedGradients(
            self._exchange_of(team), self._variables, running_of(self._model), team.devices,
            compress=self._section.compress, reduction=team.reduction,
        )  # fmt: skip

    def _exchange_of(self, team: Team) -> Exchange:
        shards = self._section.shards
        if self._by_user.has_train_step:
            raise DefinitionFailedError(
                f"{self._model.definition.module}: training.shards is {shards}, and the module's own train_step cannot "
                f"be cut into shards"
            )
        # What is rewritten across shards depends on how many of them a process computes, and so do its last bits.
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
        return team.exchange(shards)

    def _users_step(self, columns: Columns, labels: ByHead, weights: ByHead) -> tf.Tensor:
        """train_step of a module: the loss that it returns, or the first number; NaN where a weight is not finite."""
        network = self._model.network
        for metric in network.metrics:
            metric.reset_state()
        wiring = self._model.wiring
        taught, weighted = wiring.by_output(labels), wiring.weights_by_output(weights)
        given = (wiring.arranged(columns), taught, weighted)
        with self._model.looked_at() as results:
            logs = users_step(network, given, has_weights=self._model.has_weights)
            results.append(logs)
        if not isinstance(logs, dict) or not logs:
            raise DefinitionFailedError("train_step must return a dict of numbers, one of them called loss")
        loss = tf.reduce_mean(tf.cast(logs.get("loss", next(iter(logs.values()))), tf.float32))
        with tf.control_dependencies([loss]):
            values = [variable.value.read_value() for variable in self._variables]
            return checked(loss, [*values, *self._running_values()])

    def _running_values(self) -> list[tf.Tensor]:
        """What layers keep beside weights (moving means and variances), without large frozen tables."""
        return [
            variable.value.read_value()
            for variable in self._model.network.non_trainable_variables
            if str(variable.dtype).startswith("float") and int(np.prod(variable.shape)) <= _SMALL_VALUES
        ]
