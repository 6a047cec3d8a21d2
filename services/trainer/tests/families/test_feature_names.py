"""Names of features that are no names in Python: servers call them as the schema does."""

from pathlib import Path
from typing import Any

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from common.examples.codec import ExampleCodec
from common.schema import Schema
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, definition

NAMES = (
    "a.b", "a-b", "a_b", "class", "self", "qty", "Qty", "_x", "x", "x_1", "X", "inputs", "training", "CLASS_", "name",
)  # fmt: skip
SCHEMA: dict[str, Any] = {
    "features": [{"name": name, "dtype": "float32"} for name in NAMES],
    "labels": [{"name": "late", "dtype": "int64"}],
}
NETWORK = """
def build_model(schema, parameters):
    inputs = [keras.Input((), name=feature.name) for feature in schema.features]
    both = keras.layers.Concatenate()([keras.layers.Reshape((1,))(one) for one in inputs])
    return keras.Model(inputs, keras.layers.Dense(1)(both))
"""


@pytest.mark.covers("fmt-signatures")
@pytest.mark.parametrize("family", ["estimator", "module"])
def test_they_train_and_are_served_under_their_names(tmp_path: Path, family: str) -> None:
    codec, platform = ExampleCodec(Schema.from_mapping(SCHEMA)), Platform(tmp_path, SCHEMA, eager=True)
    rows = [dict(zip(NAMES, [1.0 * row, 2.0, 3.0, row % 5] + [4.0] * 11, strict=True)) for row in range(48)]
    platform.append([codec.encode({**row, "late": place % 2}) for place, row in enumerate(rows)])
    numeric = {name: {"type": "numeric"} for name in NAMES}
    files = module(NETWORK) if family == "module" else definition(features=numeric, estimator="dnn_classifier")
    platform.learn(files)
    served = tmp_path / "cache" / "model" / "1" / "saved_model" / "saved_model.pb"
    graph = saved_model_pb2.SavedModel.FromString(served.read_bytes()).meta_graphs[0]
    assert sorted(graph.signature_def["serving_default"].inputs) == sorted(NAMES)
