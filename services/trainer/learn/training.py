"""Training on blocks of examples. One block is one call into a compiled graph that loops over its batches.

A block is put into a seeded order, cut into even batches, and each batch takes one optimizer step. Nothing but the
variables crosses from one block to the next, so a round resumed after block k goes on exactly as if it had not stopped.
"""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer import determinism
from services.trainer.families.heads import LABEL_DTYPES
from services.trainer.families.keras_module import DefinitionFailedError, blame_definition
from services.trainer.families.model import BuiltModel, Columns
from services.trainer.learn.checkpoint import variables_by_path
from services.trainer.learn.gradients import merge_before_apply
from services.trainer.learn.optimizers import make_optimizer


class NotFiniteError(Exception):
    """A loss or a weight is NaN or infinite; the message says which, and at which step."""


@dataclass(frozen=True)
class TrainingSet:
    """Of a block's trained examples: the network's columns, labels [n] (heads.LABEL_DTYPES), weights float32 [n]."""

    columns: Columns
    labels: tf.Tensor
    weights: tf.Tensor
    count: int


class Training:
    """A model with its optimizer. `variables` (checkpoint.py) hold all of its state."""

    def __init__(self, model: BuiltModel, *, seed: int) -> None:
        self.model = model
        self.optimizer = make_optimizer(model.definition.training.optimizer)
        self._variables = model.network.trainable_variables
        if not self._variables:
            raise DefinitionFailedError("the model has nothing to train: no trainable variables")
        self.optimizer.build(self._variables)
        merge_before_apply(self.optimizer)
        self._seed = seed
        self._compiled = model.compiled(
            self._train_batches,
            model.column_specs(),
            tf.TensorSpec([None], LABEL_DTYPES[model.definition.task]),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
        )

    @property
    def step(self) -> int:
        """Optimizer steps since the first round."""
        return int(self.optimizer.iterations)

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """By path, as checkpoint.py stores them."""
        return variables_by_path(
            model=self.model.network.variables, optimizer=self.optimizer.variables, seed=[self.model.seed_state]
        )

    def continue_from(self, step: int) -> None:
        """Sets the global step: it goes on even where another optimizer starts with empty slots."""
        self.optimizer.iterations.assign(step)

    def train_block(self, examples: TrainingSet, *, pass_index: int, block_index: int) -> NDArray[np.float32]:
        """Takes one step per batch and returns the loss of each, in order.

        Raises:
            NotFiniteError: with the step; the weights cannot be used any more.
            DefinitionFailedError: the user's model or loss raised.
        """
        if not examples.count:
            return np.zeros(0, np.float32)
        order = determinism.block_order(
            self._seed, pass_index=pass_index, block_index=block_index, count=examples.count
        )
        bounds = determinism.batch_bounds(examples.count, self.model.definition.training.batch_size)
        first_step = self.step
        with blame_definition(self.model.definition.module or "the estimator"):
            losses = self._compiled(
                examples.columns, examples.labels, examples.weights, tf.constant(order), tf.constant(bounds)
            ).numpy()
        if not np.isfinite(losses).all():
            bad = int(np.argmin(np.isfinite(losses)))
            raise NotFiniteError(f"the loss became {losses[bad]} at step {first_step + bad}")
        return losses

    def _train_batches(
        self, columns: dict[str, tf.Tensor], labels: tf.Tensor, weights: tf.Tensor, order: tf.Tensor, bounds: tf.Tensor
    ) -> tf.Tensor:
        columns = {name: tf.gather(column, order) for name, column in columns.items()}
        labels, weights = tf.gather(labels, order), tf.gather(weights, order)
        steps = tf.size(bounds) - 1

        def take_step(step: tf.Tensor, is_finite: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start, end = bounds[step], bounds[step + 1]
            batch = {name: column[start:end] for name, column in columns.items()}
            loss = self._train_batch(batch, labels[start:end], weights[start:end])
            return step + 1, tf.math.is_finite(loss), losses.write(step, loss)

        losses = tf.TensorArray(tf.float32, size=steps, element_shape=[])
        *_, losses = tf.while_loop(
            lambda step, is_finite, losses: tf.logical_and(is_finite, step < steps),
            take_step,
            (tf.constant(0), tf.constant(True), losses),
        )
        return losses.stack()

    def _train_batch(self, columns: Columns, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = self.model.outputs(columns, training=True)
            data_loss = tf.math.divide_no_nan(
                tf.reduce_sum(self.model.losses(labels, outputs) * weights), tf.reduce_sum(weights)
            )
            loss = tf.add_n([data_loss, *self.model.network.losses])
        gradients = tape.gradient(loss, self._variables)
        with tf.control_dependencies([loss]):
            self.optimizer.apply(gradients, self._variables)
        return loss
