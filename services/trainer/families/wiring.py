"""How a network is called: its inputs by name, and which of its outputs the label teaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Wiring:
    """Attributes:
    inputs: the structure that the network takes (one, a list, a dict), each leaf named after a column.
    names: of the outputs, in the order in which keras.tree flattens them.
    shapes: of the outputs, in the same order.
    main: the output that the label teaches; the others are served beside it.
    is_named: the network returns a dict.
    """

    inputs: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    main: str
    is_named: bool = False

    @property
    def columns(self) -> dict[str, keras.KerasTensor]:
        """By name."""
        return {tensor.name: tensor for tensor in keras.tree.flatten(self.inputs)}

    @property
    def main_shape(self) -> tuple[int | None, ...]:
        return self.shapes[self.names.index(self.main)]

    def arranged(self, columns: Mapping[str, tf.Tensor]) -> Any:
        """The columns in the structure that the network takes."""
        return keras.tree.map_structure(lambda tensor: columns[tensor.name], self.inputs)

    def named(self, outputs: Any) -> dict[str, tf.Tensor]:
        """What the network returned, by name."""
        return dict(zip(self.names, keras.tree.flatten(outputs), strict=True))


def wiring_of(inputs: Any, outputs: Any, names: tuple[str, ...], main: str) -> Wiring:
    """Of a network's symbolic inputs and outputs."""
    shapes = tuple(tuple(tensor.shape) for tensor in keras.tree.flatten(outputs))
    return Wiring(inputs, names, shapes, main, is_named=isinstance(outputs, dict))
