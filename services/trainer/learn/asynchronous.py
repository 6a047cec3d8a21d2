"""Training by parameter servers: the chief's steps, a worker's gradients, a server's optimizer.

weights and slots              on the servers; a worker fetches what has changed before each batch
embedding tables               on the servers; a worker fetches the rows that a batch looks up (batch_tables.py)
moving averages (batch norm)   on the servers, too: what a batch has added is added
draws (dropout)                batch k of a call draws from the generator's key plus k times a constant
other counters of layers       the sum of what the batches have added
frozen weights, vocabularies   everybody's own; they do not change
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.training import Training as TrainingSection
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Losses, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError, blame_definition, describe
from services.trainer.keras_internals import excludes_from_decay, layers_of, rate_of, weights_of
from services.trainer.learn.freezing import freeze, rate_factors, scale_rates
from services.trainer.learn.gradients import merge_before_apply, merged
from services.trainer.learn.optimizers import inner_of, make_optimizer, slots_by_path
from services.trainer.parameters.coordinator import Coordinator
from services.trainer.parameters.worker import COLUMNS, LABELS, WEIGHTS, Contribution
from services.trainer.shards.bits import keyed


def running_of(model: BuiltModel) -> tuple[keras.Variable, ...]:
    """What the network changes beside weights; frozen weights do not move."""
    network = model.network
    weights = {id(variable) for layer in layers_of(network, include_self=True) for variable in weights_of(layer)}
    moving = [variable for variable in network.non_trainable_variables if id(variable) not in weights]
    return tuple({id(variable): variable for variable in (*moving, model.seed_state)}.values())


class ServedSteps:
    """The chief's: batches go out to workers, and the variables come back from the servers."""

    def __init__(self, model: BuiltModel, optimizer: keras.optimizers.Optimizer, coordinator: Coordinator) -> None:
        self._model, self._optimizer, self._coordinator = model, optimizer, coordinator
        self._by_path = _by_path(model.network.trainable_variables)
        self._running, self._counted = _moving_parts(model)
        self._has_begun = False
        _refuse(model, optimizer, coordinator.section.servers)
        coordinator.place(self._by_path, self._running)

    def attempt(
        self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> tuple[Losses, tuple[str, bool] | None]:
        """float32 [n, 2] and the first fault, as Coordinator.run says."""
        variables = {**self._by_path, **self._running, **slots_by_path(self._optimizer)}
        if not self._has_begun:
            self._has_begun = True
            factors = rate_factors(self._by_path.values(), self._model.definition.training.learning_rates)
            by_user = self._model.compiled_by_user.optimizers
            described = keras.saving.serialize_keras_object(self._optimizer) if by_user else {}
            self._coordinator.build(variables, [*self._running], described, factors)
        batches = _Batches(examples, order, bounds)
        starts = {
            path: [np.asarray(keyed(variable, variable.value.read_value(), number)) for number in range(len(batches))]
            for path, variable in self._counted.items()
        }
        ran = self._coordinator.run(variables, starts, batches)
        for path, value in ran.counted.items():
            self._counted[path].assign(value)
        return ran.losses, ran.fault


class _Batches:
    """Of a block, each made when it is asked for."""

    def __init__(self, examples: TrainingSet, order: NDArray[np.int64], bounds: NDArray[np.int32]) -> None:
        self._order, self._bounds = order, bounds
        parts = zip((COLUMNS, LABELS, WEIGHTS), examples.parts, strict=True)
        self._arrays = {f"{part}{name}": values for part, named in parts for name, values in named.items()}

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, number: int, /) -> Mapping[str, NDArray[Any]]:
        rows = self._order[self._bounds[number] : self._bounds[number + 1]]
        return {name: tf.gather(values, rows).numpy() for name, values in self._arrays.items()}


