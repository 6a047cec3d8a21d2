"""Training on blocks of examples. One block is one call into a compiled graph that loops over its batches.

A block is put into a seeded order, cut into even batches, and each batch takes one optimizer step. Nothing but the
variables crosses from one block to the next, so a round resumed after block k goes on exactly as if it had not stopped.

A batch at fault is undone (faulty_batches.py).
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss
from services.trainer.families import hidden_state, layer_state
from services.trainer.families.hooks import Saved
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Arrays, Carrying, Losses, Pace, Trainable, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.keras_internals import calls_of, rate_of
from services.trainer.learn import checkpoint
from services.trainer.learn.batches import batches_of
from services.trainer.learn.bucketing import Buckets
from services.trainer.learn.checkpoint import variables_by_path
from services.trainer.learn.faulty_batches import FaultyBatches
from services.trainer.learn.freezing import freeze
from services.trainer.learn.gradient_check import check_gradients
from services.trainer.learn.hooks import RunningHooks
from services.trainer.learn.optimizers import (
    averages_by_path,
    batches_per_step,
    constant_of,
    copies_by_path,
    curve_of,
    inner_of,
    slots_by_path,
)
from services.trainer.learn.several_optimizers import make_optimizers
from services.trainer.learn.steps import Fault, Steps
from services.trainer.learn.tracing import StepTracer
from services.trainer.shards.team import ALONE, Team

_COMPARED_STEPS = 20


class Training:
    """A network with its optimizer: the port's Trainable. `variables` (checkpoint.py) hold all of its state."""

    def __init__(self, model: BuiltModel, *, seed: int, team: Team = ALONE) -> None:
        asked = model.definition.training
        self.model = model
        freeze(model.network, asked.frozen)
        model.placement.place(model.network, asked.devices, falls_back=asked.missing_device == "cpu")
        if not model.network.trainable_variables:
            raise hidden_state.nothing_to_train(model.unknown)
        if asked.check_gradients is not None and model.compiled_by_user.has_train_step:
            raise DefinitionFailedError(
                f"{model.definition.module}: training.check_gradients is given, and the module's own train_step "
                f"computes the gradients"
            )
        by_user = model.compiled_by_user
        if asked.optimizers and (by_user.optimizers or by_user.has_train_step):
            raise DefinitionFailedError(
                f"{model.definition.module}: training.optimizers is given, and the module brings its own optimizer"
            )
        self._optimizers = by_user.optimizers or make_optimizers(asked)
        self._hooks = RunningHooks(model.hooks, model.network, is_chief=team.is_chief)
        self._hooks.begin(self._optimizers[0])
        buckets = asked.bucket_by_sequence_length
        self._buckets = Buckets(buckets, model) if buckets else None
        self._steps = Steps(model, self._optimizers, self._hooks, team, self._buckets)
        self._steps.begin(seed)
        self.set_aside: dict[tuple[int, int], str] = {}
        self.added: Losses = np.zeros(0, np.float32)
        self.norms: Losses = np.zeros((0, len(self._steps.norm_names)), np.float32)
        self.rows_left = 0
        self._seen = self._again = 0
        self._seed = seed
        self._faulty = FaultyBatches(model, self._steps, lambda: self.variables, lambda: self.step)
        self._rates_of: Any = None
        self.tracer: StepTracer | None = None
        self._team, self._compared = team, dict[str, Any]() if team.workers == 1 or asked.local_steps > 1 else None
        self._checked: dict[str, Any] = {}
        self._first_rates = self._rates()

    def may_begin_again(self, parent: Arrays, carrying: Carrying) -> bool:
        return checkpoint.is_whole(self.variables, parent, carrying) and layer_state.holds(self.model.network, parent)

    def fits(self, other: Trainable) -> bool:
        if not isinstance(other, Training):
            return False
        own, given = self.variables, other.variables
        return own.keys() == given.keys() and all(
            (one.shape, one.dtype) == (given[path].shape, given[path].dtype) for path, one in own.items()
        )

    def take_values(self, other: Trainable) -> None:
        assert isinstance(other, Training), "it fits"
        own = self.variables
        for path, value in other.variables.items():
            own[path].assign(value.value)

    def begin_again(self, seed: int) -> None:
        self._seed, self.set_aside, self._seen, self.tracer = seed, {}, 0, None
        self._checked, self._again = {}, 0
        self._keep([])
        self.rows_left = 0
        self._steps.begin(seed)
        if self._buckets:
            self._buckets.begin()
        self._hooks.begin(self._optimizers[0])
        for variable, value in self._first_rates:
            variable.assign(value)

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer that counts the steps."""
        return inner_of(self._optimizers[0])

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
    def norm_names(self) -> tuple[str, ...]:
        return self._steps.norm_names

    @property
    def passes(self) -> int:
        return self.model.definition.training.passes

    @property
    def method(self) -> str:
        return str(self.optimizer.name)

    @property
    def ways(self) -> dict[str, Any]:
        found = {"gradients": self._checked, "workers_compared": self._compared, "taken_again": self._again}
        found |= {"bucketed": self._buckets.facts()} if self._buckets else {}
        return self._steps.facts() | {name: facts for name, facts in found.items() if facts}

    def code_places(self) -> dict[str, str]:
        return self._steps.code_places()

    @property
    def texts(self) -> Mapping[str, str]:
        return self._steps.texts

    def _compare(self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> dict[str, Any]:
        """Seconds a step of all processes, and of the chief alone while the others wait; nothing has changed then."""
        found: dict[str, Any] = {"workers": self._team.workers}
        both = (("step_seconds", self._steps.attempt), ("alone_step_seconds", self._steps.attempt_alone))
        before = self._faulty.values()
        for name, attempt in both if self._team.is_chief else both[:1]:
            for _ in ("to trace", "to measure"):
                began = time.perf_counter()
                losses, fault = attempt(examples, order, bounds)
                found[name] = round((time.perf_counter() - began) / max(1, len(losses)), 6)
                self._faulty.put_back(before)
                if fault:
                    return {}
        return found

    @property
    def paths(self) -> Sequence[str]:
        return [path for path in self.variables if path.startswith("model/")]

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

    @contextmanager
    def averaged(self) -> Iterator[None]:
        averages = self.averages()
        kept = {path: self.variables[path].value.read_value() for path in averages}
        self.use_averages()
        try:
            yield
        finally:
            for path, value in kept.items():
                self.variables[path].assign(value)

    def continue_from(self, step: int) -> None:
        """Sets the global step: it goes on even where another optimizer starts with empty slots."""
        if self.step != step:  # gradients that wait to be applied keep their place between two steps
            calls_of(self.optimizer).assign(step * batches_per_step(self.optimizer))

    def curve(self, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
        return curve_of(self.optimizer, losses)

    def rates(self, steps: NDArray[np.int64]) -> list[float]:
        """The learning rate at each of the steps."""
        rate = rate_of(self.optimizer)
        if not len(steps):
            return []
        if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return [float(self.optimizer.learning_rate)] * len(steps)
        if (constant := constant_of(rate)) is not None:
            return [constant] * len(steps)
        if self._rates_of is None:
            self._rates_of = self.model.compiled(
                lambda steps: tf.map_fn(
                    lambda step: tf.cast(rate(step), tf.float32), steps, fn_output_signature=tf.float32
                ),
                tf.TensorSpec([None], tf.int64),
            )
        return np.asarray(self._rates_of(tf.constant(steps, tf.int64))).tolist()

    @contextmanager
    def _own_rates(self) -> Iterator[None]:
        """Constant learning rates stay those of the module after a restore: a parent may have had another."""
        kept = self._rates()
        yield
        for variable, value in kept:
            variable.assign(value)

    def _rates(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """With what they are now."""
        found = [one for path, one in self.variables.items() if path.endswith("/learning_rate")]
        return [(variable, variable.value.read_value()) for variable in found]

    def frozen(self) -> list[str]:
        return sorted(f"model/{one.path}" for one in self.model.network.variables if not one.trainable)

    def averages(self) -> dict[str, str]:
        return averages_by_path(self._optimizers, self.variables)

    def start_copies(self, new: Collection[str]) -> None:
        """Slots that are copies of a variable begin as the variable is, also where it was carried and they are new."""
        variables = self.variables
        copies = copies_by_path(self._optimizers, variables)
        for slot in copies.keys() & set(new):
            variables[slot].assign(variables[copies[slot]])

    def begin_round(self) -> None:
        self._hooks.on_round_begin()

    def end_round(self) -> None:
        self._hooks.on_round_end()

    def before_saving(self, arrays: Arrays) -> None:
        self._hooks.on_checkpoint(arrays)

    def after_saving(self, saved: Saved) -> None:
        self._hooks.after_checkpoint(saved)

    def train_block(
        self, examples: TrainingSet, *, pass_index: int, block_index: int, pace: Pace | None = None
    ) -> Losses:
        losses = self._train_block(examples, pass_index=pass_index, block_index=block_index, pace=pace)
        self._hooks.on_block(losses)
        if pace is not None and self._hooks.is_stopped:
            pace.stop(rows=examples.count - self.rows_left, losses=len(losses))
        return losses

    def _train_block(self, examples: TrainingSet, *, pass_index: int, block_index: int, pace: Pace | None) -> Losses:
        """Takes one step per batch and returns the loss of each, in order; `set_aside` may have grown.

        Raises:
            NotFiniteError: with the step; the weights cannot be used any more.
            DefinitionFailedError: the user's model or loss raised.
        """
        known = [row for block, row in self.set_aside if block == block_index]
        rows = np.delete(np.arange(examples.count, dtype=np.int64), known)
        self._keep([])
        self.rows_left = 0
        if not len(rows):
            return np.zeros(0, np.float32)
        self.model.placement.look(
            lambda columns: self.model.outputs(columns, training=False),
            examples.first(1).columns,
        )
        asked = self.model.definition.training.check_gradients
        if asked is not None and not self._checked:
            with blame_definition(self.model.definition.module or "the estimator"):
                self._checked = check_gradients(self.model, examples, tolerance=asked, seed=self._seed)
        if self.model.definition.training.summaries.compiled and not self.texts:
            self._steps.note_compiled(examples)
        turn = {"pass_index": pass_index, "block_index": block_index}
        order, bounds = batches_of(self.model, examples, rows, self._buckets, seed=self._seed, **turn)
        self._again += len(order) - len(rows)
        if self._team.is_compared and self._compared is None:
            self._compared = self._compare(examples, order, bounds[: _COMPARED_STEPS + 1])
        losses: list[Losses] = []
        batch = 0
        while batch < len(bounds) - 1:
            before = self._faulty.snapshot()
            end = self._next_stop(pace, batch, len(bounds) - 1)
            good, fault, called = self._call(examples, order, bounds[batch : end + 1])
            if fault is None:
                losses.append(good)
                batch += called
            else:
                if not before:
                    raise fault.raised(f" at step {self.step}" if fault.is_numeric else "")
                self._faulty.put_back(before)
                taken, called, aside = self._faulty.take(
                    examples, order, bounds[batch : end + 1],
                    known_good=len(good), aside=len(self.set_aside), seen=self._seen,
                )  # fmt: skip
                losses += taken
                batch += called
                self.set_aside |= {(block_index, row): reason for row, reason in aside.items()}
            if pace is None or pace.steps_left(self.step) != 0:
                continue
            if pace.is_over(rows=min(int(bounds[batch]), len(rows)), losses=sum(map(len, losses))):
                break
        self.rows_left = max(0, len(rows) - int(bounds[batch]))
        self._seen += int(bounds[batch])
        return self._keep(losses)

    def _next_stop(self, pace: Pace | None, batch: int, last: int) -> int:
        """The batch before which the round looks up, the block's end at the latest."""
        steps = None if pace is None else pace.steps_left(self.step)
        if steps is None:
            return last
        waiting = int(calls_of(self.optimizer)) % batches_per_step(self.optimizer)
        return min(last, batch + max(1, steps * batches_per_step(self.optimizer) - waiting))

    def _keep(self, parts: list[Losses]) -> Losses:
        """The losses among what the steps gave; what was added in each, and the norms, stay to be asked for."""
        found = np.concatenate([np.zeros((0, 2 + self.norms.shape[1]), np.float32), *parts])
        self.added, self.norms = found[:, 1], found[:, 2:]
        return found[:, 0]

    def _call(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, Fault | None, int]:
        """As many of the batches as may go in one call, and how many those are."""
        tracer, count = self.tracer, len(bounds) - 1
        if tracer is None:
            return *self._steps.attempt(examples, order, bounds), count
        together = self.model.definition.training.local_steps
        count = min(count, -(-tracer.batches(count) // together) * together)
        return *tracer.call(lambda: self._steps.attempt(examples, order, bounds[: count + 1]), batches=count), count
