"""rnn_*: recurrent networks over sequence columns, held against Keras's layers over each list by itself."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.building import build
from services.trainer.families.model import Scorer
from services.trainer.features.parsing import parse
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.support.small_rounds import FEATURES, MOMENTUM, Platform, definition, serialized

LISTS = Schema.from_mapping({
    "features": [
        {"name": "tags", "dtype": "string", "shape": [None]}, {"name": "prices", "dtype": "float32", "shape": [None]},
        {"name": "sizes", "dtype": "int64", "shape": [3]}, {"name": "age", "dtype": "float32"},
    ],
    "labels": [{"name": "late", "dtype": "int64"}, {"name": "amount", "dtype": "float32"}],
})  # fmt: skip
SPECS: dict[str, Any] = {
    "tags": {"type": "hashed", "bins": 8},
    "tags_vector": {"type": "embedding", "of": "tags", "dimension": 2},
    "tags_columns": {"type": "indicator", "of": "tags"},
    "prices": {"type": "numeric", "log": True},
    "sizes": {"type": "numeric"},
    "age": {"type": "numeric"},
}
PARAMETERS = {"sequence": ["prices", "tags_vector", "tags_columns", "sizes"], "context": ["age"], "units": [4, 3]}
ROWS: list[dict[str, Any]] = [
    {"tags": ["a", "b", "c", "a"], "prices": [1.0, -2.0], "sizes": [1, 0, 2], "age": 0.5, "late": 1, "amount": 2.0},
    {"tags": [], "prices": [0.0, 3.0, 0.0], "sizes": [0, 0, 0], "age": -1.0, "late": 0, "amount": 1.0},
    {"tags": ["c"], "prices": [], "sizes": [3, 1, 0], "age": 2.0, "late": 1, "amount": 0.0},
]  # fmt: skip


@pytest.mark.covers("ex-nets", "est-canned-nn")
@pytest.mark.parametrize(
    ("estimator", "cell", "label"),
    [("rnn_classifier", "lstm", "late"), ("rnn_regressor", "gru", "amount"), ("rnn_classifier", "simple_rnn", "late")],
)
def test_it_answers_as_keras_does_over_each_list_by_itself(estimator: str, cell: str, label: str) -> None:
    spec = parse_definition(
        definition(estimator=estimator, label=label, features=SPECS, parameters=PARAMETERS | {"cell": cell})
    )
    spec.check_schema(LISTS)
    model = build(spec, LISTS, {}, None, seed=1)
    variables = {one.path: one.numpy() for one in model.network.variables}
    kind = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "simple_rnn": keras.layers.SimpleRNN}[cell]
    layers = [kind(4, return_sequences=True), kind(3)]
    for index, layer in enumerate(layers):
        layer.build((None, None, 1 + 2 + 8 + 1 + 1 if index == 0 else 4))
        layer.set_weights(
            [variables[f"rnn_{index}/{cell}_cell/{name}"] for name in ("kernel", "recurrent_kernel", "bias")]
        )
    expected = []
    for row in ROWS:
        steps = np.zeros((max(len(row["tags"]), len(row["prices"]), 3), 13), np.float32)
        steps[: len(row["prices"]), 0] = np.sign(row["prices"]) * np.log1p(np.abs(row["prices"]))
        steps[:3, 1] = row["sizes"]
        for place, word in enumerate(row["tags"]):
            number = int(tf.strings.to_hash_bucket_fast([word], 8)[0])
            steps[place, 2 + number] = 1.0
            steps[place, 10:12] = variables["tags_vector_table/table"][number]
        steps[:, 12] = row["age"]
        state = layers[1](layers[0](steps[np.newaxis])).numpy()[0]
        output = "logits" if label == "late" else "prediction"
        expected.append(float((state @ variables["deep/kernel"] + variables[f"{output}/bias"])[0]))
    found = Scorer(model)(model.transformed(parse([serialized(row) for row in ROWS], LISTS.columns).raw).columns, 3)
    np.testing.assert_allclose(found[label], expected, atol=1e-5)


@pytest.mark.covers("ex-nets")
def test_it_learns_whether_values_rise_or_fall_where_their_sum_says_nothing(tmp_path: Path) -> None:
    described = {
        "features": [{"name": "prices", "dtype": "float32", "shape": [None]}],
        "labels": [{"name": "late", "dtype": "int64"}],
    }
    rising = np.sort(np.random.default_rng(1).uniform(-1, 1, [150, 4])).tolist()
    both = [one for values in rising for one in ((values, 1), (values[::-1], 0))]
    platform = Platform(tmp_path, described, exports=False)
    platform.append([serialized({"prices": values, "late": late}) for values, late in both])
    training = {"batch_size": 16, "passes": 10, "optimizer": {"name": "adam", "learning_rate": 0.03}}
    parameters = {"sequence": ["prices"], "units": [8], "cell": "gru"}
    features = {"prices": {"type": "numeric"}}
    platform.learn(definition(estimator="rnn_classifier", features=features, parameters=parameters, training=training))
    assert platform.registry.versions[0].metrics["candidate"]["auc"] > 0.95, "of the sum it is a half"


@pytest.mark.covers("ex-nets", "ckpt-resume", "pipe-etl")
def test_it_trains_in_buckets_resumes_exports_and_rebuilds_to_the_same_bits(tmp_path: Path) -> None:
    features = {name: FEATURES[name] for name in ("x", "tags", "tags_vector")}
    parameters = {"sequence": ["tags_vector"], "context": ["x"], "units": [4], "cell": "simple_rnn", "dropout": 0.2}
    buckets = {"feature": "tags", "boundaries": [1], "batch_sizes": [4, 8]}
    training = {"batch_size": None, "optimizer": MOMENTUM, "bucket_by_sequence_length": buckets}
    files = definition(estimator="rnn_classifier", features=features, parameters=parameters, training=training)
    version = trained_twice(tmp_path, files).registry.versions[1]
    told = version.environment["training"]["bucketed"]
    assert told["feature"] == "tags"
    assert min(told["batches"], told["steps"], told["padded_steps_saved"]) > 0
    assert version.metrics["parent"], "scored by the first version over the same lists"