class Contributing:
    """A worker's network (parameters/worker.py's Contributor)."""

    def __init__(self, model: BuiltModel) -> None:
        freeze(model.network, model.definition.training.frozen)
        self._model = model
        self.taught = _by_path(model.network.trainable_variables)
        self._tables = tuple(model.batch_tables.values())
        self._parts = {part.path: part for table in self._tables for part in table.parts}
        self._learning = {**self.taught, **{path: part.rows for path, part in self._parts.items()}}
        self.running, self.counted = _moving_parts(model)
        compute = self._differentiated
        if model.definition.training.jit_compile:
            compute = tf.function(compute, jit_compile=True, autograph=False)
        self._compute = model.graph_of(lambda *batch: self._merged(*compute(*batch)), *model.batch_specs())

    def contribute(
        self, columns: Mapping[str, Any], labels: Mapping[str, Any], weights: Mapping[str, Any]
    ) -> Contribution:
        try:
            with blame_definition(self._model.definition.module or "the estimator"):
                loss, added, gradients, sums = self._compute(columns, labels, weights)
        except DefinitionFailedError as error:
            if isinstance(error.__cause__, tf.errors.InvalidArgumentError):
                return Contribution(fault=describe(error.__cause__))
            raise
        if not np.isfinite(loss.numpy()) or not np.isfinite(sums.numpy()):
            fault = float(loss) if not np.isfinite(loss.numpy()) else float("nan")
            return Contribution(fault=f"the loss became {fault}", is_numeric=True)
        return Contribution(float(loss), float(added), gradients)

    def looked_up(self, columns: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
        return {path: rows for table in self._tables for path, rows in table.looked_up(columns).items()}

    def hold(self, path: str, numbers: NDArray[np.int64], rows: NDArray[Any]) -> None:
        self._parts[path].hold(numbers, rows)

    def _differentiated(self, *batch: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        return self._model.differentiated(batch, [*self._learning.values()])

    def _merged(self, loss: tf.Tensor, added: tf.Tensor, gradients: list[Any]) -> tuple[Any, ...]:
        found = {
            path: merged(gradient)
            for path, gradient in zip(self._learning, gradients, strict=True)
            if gradient is not None
        }
        found |= {path: self._parts[path].of_table(gradient) for path, gradient in found.items() if path in self._parts}
        if not found:
            raise DefinitionFailedError("the loss depends on none of the model's trainable variables")
        moved = [*found.values(), *(variable.value.read_value() for variable in self.running.values())]
        sums = [tf.reduce_sum(tf.cast(getattr(tensor, "values", tensor), tf.float32)) for tensor in moved]
        return loss, added, found, tf.add_n(sums)


def server_optimizer(
    section: TrainingSection,
    described: Mapping[str, Any],
    variables: list[keras.Variable],
    factors: Mapping[str, float],
) -> tuple[keras.optimizers.Optimizer, dict[str, keras.Variable]]:
    """Built for a server's variables; and all of its slots, named as the chief's are.

    Args:
        described: a module's own optimizer, as Keras serializes it; empty: the definition's.
    """
    optimizer = keras.saving.deserialize_keras_object(described) if described else make_optimizer(section)
    merge_before_apply(optimizer)
    scale_rates(optimizer, factors)
    optimizer.build(variables)
    return optimizer, slots_by_path(optimizer)


def _by_path(variables: Sequence[keras.Variable]) -> dict[str, keras.Variable]:
    found = {variable.path: variable for variable in variables}
    if len(found) < len(variables):
        raise DefinitionFailedError("training: asynchronous knows variables by their paths, and two have one path")
    return found


def _moving_parts(model: BuiltModel) -> tuple[dict[str, keras.Variable], dict[str, keras.Variable]]:
    """What the network changes beside weights: numbers with a point, and counters."""
    found = _by_path(running_of(model))
    running = {path: variable for path, variable in found.items() if tf.as_dtype(variable.dtype).is_floating}
    return running, {path: variable for path, variable in found.items() if path not in running}


def _refuse(model: BuiltModel, optimizer: keras.optimizers.Optimizer, servers: int) -> None:
    """Raises DefinitionFailedError: what belongs to steps that follow each other, or that a server cannot have."""
    by_user = model.compiled_by_user
    rate = rate_of(optimizer)
    is_own = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) and not _is_keras(rate)
    faults = {
        "the module's own train_step takes the steps": by_user.has_train_step,
        "before_step, on_gradients and after_step belong to steps that follow each other": bool(
            {"before_step", "on_gradients", "after_step"}.intersection(
                name for hook_set in model.hooks for name in hook_set.functions
            )
        ),
        "the model compiles several optimizers": len(by_user.optimizers) > 1,
        "the optimizer scales losses or accumulates gradients": inner_of(optimizer) is not optimizer
        or bool(optimizer.gradient_accumulation_steps),
        "a server does not have the code of the module's optimizer or schedule": bool(by_user.optimizers)
        and (is_own or not _is_keras(optimizer)),
        "exclude_from_weight_decay is not carried to servers": excludes_from_decay(optimizer),
        "global_clipnorm needs the gradients of all variables, and each of several servers has some": servers > 1
        and bool(getattr(optimizer, "global_clipnorm", None)),
    }
    for fault, is_so in faults.items():
        if is_so:
            where = model.definition.module or "the estimator"
            raise DefinitionFailedError(f"{where}: training.asynchronous is given, and {fault}")


def _is_keras(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "keras"
