"""The network of `module: layers`: Keras's layers by name, one after the other, with Keras's options."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from common.definition.keras_names import Named
from common.definition.listed_layers import read_layers
from common.schema import Schema
from common.suggestions import did_you_mean
from services.trainer.families import module_inputs
from services.trainer.families.reasons import DefinitionFailedError, blame_definition

SOURCE = f"from {__name__} import build_model\n".encode()
"""The file that stands for the list among a definition's files."""
_OF_EVERY_LAYER = ("name", "trainable")


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """Raises DefinitionFailedError: there is no such feature, layer or option, or the layer does not take its input."""
    listed = read_layers(parameters)
    inputs = [_input(schema, name) for name in listed.inputs]
    columns = [column if len(column.shape) > 1 else keras.layers.Reshape((1,))(column) for column in inputs]
    hidden = keras.layers.Concatenate()(columns) if len(columns) > 1 else columns[0]
    for place, listed_layer in enumerate(listed.layers, start=1):
        with blame_definition(f"layers: {place} ({listed_layer.name})"):
            hidden = _layer(place, listed_layer)(hidden)
    return keras.Model(inputs, hidden)


def _input(schema: Schema, name: str) -> keras.KerasTensor:
    if module_inputs.feature_behind(schema, name) is None:
        known = [feature.name for feature in schema.features]
        raise DefinitionFailedError(f"layers: input {name!r} is no feature of the stream{did_you_mean([name], known)}")
    return module_inputs.symbolic(schema, name)


def _layer(place: int, named: Named) -> keras.layers.Layer:
    kinds = _kinds()
    kind = kinds.get(_key(named.name))
    if kind is None:
        near = did_you_mean([_key(named.name)], [*kinds])
        raise DefinitionFailedError(f"layers: {place}: keras.layers has no {named.name}{near}")
    options = [*list(inspect.signature(kind.__init__).parameters)[1:], *_OF_EVERY_LAYER]
    for name in named.options:
        if name not in options or name == "kwargs":
            raise DefinitionFailedError(
                f"layers: {place}: {named.name} has no option {name}{did_you_mean([name], options)}"
            )
    layer: keras.layers.Layer = kind(**{"name": f"{named.name}_{place}"} | dict(named.options))
    return layer


def _kinds() -> dict[str, Any]:
    """The layers of Keras that stand behind another, by name in small letters."""
    found = [
        kind for kind in vars(keras.layers).values() if inspect.isclass(kind) and issubclass(kind, keras.layers.Layer)
    ]
    return {_key(kind.__name__): kind for kind in found if kind not in (keras.layers.Layer, keras.layers.InputLayer)}


def _key(name: str) -> str:
    return name.replace("_", "").lower()
