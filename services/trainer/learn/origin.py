"""Which operation made a value that is not finite: the step is taken again with TensorFlow's checks on every result.

Slow, and only where `training.debug` asks for it: the checks double the graph, which is made for this one batch.
"""

import re
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.model import BuiltModel
from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.families.port import TrainingSet

_OPERATION = re.compile(r'(?:graph|eagerly-executing) op "(\w+)"')
_PLACE = re.compile(rf"{PACKAGE_PREFIX}[^/]*/(\S+) \(L(\d+)\) (\S+)")
_STACK_FRAMES, _PATH_CHARACTERS = 200, 1000
"""Keras's calls lie between a module's lines and the operation."""


def of_fault(model: BuiltModel, examples: TrainingSet, rows: NDArray[Any]) -> str:
    """ "; the first operation that was not finite is Log (model.py, line 9, in call)"; says so where none was.

    Takes loss and gradients of these rows of the block; the caller puts back what that changes.
    """
    columns, labels, weights = (
        {name: tf.gather(values, rows) for name, values in part.items()}
        for part in (examples.columns, examples.labels, examples.weights)
    )

    def gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            loss, _ = model.loss_and_added(columns, labels, weights)
        return tape.gradient(loss, model.network.trainable_variables)

    tf.debugging.enable_check_numerics(_STACK_FRAMES, _PATH_CHARACTERS)
    try:
        tf.function(gradients, autograph=model.definition.module is not None)()
    except tf.errors.InvalidArgumentError as error:
        found = _OPERATION.search(str(error.message))
        places = _PLACE.findall(str(error.message))
        where = " ({}, line {}, in {})".format(*places[-1]) if places else ""
        name = found.group(1) if found else "one that TensorFlow does not name"
        return f"; the first operation that was not finite is {name}{where}"
    finally:
        tf.debugging.disable_check_numerics()
    return "; no operation of the loss and its gradients was: the optimizer's step made it so"
