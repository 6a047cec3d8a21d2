"""Activations, initializers and regularizers of an estimator are Keras's by name, with Keras's options."""

from typing import Any

import keras
import numpy as np
import pytest

from common.definition.keras_names import INITIALIZERS, Named
from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.building import build
from services.trainer.families.estimators.layers import initializer_of
from services.trainer.tests.support.small_rounds import SCHEMA, definition

FEATURES = {"x": {"type": "numeric"}, "code": {"type": "identity", "size": 5, "out_of_range": "clip"},
            "code_vector": {"type": "embedding", "of": "code", "dimension": 4}}  # fmt: skip


def network(**parameters: Any) -> keras.Model:
    said = definition(estimator="dnn_classifier", features=FEATURES, parameters={"hidden_units": [8], **parameters})
    return build(parse_definition(said), Schema.from_mapping(SCHEMA), {}, None, seed=5).network


@pytest.mark.covers("init-family")
@pytest.mark.parametrize("name", INITIALIZERS)
def test_every_initializer_draws_as_its_formula_says_and_again_from_the_same_seed(name: str) -> None:
    expected = {"glorot": 2 / (400 + 600), "he": 2 / 400, "lecun": 1 / 400, "variance": 1 / 400,
                "random": 0.05**2, "truncated": 0.05**2}  # fmt: skip
    drawn = []
    for _ in range(2):
        determinism.start_from_seed(7)
        drawn.append(np.asarray(initializer_of(Named(name))((400, 600))))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    family = name.split("_")[0]
    if name == "random_uniform":
        assert drawn[0].var() == pytest.approx(0.1**2 / 12, rel=0.05)
    elif name == "truncated_normal":
        assert np.abs(drawn[0]).max() <= 0.1
    elif name == "orthogonal":
        np.testing.assert_allclose(drawn[0] @ drawn[0].T, np.eye(400), atol=1e-5)
    elif name == "identity":
        np.testing.assert_array_equal(drawn[0], np.eye(400, 600))
    elif family in expected:
        assert drawn[0].var() == pytest.approx(expected[family], rel=0.05)
    else:
        assert set(np.unique(drawn[0])) <= {0.0, 1.0}


@pytest.mark.covers("init-family", "loss-reduction-reg")
def test_an_estimator_takes_them_with_options() -> None:
    said = network(
        activation={"name": "elu", "alpha": 0.5},
        initializer={"name": "variance_scaling", "scale": 3.0, "mode": "fan_avg"},
        embedding_initializer={"name": "constant", "value": 0.25},
        regularizer={"name": "orthogonal_regularizer", "factor": 0.1},
        l2=0.01,
    )
    hidden, table = said.get_layer("hidden_0"), said.get_layer("code_vector_table")
    assert float(hidden.activation(np.float32(-50.0))) == pytest.approx(-0.5)
    assert (hidden.kernel_initializer.scale, hidden.kernel_initializer.mode) == (3.0, "fan_avg")
    assert (table.variables[0].numpy() == 0.25).all()
    kernel = np.asarray(hidden.kernel)
    both = keras.regularizers.OrthogonalRegularizer(0.1)(kernel) + keras.regularizers.L2(0.01)(kernel)
    assert float(hidden.kernel_regularizer(kernel)) == pytest.approx(float(both))
    each = network(hidden_units=[8, 3], initializer=[{"name": "constant", "value": 0.5}, "orthogonal"])
    first, second = (np.asarray(each.get_layer(f"hidden_{index}").kernel) for index in range(2))
    assert (first == 0.5).all()
    np.testing.assert_allclose(second.T @ second, np.eye(3), atol=1e-5)
