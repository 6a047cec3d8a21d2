"""`export: context`: a signature takes one row of what all rows of a request share, and makes its columns once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from common.definition.inputs import WITH_CONTEXT
from common.errors import InvalidInput
from services.trainer.export import saved_model as export
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.tests.families.test_estimators import EXAMPLES, built
from services.trainer.tests.support.small_rounds import fresh_process

ROWS = 5


@pytest.mark.covers("perf-shared-context")
def test_a_shared_row_is_transformed_once_and_answered_as_its_copies(tmp_path: Path) -> None:
    model, _, raw = built({"export": {"context": ["word", "code", "tags"]}})
    export.export(model, tmp_path / "saved_model")
    export.check(tmp_path / "saved_model", export.trial_of(model, EXAMPLES[:3]), fresh_process(), tmp_path)

    loaded: Any = tf.saved_model.load(str(tmp_path / "saved_model"))
    rows = {feature.name: raw[feature.name][:ROWS] for feature in model.inputs}
    shared = {name: values[:1] for name, values in rows.items() if name in ("word", "code", "tags")}
    copies = {name: tf.repeat(values, ROWS, axis=0) for name, values in shared.items()}
    found = loaded.signatures[WITH_CONTEXT](**(rows | shared))
    expected = loaded.signatures["serving_default"](**(rows | copies))
    assert len({*expected["probability"].numpy().tolist()}) == ROWS, "the other features still count"
    np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-6)

    graph = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model/saved_model.pb").read_bytes())
    hashed = {
        node.attr["_output_shapes"].list.shape[0].dim[0].size
        for function in graph.meta_graphs[0].graph_def.library.function
        if "StringJoin" in {node.op for node in function.node_def}
        for node in function.node_def
        if node.op == "StringToHashBucketFast"
    }
    assert hashed == {-1, 1}, "of rows, and of one row"


@pytest.mark.parametrize(
    ("case", "error", "sentence"),
    [
        ({"export": {"context": ["hat"]}}, DefinitionFailedError, "context has hat; expected some of the model's inp"),
        ({"export": {"context": ["word", "x"]}, "features": {"both": {"type": "crossed", "of": ["word", "code"],
          "bins": 9}}, "estimator": "linear_classifier", "parameters": {}}, DefinitionFailedError, "made of these alo"),
        ({"export": {"context": ["code"]}, "features": {"code": {"type": "hashed", "bins": 5}},
          "estimator": "linear_classifier", "parameters": {}}, DefinitionFailedError, "not all of them .code."),
        ({"export": {"context": ["x"]}, "estimator": "boosted_trees_classifier", "parameters": {}, "training": None,
          "features": {"x": {"type": "numeric"}}}, InvalidInput, "context is for networks behind features"),
    ],
)  # fmt: skip
def test_a_context_without_an_effect_is_refused(case: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        built(case)
