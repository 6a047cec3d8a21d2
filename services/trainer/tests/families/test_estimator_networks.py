"""The layers and losses of the estimators against numpy and Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.families.estimators.layers import FactorTerms, rows_of
from services.trainer.families.model import Scorer
from services.trainer.learn import checkpoint
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_estimators import EXAMPLES, built
from services.trainer.tests.support.small_rounds import FEATURES

DENSE = {name: FEATURES[name] for name in ("x", "word", "word_vector")}


@pytest.mark.covers("feat-shared-embedding")
def test_features_that_share_a_table_have_one_variable_and_both_move_it() -> None:
    features = {
        "word": {"type": "hashed", "bins": 40},
        "tags": {"type": "hashed", "bins": 40},
        "word_vector": {"type": "embedding", "of": "word", "dimension": 2, "table": "items"},
        "tags_vector": {"type": "embedding", "of": "tags", "dimension": 2, "table": "items"},
    }
    case = {"features": features, "parameters": {"hidden_units": [4], "activation": "tanh"}}
    moved = {}
    for field in ("tags", "word"):
        model, examples, _ = built(case | {"estimator": "dnn_classifier", "training": {"batch_size": len(EXAMPLES)}})
        tables = [variable for variable in model.network.trainable_variables if "items" in variable.path]
        assert [tuple(table.shape) for table in tables] == [(40, 2)]
        kernel = model.network.get_layer("hidden_0").kernel
        joined = keras.Model(model.network.inputs, model.network.get_layer("hidden_0").input)
        equal = {name: tf.zeros_like(ids) for name, ids in examples.columns.items()}
        one, other = np.split(np.asarray(joined(model.wiring.arranged(equal))), 2, axis=1)
        np.testing.assert_array_equal(one, other)
        only = np.repeat([[field == "tags"], [field == "word"]], 2, axis=0)  # the hidden layer sees this vector alone
        kernel.assign(kernel * only)
        before = tables[0].numpy().copy()
        Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)
        ids = np.unique(examples.columns[field])
        moved[field] = set(np.flatnonzero((tables[0].numpy() != before).any(axis=1)).tolist())
        assert moved[field] == set(ids[ids >= 0].tolist())
    assert moved["tags"] != moved["word"]


@pytest.mark.covers("feat-input-spec")
def test_the_order_in_which_features_are_listed_does_not_matter() -> None:
    listed = DENSE | {name: FEATURES[name] for name in ("pair", "code", "tags", "code_columns")}
    (one, examples, _), (two, same_examples, _) = (
        built({"features": features}) for features in (listed, dict(reversed(listed.items())))
    )
    Training(one, seed=5).train_block(examples, pass_index=0, block_index=0)
    variables, others = (checkpoint.variables_by_path(model=model.network.variables) for model in (one, two))
    assert {"model/wide/word_weights", "model/word_vector_table/table", "model/hidden_0/kernel"} <= variables.keys()
    checkpoint.restore(others, checkpoint.capture(variables))
    outputs = [
        model.outputs(given.columns, training=False)["late"].numpy()
        for model, given in ((one, examples), (two, same_examples))
    ]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.covers("est-canned-nn", "norm-batch")
def test_batch_norm_normalises_what_a_hidden_layer_gives_by_the_batch_and_in_answers_by_what_it_has_learned() -> None:
    case = {"estimator": "dnn_regressor", "label": "amount", "features": DENSE}
    model, examples, _ = built(case | {"parameters": {"hidden_units": [4], "batch_norm": True}})
    training = Training(model, seed=1)
    training.train_block(examples, pass_index=0, block_index=0)
    layers = {layer.name: layer for layer in model.network.layers}
    behind = keras.Model(model.network.inputs, [layers["hidden_0"].output, layers["batch_norm_0"].output])
    inputs = model.wiring.arranged(examples.columns)
    hidden, normal = (np.asarray(one) for one in behind(inputs, training=False))
    gamma, beta, mean, variance = (np.asarray(one) for one in layers["batch_norm_0"].get_weights())
    assert np.abs(mean).max() > 0
    np.testing.assert_allclose(normal, gamma * (hidden - mean) / np.sqrt(variance + 1e-3) + beta, rtol=1e-4, atol=1e-5)
    hidden, normal = (np.asarray(one) for one in behind(inputs, training=True))
    expected = gamma * (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-3) + beta
    np.testing.assert_allclose(normal, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.covers("loss-reduction-reg")
def test_l1_and_l2_are_added_to_the_loss() -> None:
    case = {"estimator": "dnn_regressor", "label": "amount", "features": DENSE}
    plain, examples, _ = built(case | {"parameters": {"hidden_units": [4]}})
    both, _, _ = built(case | {"parameters": {"hidden_units": [4], "l1": 0.01, "l2": 0.1}})
    added = [
        0.01 * np.abs(variable).sum() + 0.1 * np.square(variable).sum()
        for variable in (
            variable.numpy() for variable in both.network.trainable_variables if "bias" not in variable.path
        )
    ]
    losses = [float(model.loss(examples.columns, examples.labels, examples.weights)) for model in (plain, both)]
    np.testing.assert_allclose(losses[1] - losses[0], sum(added), rtol=1e-4)
    apart = both.loss_and_added(examples.columns, examples.labels, examples.weights)
    np.testing.assert_allclose(apart, [losses[1], sum(added)], rtol=1e-5)


def test_the_terms_of_a_factorization_machine_are_the_sum_over_pairs() -> None:
    layer = FactorTerms(
        {"word": 4}, {"x": 2}, dimension=3, initializer=keras.initializers.RandomNormal(seed=1), regularizer=None,
        name="factors",
    )  # fmt: skip
    word, x = np.array([[2, 0], [1, -1]], np.int32), np.array([[0.5, -1.0], [2.0, 3.0]], np.float32)
    tables = {variable.path.split("/")[-1]: variable.numpy() for variable in layer.variables}
    expected = []
    for ids, numbers in zip(word, x, strict=True):
        values = [tables["word_factors"][one] for one in ids if one >= 0]
        values += [number * row for number, row in zip(numbers, tables["x_factors"], strict=True)]
        expected.append(sum(np.dot(a, b) for index, a in enumerate(values) for b in values[index + 1 :]))
    found = layer({"word": tf.constant(word), "x": tf.constant(x)})
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4, atol=1e-7)


def test_rows_of_a_variable_are_gathered_where_they_lie() -> None:
    """A read of the whole variable copies it, once an optimizer has updated rows."""
    table = keras.Variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    rows = tf.function(lambda ids: rows_of(table, ids)).get_concrete_function(tf.TensorSpec([1, 3], tf.int64))
    kinds = {operation.type for operation in rows.graph.get_operations()}
    assert "ResourceGather" in kinds
    assert "ReadVariableOp" not in kinds
    np.testing.assert_array_equal(rows(tf.constant([[2, -1, 0]], tf.int64)), [[[4.0, 5.0], [0.0, 0.0], [0.0, 1.0]]])


def test_a_trained_table_is_scored_without_a_copy_of_it() -> None:
    """Its value is held by the checkpoint as well."""
    features = {
        "word": {"type": "hashed", "bins": 100_000},
        "word_vector": {"type": "embedding", "of": "word", "dimension": 8},
    }
    model, examples, _ = built({"features": features, "estimator": "dnn_classifier", "training": {"batch_size": 4}})
    training = Training(model, seed=5)
    training.train_block(examples, pass_index=0, block_index=0)
    [path] = [path for path in training.paths if path.endswith("/table")]
    captured = training.captured()[path]
    Scorer(model)(examples.columns, examples.count)
    assert np.shares_memory(training.captured()[path], captured)
