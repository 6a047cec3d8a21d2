"""Training on blocks of examples. One block is one call into a compiled graph that loops over its batches.

A block is put into a seeded order, cut into even batches, and each batch takes one optimizer step. Nothing but the
variables crosses from one block to the next, so a round resumed after block k goes on exactly as if it had not stopped.

A batch whose loss or gradient is not finite, or in which a layer raises, is undone; what happens then is for
`training.on_not_finite` to say: fail, skip_batch, or set_aside the examples at fault and take the step without them.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss
from services.trainer import determinism
from services.trainer.families import layer_state
from services.trainer.families.heads import ByHead
from services.trainer.families.hooks import HookFailedError
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Arrays, Carrying, Columns, Losses, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError, blame_definition, describe
from services.trainer.learn import checkpoint, culprits
from services.trainer.learn.checkpoint import variables_by_path
from services.trainer.learn.freezing import freeze, rate_factors, scale_rates
from services.trainer.learn.gradients import merge_before_apply
from services.trainer.learn.hooks import RunningHooks
from services.trainer.learn.optimizers import make_optimizer, slots_by_path
from services.trainer.learn.pruning import kernels_of, prune
from services.trainer.learn.tracing import StepTracer
from services.trainer.shards.gradients import ShardedGradients
from services.trainer.shards.team import ALONE, Team, WorkerLostError

_FEW = 10
"""So many examples at fault in a batch, or in all, are never too many; beyond, half of them are."""
_SMALL_VALUES = 65_536
_UNKNOWN_TO_XLA = re.compile(r"(\w+) \(No registered '\w+' OpKernel for XLA")
_PLACE = re.compile(r" \([^()]*, line \d+, in \w+\)$")
_NO_LOSSES: Losses = np.zeros((0, 2), np.float32)


class NotFiniteError(Exception):
    """A loss or a weight is NaN or infinite; the message says which, and at which step."""


@dataclass(frozen=True)
class _Fault:
    reason: str
    is_numeric: bool

    def raised(self, more: str = "") -> Exception:
        return NotFiniteError(self.reason + more) if self.is_numeric else DefinitionFailedError(self.reason + more)


class Training:
    """A network with its optimizer: the port's Trainable. `variables` (checkpoint.py) hold all of its state."""

    def __init__(self, model: BuiltModel, *, seed: int, team: Team = ALONE) -> None:
        self.model = model
        self._by_user = model.compiled_by_user
        freeze(model.network, model.definition.training.frozen)
        self._variables = model.network.trainable_variables
        if not self._variables:
            raise DefinitionFailedError("the model has nothing to train: no trainable variables")
        self._kernels = self._pruned_kernels()
        self._optimizers = self._by_user.optimizers or (make_optimizer(model.definition.training.optimizer),)
        self._hooks = RunningHooks(model.hooks, str(model.definition.module), model.network)
        self._hooks.begin(self._optimizers[0])
        self._give_optimizer()
        self._team, self._sharded = team, self._sharded_by(team)
        self.set_aside: dict[tuple[int, int], str] = {}
        self.added: Losses = np.zeros(0, np.float32)
        self._seen = 0
        self._whole_gradients = self._by_xla() if model.definition.training.jit_compile else self._differentiated
        self._seed = seed
        self._policy = model.definition.training.on_not_finite
        self._fault: _Fault | None = None
        self._rate_of: Any = None
        self.tracer: StepTracer | None = None
        self._compiled = self._compile()

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The one that counts the steps."""
        return self._optimizers[0]

    @property
    def step(self) -> int:
        """Optimizer steps since the first round."""
        return int(self.optimizer.iterations)

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """By path, as checkpoint.py stores them."""
        variables = variables_by_path(
            model=self.model.network.variables, seed=[self.model.seed_state], hook=[*self._hooks.state.values()]
        )
        for optimizer in self._optimizers:
            slots = {f"optimizer/{path}": slot for path, slot in slots_by_path(optimizer).items()}
            if len(slots) < len(optimizer.variables) or not slots.keys().isdisjoint(variables):
                raise DefinitionFailedError(f"two optimizers are named {optimizer.name}, or two of its slots")
            variables |= slots
        return variables

    @property
    def passes(self) -> int:
        return self.model.definition.training.passes

    @property
    def method(self) -> str:
        return str(self.optimizer.name)

    def captured(self) -> dict[str, NDArray[np.generic]]:
        return checkpoint.capture(self.variables) | layer_state.capture(self.model.network)

    def carry(self, parent: Arrays, *, step: int, carrying: Carrying) -> dict[str, Any]:
        with self._own_rates():
            report = checkpoint.restore(self.variables, parent, carrying)
        self.start_copies(report.new)
        self.continue_from(step)
        layer_state.restore(self.model.network, parent)
        return report.to_mapping() if report.is_change else {}

    def restore(self, arrays: Arrays) -> None:
        report = checkpoint.restore(self.variables, arrays)
        if report.new or report.dropped:
            raise DataLoss(f"the resume point is not of this model: {', '.join(report.new + report.dropped)}")
        layer_state.restore(self.model.network, arrays)

    def use_averages(self) -> None:
        for path, average in self.averages().items():
            self.variables[path].assign(self.variables[average])

    def continue_from(self, step: int) -> None:
        """Sets the global step: it goes on even where another optimizer starts with empty slots."""
        if self.step != step:  # gradients that wait to be applied keep their place between two steps
            self.optimizer._iterations.assign(step * self._batches_per_step)

    @property
    def _batches_per_step(self) -> int:
        return self.optimizer.gradient_accumulation_steps or 1

    def curve(self, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
        """Of the losses of the last batches: the steps, and the mean loss of the batches that each step rests on."""
        # An optimizer that has a turn now and then (a GAN's) has counted fewer steps than there were batches.
        first = max(0, int(self.optimizer._iterations) - len(losses))
        steps, firsts, counts = np.unique(
            np.arange(first, first + len(losses)) // self._batches_per_step, return_index=True, return_counts=True
        )
        if not len(losses) or self._batches_per_step == 1:
            return steps.astype(np.int64), losses
        return steps.astype(np.int64), (np.add.reduceat(losses, firsts) / counts).astype(np.float32)

    def rates(self, steps: NDArray[np.int64]) -> list[float]:
        """The learning rate at each of the steps."""
        rate = getattr(self.optimizer, "_learning_rate", None)
        if not len(steps):
            return []
        if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return [float(self.optimizer.learning_rate)] * len(steps)
        if self._rate_of is None:
            self._rate_of = tf.function(lambda step: tf.cast(rate(step), tf.float32))
        return tf.map_fn(self._rate_of, tf.constant(steps, tf.int64), fn_output_signature=tf.float32).numpy().tolist()

    @contextmanager
    def _own_rates(self) -> Iterator[None]:
        """Constant learning rates stay those of the module whatever is restored: a parent may have had another."""
        kept = [one for one in self.variables.items() if one[0].endswith("/learning_rate")]
        values = [variable.value.read_value() for _, variable in kept]
        yield
        for (_, variable), value in zip(kept, values, strict=True):
            variable.assign(value)

    def averages(self) -> dict[str, str]:
        """Where an optimizer keeps moving averages (EMA): path of the variable to path of its average."""
        paths = {id(variable): path for path, variable in self.variables.items()}
        pairs = [
            (variable, average)
            for optimizer in self._optimizers
            if getattr(optimizer, "use_ema", False)
            for variable, average in zip(
                optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True
            )
        ]
        return {paths[id(variable)]: paths[id(average)] for variable, average in pairs}

    def start_copies(self, new: Collection[str]) -> None:
        """Slots that are copies of a variable begin as the variable is, also where it was carried and they are new."""
        paths = {id(variable): path for path, variable in self.variables.items()}
        copies = {average: path for path, average in self.averages().items()}
        for optimizer in self._optimizers:
            if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
                pairs = zip(optimizer._momentums, optimizer._trainable_variables, strict=True)
                copies |= {paths[id(slot)]: paths[id(variable)] for slot, variable in pairs}
        for slot in copies.keys() & set(new):
            self.variables[slot].assign(self.variables[copies[slot]])

    def begin_round(self) -> None:
        self._hooks.on_round_begin()

    def end_round(self) -> None:
        self._hooks.on_round_end()

    def before_saving(self, arrays: Arrays) -> None:
        self._hooks.on_checkpoint(arrays)

    def train_block(self, examples: TrainingSet, *, pass_index: int, block_index: int) -> Losses:
        losses = self._train_block(examples, pass_index=pass_index, block_index=block_index)
        self._hooks.on_block(losses)
        return losses

    def _train_block(self, examples: TrainingSet, *, pass_index: int, block_index: int) -> Losses:
        """Takes one step per batch and returns the loss of each, in order; `set_aside` may have grown.

        Raises:
            NotFiniteError: with the step; the weights cannot be used any more.
            DefinitionFailedError: the user's model or loss raised.
        """
        known = [row for block, row in self.set_aside if block == block_index]
        rows = np.delete(np.arange(examples.count, dtype=np.int64), known)
        if not len(rows):
            self.added = np.zeros(0, np.float32)
            return np.zeros(0, np.float32)
        order = rows[
            determinism.block_order(self._seed, pass_index=pass_index, block_index=block_index, count=len(rows))
        ]
        bounds = determinism.batch_bounds(len(rows), self.model.definition.training.batch_size)
        losses = [_NO_LOSSES]
        batch = 0
        while batch < len(bounds) - 1:
            before = self._snapshot()
            good, fault, called = self._call(examples, order, bounds[batch:])
            if fault is None:
                losses.append(good)
                batch += called
                continue
            if self._policy == "fail":
                raise fault.raised(f" at step {self.step}" if fault.is_numeric else "")
            self._put_back(before)
            taken, batch = self._past_the_fault(examples, order, bounds, batch, known_good=len(good), block=block_index)
            losses += taken
        self._seen += len(rows)
        found, self.added = np.concatenate(losses).T
        return found

    def _call(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, _Fault | None, int]:
        """As many of the batches as may go in one call, and how many those are."""
        tracer, count = self.tracer, len(bounds) - 1
        if tracer is None:
            return *self._attempt(examples, order, bounds), count
        count = tracer.batches(count)
        return *tracer.call(lambda: self._attempt(examples, order, bounds[: count + 1]), batches=count), count

    def _past_the_fault(
        self,
        examples: TrainingSet,
        order: NDArray[np.int64],
        bounds: NDArray[np.int32],
        batch: int,
        *,
        known_good: int,
        block: int,
    ) -> tuple[list[Losses], int]:
        """Takes the steps again up to the batch at fault, then that one without its culprits; the batch after it."""
        losses: list[Losses] = []
        if known_good:
            again, fault = self._attempt(examples, order, bounds[batch : batch + known_good + 1])
            if fault:
                raise fault.raised(" where it was finite before")
            losses.append(again)
            batch += known_good
        while batch < len(bounds) - 1:
            before = self._snapshot()
            taken, fault = self._attempt(examples, order, bounds[batch : batch + 2])
            batch += 1
            if fault is None:
                losses.append(taken)
                continue
            self._put_back(before)
            rows = order[bounds[batch - 1] : bounds[batch]]
            losses.append(
                self._step_without_culprits(examples, rows, fault, block, seen=self._seen + int(bounds[batch]))
            )
            break
        return losses, batch

    def _step_without_culprits(
        self, examples: TrainingSet, rows: NDArray[np.int64], fault: _Fault, block: int, *, seen: int
    ) -> Losses:
        self._fault = fault
        reasons = dict.fromkeys(rows.tolist(), f"its batch was skipped: {fault.reason}")
        if self._policy == "set_aside":
            found = culprits.find(
                rows.tolist(), lambda some: self._fault_of(examples, some), limit=max(_FEW, len(rows) // 2)
            )
            reasons = found.reasons
            aside = len(self.set_aside) + len(reasons)
            if found.are_all or (aside > _FEW and 2 * aside > seen):
                raise self._fault.raised(
                    f" at step {self.step}: {aside} of {seen} examples are at fault, so it is the model and not they"
                )
        self.set_aside |= {(block, row): reason for row, reason in reasons.items()}
        rest = np.array([row for row in rows.tolist() if row not in reasons], np.int64)
        if not len(rest):
            return _NO_LOSSES
        losses, remaining = self._attempt(examples, rest, np.array([0, len(rest)], np.int32))
        if remaining:
            raise remaining.raised(f" at step {self.step}")
        return losses

    def _fault_of(self, examples: TrainingSet, rows: Any) -> str:
        """Tries a step on some rows and undoes it."""
        before = self._snapshot()
        _, fault = self._attempt(examples, np.array(rows, np.int64), np.array([0, len(rows)], np.int32))
        self._put_back(before)
        self._fault = fault or self._fault
        return fault.reason if fault else ""

    def _attempt(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, _Fault | None]:
        """A step per batch until one is at fault: the losses before it, and what was added in each, float32 [n, 2].

        The variables then are of no use.
        """
        try:
            losses = self._steps(examples, order, bounds)
        except DefinitionFailedError as error:
            cause = error.__cause__
            if self._team.workers > 1 and isinstance(cause, tf.errors.OpError):
                raise WorkerLostError(f"a step of {self._team.workers} workers failed: {describe(cause)}") from error
            if isinstance(error, HookFailedError) or not isinstance(cause, tf.errors.InvalidArgumentError):
                raise
            self._hooks.fail_if_at_fault(cause)
            if missing := _UNKNOWN_TO_XLA.findall(str(cause.message)):
                place = _PLACE.search(describe(cause))
                raise DefinitionFailedError(
                    f"training.jit_compile is true, and XLA lacks {', '.join(dict.fromkeys(missing))}"
                    f"{place.group() if place else ''}"
                ) from error
            return _NO_LOSSES, _Fault(describe(cause), is_numeric=False)
        finite = np.isfinite(losses[:, 0])
        if finite.all():
            return losses, None
        bad = int(np.argmin(finite))
        return losses[:bad], _Fault(f"the loss became {losses[bad, 0]}", is_numeric=True)

    def _steps(self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> Losses:
        with blame_definition(self.model.definition.module or "the estimator"):
            return self._compiled(
                examples.columns, examples.labels, examples.weights, tf.constant(order), tf.constant(bounds)
            ).numpy()

    def _snapshot(self) -> list[tf.Tensor]:
        """Shares memory with the variables until they change."""
        return [] if self._policy == "fail" else [one.value.read_value() for one in self.variables.values()]

    def _put_back(self, snapshot: list[tf.Tensor]) -> None:
        for variable, value in zip(self.variables.values(), snapshot, strict=True):
            variable.assign(value)

    def _give_optimizer(self) -> None:
        """Builds the optimizers; those of a train_step of the user's own learn from it which variables are theirs."""
        factors = rate_factors(self._variables, self.model.definition.training.learning_rates)
        for optimizer in self._optimizers:
            merge_before_apply(optimizer)
            scale_rates(optimizer, factors)
        if not self._by_user.has_train_step:
            self.optimizer.build(self._variables)
            return
        if not self._by_user.optimizers:
            self.model.network.compile(optimizer=self.optimizer)
        with blame_definition(str(self.model.definition.module)):
            self.model.graph_of(self._train_batches, *self._specs()).get_concrete_function()

    def _compile(self) -> Any:
        return self.model.compiled(self._train_batches, *self._specs())

    def _specs(self) -> tuple[object, ...]:
        """Of what `_train_batches` takes."""
        return (
            self.model.column_specs(),
            self.model.label_specs(),
            {head.name: tf.TensorSpec([None], tf.float32) for head in self.model.heads},
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
        )

    def _train_batches(
        self, columns: dict[str, tf.Tensor], labels: ByHead, weights: ByHead, order: tf.Tensor, bounds: tf.Tensor
    ) -> tf.Tensor:
        columns, labels, weights = (
            {name: tf.gather(values, order) for name, values in part.items()} for part in (columns, labels, weights)
        )
        steps = tf.size(bounds) - 1

        def take_step(step: tf.Tensor, is_finite: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start, end = bounds[step], bounds[step + 1]
            batch = [{name: values[start:end] for name, values in part.items()} for part in (columns, labels, weights)]
            loss, added = self._train_batch_with_hooks(*batch)
            return step + 1, tf.math.is_finite(loss), losses.write(step, tf.stack([loss, added]))

        losses = tf.TensorArray(tf.float32, size=steps, element_shape=[2])
        *_, losses = tf.while_loop(
            lambda step, is_finite, losses: tf.logical_and(is_finite, step < steps),
            take_step,
            (tf.constant(0), tf.constant(True), losses),
        )
        return losses.stack()

    def _train_batch_with_hooks(self, columns: Columns, labels: ByHead, weights: ByHead) -> tuple[tf.Tensor, tf.Tensor]:
        taught = next(iter(labels.values())) if len(labels) == 1 else labels
        kept = self._hooks.before_step(columns, taught)
        loss, added = self._train_batch(columns, labels, weights)
        self._hooks.after_step(loss, kept)
        return loss, added

    def _train_batch(self, columns: Columns, labels: ByHead, weights: ByHead) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss, NaN where a gradient is not finite; and what was added in it, NaN where nobody can say."""
        if self._by_user.has_train_step:
            return self._users_step(columns, labels, weights), tf.constant(np.nan)
        loss, added, gradients = self._gradients(columns, labels, weights)
        found = zip(gradients, self._variables, strict=True)
        moved = [(gradient, variable) for gradient, variable in found if gradient is not None]
        if not moved:
            raise DefinitionFailedError("the loss depends on none of the model's trainable variables")
        gradients = [gradient for gradient, _ in moved]
        with tf.control_dependencies([loss]):
            self.optimizer.apply(gradients, [variable for _, variable in moved])
        self._prune()
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return loss, added  # it leaves such gradients out and scales down by itself
        return _checked(loss, [*gradients, *self._running_values()]), added

    def _prune(self) -> None:
        said = self.model.definition.training.prune
        if said:
            prune(self._kernels, said, self.optimizer.iterations.value)

    def _gradients(self, *batch: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        """Columns, labels and weights to the loss, what was added, and a gradient for each variable that is taught."""
        scale = self.optimizer.scale_loss
        if self._sharded:
            losses, gradients = self._sharded(self.model.loss_and_added, *batch, scale=scale)
            return losses[0], losses[1], gradients
        return self._whole_gradients(*batch)

    def _differentiated(self, *batch: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        with tf.GradientTape() as tape:
            loss, added = self.model.loss_and_added(*batch)
            scaled = self.optimizer.scale_loss(loss)
        return loss, added, tape.gradient(scaled, self._variables)

    def _by_xla(self) -> Any:
        """`_differentiated`, compiled; the optimizer's own operations stay outside.

        Raises:
            DefinitionFailedError: the module takes its steps itself, or the network takes strings.
        """
        definition = self.model.definition
        if self._by_user.has_train_step:
            raise DefinitionFailedError(
                f"{definition.module}: training.jit_compile is true, and the module's own train_step takes the steps"
            )
        if words := [name for name, spec in self.model.column_specs().items() if spec.dtype == tf.string]:
            raise DefinitionFailedError(
                f"{definition.module}: training.jit_compile is true, and XLA cannot take the strings of "
                f"{', '.join(words)}"
            )
        return tf.function(self._differentiated, jit_compile=True, autograph=definition.module is not None)

    def _pruned_kernels(self) -> list[keras.Variable]:
        if not self.model.definition.training.prune:
            return []
        if self._by_user.has_train_step:
            raise DefinitionFailedError(
                f"{self.model.definition.module}: training.prune is given, and the module's train_step takes the steps"
            )
        return kernels_of(self._variables)

    def _sharded_by(self, team: Team) -> ShardedGradients | None:
        """None where a batch is one piece."""
        shards = self.model.definition.training.shards
        if shards == 1:
            return None
        if self._by_user.has_train_step:
            raise DefinitionFailedError(
                f"{self.model.definition.module}: training.shards is {shards}, and the module's own train_step cannot "
                f"be cut into shards"
            )
        # What is rewritten across shards depends on how many of them a process computes, and so do its last bits.
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
        weights = {id(one) for layer in self.model.network._flatten_layers() for one in layer._trainable_variables}
        moving = [one for one in self.model.network.non_trainable_variables if id(one) not in weights]
        running = {id(one): one for one in (*moving, self.model.seed_state)}  # frozen weights do not move
        return ShardedGradients(team.exchange(shards), self._variables, tuple(running.values()), team.devices)

    def _users_step(self, columns: Columns, labels: ByHead, weights: ByHead) -> tf.Tensor:
        """train_step of a module: the loss that it returns, or the first number; NaN where a weight is not finite."""
        network = self.model.network
        for metric in network.metrics:
            metric.reset_state()
        wiring = self.model.wiring
        taught, weighted = wiring.by_output(labels), wiring.weights_by_output(weights)
        logs = network.train_step((wiring.arranged(columns), taught, weighted))
        if not isinstance(logs, dict) or not logs:
            raise DefinitionFailedError("train_step must return a dict of numbers, one of them called loss")
        loss = tf.reduce_mean(tf.cast(logs.get("loss", next(iter(logs.values()))), tf.float32))
        with tf.control_dependencies([loss]):
            values = [variable.value.read_value() for variable in self._variables]
            return _checked(loss, [*values, *self._running_values()])

    def _running_values(self) -> list[tf.Tensor]:
        """What layers keep beside weights (moving means and variances), without large frozen tables."""
        return [
            variable.value.read_value()
            for variable in self.model.network.non_trainable_variables
            if str(variable.dtype).startswith("float") and int(np.prod(variable.shape)) <= _SMALL_VALUES
        ]


def _checked(loss: tf.Tensor, tensors: list[Any]) -> tf.Tensor:
    """The loss, or NaN where any of the tensors holds a value that is not finite (or values beyond any sum)."""
    sums = [tf.reduce_sum(tf.cast(getattr(tensor, "values", tensor), tf.float32)) for tensor in tensors]
    return tf.where(tf.math.is_finite(tf.add_n([tf.zeros([]), *sums])), loss, tf.constant(float("nan")))
