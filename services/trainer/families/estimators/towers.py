"""two_tower: one tower of layers for who asks and one for the item, each ending in vectors of length 1."""

from collections.abc import Mapping
from dataclasses import dataclass

import keras

from common.definition.model import Definition
from common.definition.parameters import EstimatorParameters
from services.trainer.families.estimators.layers import LookedUp, initializer_of, regularizer_of
from services.trainer.families.estimators.network import column_input, dense_columns, hidden_layers, regularizer_for
from services.trainer.features.transform import Transform, ids_of, is_weighted, weights_name

USER, ITEM, ITEM_ID = "user", "item", "item_id"
"""Outputs of the whole network: float32 [n, dimension] twice, int32 [n]."""


@dataclass(frozen=True)
class Towers:
    """Attributes:
    network: both towers on the columns of both; its outputs are a dict of the three above.
    user, item: each tower alone, on its own columns; the same layers.
    """

    network: keras.Model
    user: keras.Model
    item: keras.Model


def build_towers(definition: Definition, transform: Transform, tables: Mapping[str, LookedUp]) -> Towers:
    """`tables`: by name, embedding tables to take in place of new ones."""
    parameters = definition.estimator_parameters
    assert parameters is not None
    assert parameters.towers is not None
    towers = parameters.towers
    inputs = {name: column_input(definition.features, transform, name) for name in transform.outputs}
    shared = dict(tables)
    found = {}
    for side, names in ((USER, towers.user), (ITEM, towers.item)):
        columns = dense_columns(definition.features, parameters, names, inputs, shared)
        taken = {name: inputs[name] for name in _columns_of(definition, names)}
        found[side] = keras.Model(taken, _vectors(side, columns, parameters, towers.dimension), name=side)
    ids = keras.layers.Reshape((), name="item_row")(inputs[towers.candidates])
    outputs = {USER: found[USER].output, ITEM: found[ITEM].output, ITEM_ID: ids}
    return Towers(keras.Model(inputs, outputs, name="network"), found[USER], found[ITEM])


def _columns_of(definition: Definition, names: tuple[str, ...]) -> list[str]:
    specs = definition.features
    weighted = [weights_name(name) for name in names if is_weighted(specs[name])]
    return sorted({*(ids_of(specs, name) for name in names), *weighted})


def _vectors(
    side: str, columns: list[keras.KerasTensor], parameters: EstimatorParameters, dimension: int
) -> keras.KerasTensor:
    hidden = hidden_layers(columns, parameters, joined=f"{side}_columns", prefix=f"{side}_")
    vectors = keras.layers.Dense(
        dimension,
        use_bias=False,
        kernel_initializer=initializer_of(parameters.initializer),
        kernel_regularizer=regularizer_of(parameters.regularizer, regularizer_for(parameters)),
        name=f"{side}_output",
    )(hidden)
    return keras.layers.UnitNormalization(name=f"{side}_unit")(vectors)
