"""Weighted ids: columns and rows of a table as tf.nn.embedding_lookup_sparse and CategoryEncoding weigh them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.feature_section import parse_features
from common.schema import Schema
from services.trainer.families.estimators.layers import Counts, EmbeddingTable
from services.trainer.features.parsing import parse
from services.trainer.features.transform import Transform
from services.trainer.tests.support.small_rounds import Platform, definition, serialized

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "codes", "dtype": "int64", "shape": [None]},
            {"name": "counts", "dtype": "float32", "shape": [None]},
            {"name": "word", "dtype": "string"},
            {"name": "x", "dtype": "float32"},
        ]
    }
)
FEATURES: dict[str, Any] = {
    "code": {"type": "identity", "of": "codes", "size": 3, "out_of_range": "drop"},
    "columns": {"type": "indicator", "of": "code", "weights": "counts"},
    "vector": {"type": "embedding", "of": "code", "dimension": 2, "weights": "counts"},
}


def example(codes: list[int], counts: list[float]) -> bytes:
    return serialized({"codes": codes, "counts": counts, "word": "a", "x": 1.0})


def transform_of(name: str) -> Transform:
    return Transform(parse_features(FEATURES, {}), [name], {}, SCHEMA)


@pytest.mark.covers("feat-weighted", "rec-parse")
def test_ids_are_weighted_and_what_fills_lists_up_weighs_nothing() -> None:
    raw = parse(
        [example([0, 2], [0.5, 2.0]), example([], []), example([1, 7, 1], [1.0, 4.0, -0.0])], SCHEMA.features
    ).raw
    transform = transform_of("columns")
    assert transform.raw_names == ["codes", "counts"]
    columns = transform.strict(raw)
    found = Counts(3, name="c")(columns["code"], id_weights=columns["columns.weights"])
    assert found.numpy().tolist() == [[0.5, 0, 2], [0, 0, 0], [0, 1, 0]]
    sparse = {"code": tf.io.SparseFeature("codes", "counts", tf.float32, size=3)}
    theirs = tf.io.parse_example(tf.constant([example([0, 2], [0.5, 2.0]), example([], [])]), sparse)["code"]
    np.testing.assert_array_equal(found[:2], tf.sparse.to_dense(theirs))


@pytest.mark.covers("feat-weighted")
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_rows_are_combined_as_tensorflow_combines_them(combiner: str) -> None:
    raw = parse([example([0, 2], [0.5, 2.0]), example([1], [3.0])], SCHEMA.features).raw
    columns = transform_of("vector")(raw).columns
    table = EmbeddingTable(3, 2, initializer="random_normal", regularizer=None, name="t")
    found = table(columns["code"], combiner=combiner, id_weights=columns["vector.weights"])
    places = tf.constant([[0, 0], [0, 1], [1, 0]], tf.int64)
    ids = tf.SparseTensor(places, tf.constant([0, 2, 1], tf.int64), [2, 2])
    weights = tf.SparseTensor(places, [0.5, 2.0, 3.0], [2, 2])
    expected = tf.nn.embedding_lookup_sparse(table.variables[0].value, ids, weights, combiner=combiner)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.covers("feat-weighted")
def test_an_example_with_more_ids_than_weights_is_refused_alone() -> None:
    raw = parse([example([0, 2], [0.5]), example([1], [1.0]), example([], [1.0, 2.0])], SCHEMA.features).raw
    transform = transform_of("columns")
    assert transform(raw).refused["columns.weights"].numpy().tolist() == [True, False, True]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match='input "counts": its weights are not one for each value of codes'
    ):
        transform.strict(raw)


@pytest.mark.covers("feat-weighted")
def test_a_round_learns_from_weighted_ids_and_sets_aside_what_lacks_a_weight(tmp_path: Path) -> None:
    schema = SCHEMA.to_mapping() | {"labels": [{"name": "late", "dtype": "int64"}]}
    platform = Platform(tmp_path, schema, exports=False, eager=True)
    late = [{"codes": [number % 3], "counts": [1.0], "word": "a", "x": 1.0, "late": number % 2} for number in range(24)]
    late[5] |= {"counts": [1.0, 2.0]}
    platform.append([serialized(event) for event in late])
    files = definition(estimator="dnn_classifier", features=FEATURES, parameters={"hidden_units": [2]})
    platform.learn(files)
    draft = platform.registry.drafts[0]
    assert draft.events_unusable == 1
    assert "feature columns: there are not as many weights as ids" in str(draft.unusable["reasons"])
