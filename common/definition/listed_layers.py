"""`module: layers`: a network that `parameters: layers` lists, input first, in place of a Python file.

    parameters:
      layers:
        - {input: pixels}                # features of the stream; several are joined as columns
        - {conv2d: {filters: 8, kernel_size: 3, activation: relu}}
        - flatten
        - {dense: {units: 10}}           # the last layer gives the logits

Names and options are those of `keras.layers`; the trainer holds them against Keras's signatures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.definition.keras_names import Named
from common.errors import InvalidInput

LAYERS = "layers"
LAYERS_FILE = "layers.py"
"""What the trainer loads for it; no definition has a file of this name beside it."""
_FORM = "expected a name of keras.layers, or {name: {option: value}}"


@dataclass(frozen=True)
class ListedLayers:
    inputs: tuple[str, ...]
    layers: tuple[Named, ...]


def read_layers(parameters: Mapping[str, Any]) -> ListedLayers:
    """Raises InvalidInput: which entry, what was expected."""
    layers = parameters.get(LAYERS)
    if [*parameters] != [LAYERS] or not isinstance(layers, list) or len(layers) < 2:
        raise InvalidInput(f"parameters: module: layers takes a list layers, input first, and nothing else: {_FORM}")
    return ListedLayers(
        _inputs(layers[0]), tuple(_layer(place, layer) for place, layer in enumerate(layers[1:], start=1))
    )


def _inputs(entry: object) -> tuple[str, ...]:
    given = entry.get("input") if isinstance(entry, Mapping) and len(entry) == 1 else None
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            f"parameters: layers 0 is {entry!r}, expected {{input: FEATURE}} or {{input: [FEATURE, ...]}}"
        )
    return tuple(names)


def _layer(place: int, entry: object) -> Named:
    if isinstance(entry, str):
        return Named(entry)
    if isinstance(entry, Mapping) and len(entry) == 1:
        (name, options), *_ = entry.items()
        if isinstance(name, str) and isinstance(options, Mapping):
            return Named(name, dict(options))
    raise InvalidInput(f"parameters: layers {place} is {entry!r}, {_FORM}")
