"""What optimizers keep beside their slots' values: which slots are copies of variables, and how batches make steps."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
from numpy.typing import NDArray

from services.trainer.families.port import Losses
from services.trainer.keras_internals import averages_of, calls_of, momentums_of, taught_by
from services.trainer.learn.optimizers import inner_of

Optimizers = Sequence[keras.optimizers.Optimizer]
Variables = Mapping[str, keras.Variable]


def averages_by_path(optimizers: Optimizers, variables: Variables) -> dict[str, str]:
    """Where an optimizer keeps moving averages (EMA): path of the variable to path of its average."""
    paths = {id(variable): path for path, variable in variables.items()}
    pairs = [
        (variable, average)
        for optimizer in map(inner_of, optimizers)
        if getattr(optimizer, "use_ema", False)
        for variable, average in zip(taught_by(optimizer), averages_of(optimizer), strict=True)
    ]
    return {paths[id(variable)]: paths[id(average)] for variable, average in pairs}


def copies_by_path(optimizers: Optimizers, variables: Variables) -> dict[str, str]:
    """Slots that begin as copies of a variable: path of the slot to path of the variable."""
    paths = {id(variable): path for path, variable in variables.items()}
    copies = {average: path for path, average in averages_by_path(optimizers, variables).items()}
    for optimizer in map(inner_of, optimizers):
        if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
            pairs = zip(momentums_of(optimizer), taught_by(optimizer), strict=True)
            copies |= {paths[id(slot)]: paths[id(variable)] for slot, variable in pairs}
    return copies


def batches_per_step(optimizer: keras.optimizers.Optimizer) -> int:
    return optimizer.gradient_accumulation_steps or 1


def curve_of(optimizer: keras.optimizers.Optimizer, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
    """Of the losses of the last batches: the steps, and the mean loss of the batches that each step rests on."""
    together = batches_per_step(optimizer)
    # An optimizer that has a turn now and then (a GAN's) has counted fewer steps than there were batches.
    first = max(0, int(calls_of(optimizer)) - len(losses))
    steps, firsts, counts = np.unique(
        np.arange(first, first + len(losses)) // together, return_index=True, return_counts=True
    )
    if not len(losses) or together == 1:
        return steps.astype(np.int64), losses
    return steps.astype(np.int64), (np.add.reduceat(losses, firsts) / counts).astype(np.float32)
