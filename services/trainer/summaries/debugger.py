"""What TensorBoard's debugger shows of a round (`summaries: {debugger: true}`): every operation of the loss and its
gradients on some examples, with its lines of code and how many of its values are infinite or NaN.

The examples are the first that are at fault; of a round without any, its first batch.
"""

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Model, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.nan_origin import gradients_of

FOLDER = "debugger"
"""Below the round's folder, and the version's."""
_MOST_EXECUTIONS = 10_000


class DebuggerDump:
    """Attributes:
    told: JSON-ready: the dump's size, and whether examples were at fault; empty where there is none.
    """

    def __init__(self, model: Model, work_dir: Path) -> None:
        """Raises DefinitionFailedError: the module takes its steps itself."""
        training = model.definition.training
        if isinstance(model, BuiltModel) and model.compiled_by_user.has_train_step:
            raise DefinitionFailedError(
                f"{model.definition.module}: summaries: debugger shows the loss and its gradients, which the module's "
                f"own train_step computes"
            )
        self._model, self._folder = model, work_dir / FOLDER
        self._batch_size, self._most_bytes = training.batch_size, training.summaries.debugger_bytes
        self._known: set[tuple[int, int]] = set()
        self.dump: dict[str, Any] = {}
        shutil.rmtree(self._folder, ignore_errors=True)

    def after_block(self, examples: TrainingSet, set_aside: Collection[tuple[int, int]]) -> None:
        """`set_aside`: (block, row) of all examples at fault so far."""
        faulty = sorted(row for _, row in {*set_aside} - self._known)
        self._known |= {*set_aside}
        is_better = bool(faulty) and not self.dump.get("at_fault")
        if not isinstance(self._model, BuiltModel) or not examples.count or (self.dump and not is_better):
            return
        rows = np.array(faulty or range(examples.count), np.int64)[: self._batch_size]
        shutil.rmtree(self._folder, ignore_errors=True)
        _dump(self._model, examples, rows, self._folder)
        size = sum(path.stat().st_size for path in self._folder.iterdir())
        self.dump = {"bytes": size, "at_fault": bool(faulty), "kept": size <= self._most_bytes}
        if not self.dump["kept"]:
            shutil.rmtree(self._folder)


def add_to(output: Path, work_dir: Path) -> None:
    """The dump, if there is one, as files of the version."""
    if (work_dir / FOLDER).is_dir():
        shutil.copytree(work_dir / FOLDER, output / FOLDER)


def _dump(model: BuiltModel, examples: TrainingSet, rows: NDArray[np.int64], folder: Path) -> None:
    gradients = gradients_of(model, examples, rows)
    writer = tf.debugging.experimental.enable_dump_debug_info(
        str(folder), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=_MOST_EXECUTIONS
    )
    try:
        with model.unmoved(), suppress(tf.errors.OpError):  # a layer refuses one of the examples: the dump ends there
            gradients()
        writer.FlushNonExecutionFiles()
        writer.FlushExecutionFiles()
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
