"""How a network is called: its inputs by name, and which of its outputs each head is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from services.trainer.families.module_inputs import as_declared, row_columns


@dataclass(frozen=True)
class Wiring:
    """Attributes:
    inputs: the structure that the network takes (one, a list, a dict), each leaf named after a column.
    names: of the outputs, in the order in which keras.tree flattens them.
    shapes: of the outputs, in the same order.
    taught: the output of each head, by its name; the others are served beside them.
    is_named: the network returns a dict.
    """

    inputs: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    taught: Mapping[str, str]
    is_named: bool = False

    @property
    def columns(self) -> dict[str, keras.KerasTensor]:
        """By name."""
        inputs = keras.tree.flatten(self.inputs)
        return {tensor.name: tensor for tensor in inputs} | row_columns(inputs)

    def shape_of(self, head: str) -> tuple[int | None, ...]:
        """Of the head's output."""
        return self.shapes[self.names.index(self.taught[head])]

    def by_output(self, by_head: Mapping[str, tf.Tensor]) -> Any:
        """What Keras's own losses and metrics take beside the outputs: the one tensor, or a dict by output."""
        if not self.is_named and len(by_head) == 1:
            return next(iter(by_head.values()))
        return {self.taught[head]: value for head, value in by_head.items()}

    def weights_by_output(self, by_head: Mapping[str, tf.Tensor]) -> Any:
        """Of a single head the tensor itself, however the network names its outputs."""
        return next(iter(by_head.values())) if len(by_head) == 1 else self.by_output(by_head)

    def taught_outputs(self, outputs: Any) -> Any:
        """Of what the network returned, what `by_output` has labels for."""
        if not self.is_named and len(self.taught) == 1:
            return outputs
        named = self.named(outputs)
        return {output: named[output] for output in self.taught.values()}

    def arranged(self, columns: Mapping[str, tf.Tensor]) -> Any:
        """The columns in the structure that the network takes."""
        return keras.tree.map_structure(lambda tensor: as_declared(tensor, columns), self.inputs)

    def named(self, outputs: Any) -> dict[str, tf.Tensor]:
        """What the network returned, by name."""
        return dict(zip(self.names, keras.tree.flatten(outputs), strict=True))


def wiring_of(inputs: Any, outputs: Any, names: tuple[str, ...], taught: Mapping[str, str]) -> Wiring:
    """Of a network's symbolic inputs and outputs."""
    shapes = tuple(tuple(tensor.shape) for tensor in keras.tree.flatten(outputs))
    return Wiring(inputs, names, shapes, taught, is_named=isinstance(outputs, dict))
