"""Which operation of which layer made a value that is not finite: the step is taken again with TensorFlow's checks on
every result.

Slow, and only where `training.debug` asks for it or the round ends with it: the checks double the graph, which is made
for this one batch.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.model import BuiltModel
from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.families.port import TrainingSet
from services.trainer.keras_internals import layers_of

_OPERATION = re.compile(r'(?:graph|eagerly-executing) op "(\w+)"')
_PLACE = re.compile(rf"{PACKAGE_PREFIX}[^/]*/(\S+) \(L(\d+)\) (\S+)")
_NODE, _NUMBER = re.compile(r"\{\{node (\S+)/CheckNumerics\w*\}\}"), re.compile(r"_\d+$")
_STACK_FRAMES, _PATH_CHARACTERS = 200, 1000
"""Keras's calls lie between a module's lines and the operation."""


@dataclass(frozen=True)
class Origin:
    """Where it came from, as far as known; `sentence` goes behind another.

    Attributes:
        operation: TensorFlow's.
        layer: "layer NAME", or "the gradient of layer NAME"; empty where it was in none, such as in a loss.
        place: the module's line.
    """

    sentence: str = ""
    operation: str = ""
    layer: str = ""
    place: str = ""

    def facts(self, step: int) -> dict[str, Any]:
        """As the failure of a round has it."""
        return {"step": step, "operation": self.operation, "layer": self.layer, "place": self.place}


def of_fault(model: BuiltModel, examples: TrainingSet, rows: NDArray[Any]) -> Origin:
    """ "; the first operation that was not finite is Log (model.py, line 9, in call), in layer hidden"; says so where
    none was.

    Takes loss and gradients of these rows of the block; the caller puts back what that changes.
    """
    gradients = gradients_of(model, examples, rows)
    tf.debugging.enable_check_numerics(_STACK_FRAMES, _PATH_CHARACTERS)
    try:
        gradients()
    except tf.errors.InvalidArgumentError as error:
        message = str(error.message)
        found, places = _OPERATION.search(message), _PLACE.findall(message)
        layer = _layer_of(message, {layer.name for layer in layers_of(model.network)})
        place = "{}, line {}, in {}".format(*places[-1]) if places else ""
        name = found.group(1) if found else "an operation that TensorFlow does not name"
        sentence = f"; the first operation that was not finite is {name}{f' ({place})' if place else ''}"
        return Origin(sentence + (f", in {layer}" if layer else ""), name, layer, place)
    finally:
        tf.debugging.disable_check_numerics()
    return Origin("; no operation of the loss and its gradients was: the optimizer's step made it so")


def gradients_of(model: BuiltModel, examples: TrainingSet, rows: NDArray[Any]) -> Any:
    """A graph, traced when it is first called, of the loss of these rows and its gradients."""
    batch, variables = examples.chosen(rows).parts, model.network.trainable_variables
    return tf.function(lambda: model.differentiated(batch, variables)[2], autograph=False)


def _layer_of(message: str, names: Collection[str]) -> str:
    """The innermost layer whose scope the operation is in: Keras opens a scope for each layer's call, with a number
    behind its name from the second call on."""
    found = _NODE.search(message)
    parts = found.group(1).split("/") if found else []
    named = (name for part in reversed(parts) for name in (part, _NUMBER.sub("", part)) if name in names)
    layer = next(named, "")
    if not layer:
        return ""
    return f"the gradient of layer {layer}" if parts[0] == "gradient_tape" else f"layer {layer}"
