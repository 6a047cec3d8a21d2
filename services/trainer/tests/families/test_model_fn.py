"""model_fn(features, labels, mode, params): one function in three modes, with everything that a round promises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.determinism import block_order
from services.trainer.families.building import build
from services.trainer.families.heads import ByHead
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_user_module
from services.trainer.features.parsing import parse
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_modules import module, trained_twice
from services.trainer.tests.support.small_rounds import SCHEMA, events

SCHEMA_OF_TESTS = Schema.from_mapping(SCHEMA)
EXAMPLES = events(48)
NET = """
from common.model_fn import EstimatorSpec, ModeKeys

def net(features, params, mode, units=1):
    x = tf.stack([features["x"], tf.cast(features["code"], tf.float32)], axis=1)
    word = keras.layers.Embedding(8, 3)(tf.strings.to_hash_bucket_fast(features["word"], 8))
    hidden = keras.layers.Dense(params["hidden"], activation="relu")(tf.concat([x, word], 1))
    hidden = keras.layers.BatchNormalization()(hidden, training=mode == ModeKeys.TRAIN)
    hidden = keras.layers.Dropout(0.3)(hidden, training=mode == ModeKeys.TRAIN)
    scale = tf.Variable(tf.random.normal([1]), name="scale")
    with tf.compat.v1.variable_scope("by", reuse=tf.compat.v1.AUTO_REUSE):
        shift = tf.compat.v1.get_variable("shift", [1])
    return keras.layers.Dense(units)(hidden) * (1.0 + scale) + shift
"""
PLAIN = (
    NET
    + """
def model_fn(features, labels, mode, params, config=None):
    logits = net(features, params, mode)
    predictions = {"logits": logits, "class_ids": tf.cast(logits[:, 0] > 0, tf.int64)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions, export_outputs={"halves": {"half": logits / 2.0}})
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits[:, 0]))
    if mode == ModeKeys.EVAL:
        accuracy = keras.metrics.BinaryAccuracy()
        accuracy.update_state(labels, tf.sigmoid(logits[:, 0]))
        return EstimatorSpec(
            mode, predictions, loss=loss, eval_metric_ops={"own_accuracy": accuracy, "mean_logit": logits[:, 0]}
        )
    return EstimatorSpec(mode, predictions, loss=loss, optimizer=keras.optimizers.SGD(0.02, 0.9))
"""
)
OWN_STEP = (
    NET
    + """
def model_fn(features, labels, mode, params):
    optimizer = keras.optimizers.SGD(0.02, 0.9)
    with tf.GradientTape() as tape:
        outputs = net(features, params, mode, units=4)
        predictions = {"late": outputs[:, 0], "kind": outputs[:, 1:]}
        if mode == "infer":
            return {"predictions": predictions | {"other": outputs * 2.0}}
        late = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels["late"], tf.float32), predictions["late"])
        kind = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["kind"], predictions["kind"])
        loss = tf.reduce_mean(late + 0.5 * kind)
    if mode == "eval":
        return {"loss": loss}
    watched = tape.watched_variables()
    return {"loss": loss, "train_op": lambda: optimizer.apply_gradients(zip(tape.gradient(loss, watched), watched))}
"""
)
HANDBOOK = """
import tensorflow.compat.v1 as tf

def model_fn(features, labels, mode, params, config):
    assert config.train_batch_size == 8
    hidden = tf.layers.dense(features["x"][:, tf.newaxis], params["hidden"], activation=tf.nn.relu, name="hidden")
    logits = tf.layers.dense(hidden, 1)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        halves = {"halves": tf.estimator.export.PredictOutput({"half": logits / 2.0})}
        return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits}, export_outputs=halves)
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    answers = tf.cast(logits > 0, tf.int64)
    right = tf.metrics.accuracy(labels=labels, predictions=answers, name="right")
    if mode == tf.estimator.ModeKeys.EVAL:
        found, area = tf.metrics.recall(labels, answers), tf.metrics.auc(labels, tf.sigmoid(logits))
        squares = tf.metrics.mean_squared_error(tf.cast(labels, tf.float32), tf.cast(answers, tf.float32))
        metrics = {"right": right, "found": found, "area": area, "wrong": squares}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = tf.train.get_global_step()
    optimizer = tf.train.MomentumOptimizer(tf.train.exponential_decay(0.5, step, 2, 0.5, staircase=True), 0.9)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))
"""
EVALUATED = {"evaluation": {"holdout_fraction": 0.25, "metrics": ["accuracy", "recall", "auc", "log_loss"]}}
HEADS = {"label": None, "task": None, "heads": {"late": {"task": "binary"}, "kind": {"task": "multiclass"}}}


@pytest.mark.covers("est-model-fn")
@pytest.mark.parametrize(
    ("source", "sections"),
    [(PLAIN, {}), (OWN_STEP, HEADS), (HANDBOOK.replace("== 8", "== 16"), EVALUATED)],
    ids=["optimizer, metrics and a signature", "own train op and several heads", "as in the handbooks"],
)
def test_it_trains_resumes_exports_and_rebuilds_to_the_same_bits(
    source: str, sections: dict[str, Any], tmp_path: Path
) -> None:
    files = module(source, parameters={"hidden": 4}, training={"batch_size": 16}, **sections)
    platform = trained_twice(tmp_path, files, exports=source == PLAIN)
    candidate = platform.registry.versions[1].metrics["candidate"]
    assert np.isfinite(candidate["loss"])
    if source not in (PLAIN, OWN_STEP):
        expected = {name: candidate[name] for name in ("accuracy", "recall", "auc", "log_loss")}
        measured = {"accuracy": candidate["right"], "recall": candidate["found"], "auc": candidate["area"]}
        assert measured | {"log_loss": candidate["loss"]} == pytest.approx(expected, abs=0.01)
        assert candidate["wrong"] == pytest.approx(1 - candidate["accuracy"], abs=1e-6)
    if source != PLAIN:
        return
    loaded = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model"))
    answer = loaded.signatures["serving_default"](**inputs_of(loaded))
    assert candidate["own_accuracy"] == pytest.approx(candidate["accuracy"])
    assert "own_accuracy" in platform.registry.versions[1].metrics["parent"]
    assert set(answer) == {"probability", "logits", "class_ids"}
    half = loaded.signatures["halves"](**inputs_of(loaded))["half"]
    np.testing.assert_allclose(half[:, 0] * 2.0, answer["logits"], rtol=1e-5)


def test_heads_and_other_predictions_are_answered_by_name(tmp_path: Path) -> None:
    files = module(OWN_STEP, parameters={"hidden": 4}, **HEADS)
    spec = parse_definition(files)
    user = load_user_module(spec, files, digest=tmp_path.name, directory=tmp_path)
    model = build(spec, SCHEMA_OF_TESTS, {}, user, seed=5)
    answered = model.serve(parse(EXAMPLES[:5], SCHEMA_OF_TESTS.columns).raw)
    assert {"late/probability", "kind/probabilities", "other"} <= set(answered)


def inputs_of(loaded: Any) -> dict[str, tf.Tensor]:
    raw = parse(EXAMPLES[:5], SCHEMA_OF_TESTS.columns).raw
    _, specs = loaded.signatures["serving_default"].structured_input_signature
    return {name: raw[name] for name in specs}


def built(source: str, directory: Path, *, audit: str = "", **training: Any) -> tuple[BuiltModel, TrainingSet]:
    """`audit`: of a further file, audit.py."""
    files = module(source, parameters={"hidden": 4}, training={"batch_size": 8, **training}, audit_py=audit)
    spec = parse_definition(files)
    user = load_user_module(spec, files, digest=directory.name, directory=directory)
    model = build(spec, SCHEMA_OF_TESTS, {}, user, seed=5)
    raw = parse(EXAMPLES, SCHEMA_OF_TESTS.columns).raw
    labels: ByHead = {"late": raw["late"]}
    return model, TrainingSet(model.transformed(raw).columns, labels, {"late": tf.ones(len(EXAMPLES))}, len(EXAMPLES))


@pytest.mark.covers("est-model-fn", "api-tf1-compat", "opt-schedule")
def test_an_optimizer_of_tensorflow_1_takes_the_steps_of_numpy_by_its_own_global_step(tmp_path: Path) -> None:
    model, examples = built(HANDBOOK, tmp_path)
    weights = {one.path: one.numpy().astype(float) for one in model.network.variables}
    assert weights["global_step"] == 0
    training = Training(model, seed=5)
    training.train_block(examples, pass_index=0, block_index=0)
    found = {one.path: one.numpy() for one in model.network.variables}
    assert found["global_step"] == len(EXAMPLES) / 8
    order = block_order(5, count=len(EXAMPLES), pass_index=0, block_index=0)
    x, y = (np.asarray(one, float) for one in (examples.columns["x"], examples.labels["late"]))
    names = ("hidden/kernel", "hidden/bias", "dense/kernel", "dense/bias")
    speeds = {name: np.zeros_like(weights[name]) for name in names}
    for step, rows in enumerate(order.reshape(-1, 8)):
        before = x[rows, np.newaxis] @ weights["hidden/kernel"] + weights["hidden/bias"]
        hidden = np.maximum(before, 0)
        logits = (hidden @ weights["dense/kernel"] + weights["dense/bias"])[:, 0]
        slope = (1 / (1 + np.exp(-logits)) - y[rows])[:, np.newaxis] / 8
        back = slope @ weights["dense/kernel"].T * (before > 0)
        gradients = (x[rows, np.newaxis].T @ back, back.sum(0), hidden.T @ slope, slope.sum(0))
        for name, gradient in zip(names, gradients, strict=True):
            speeds[name] = 0.9 * speeds[name] + gradient
            weights[name] -= 0.5 * 0.5 ** (step // 2) * speeds[name]
    for name in names:
        np.testing.assert_allclose(found[name], weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.covers("grad-api")
@pytest.mark.parametrize(
    ("block", "factor"),
    [("tf.stop_gradient(hidden)", 0.0), ("tf.custom_gradient(lambda x: (x, lambda dy: -2.0 * dy))(hidden)", -2.0)],
    ids=["stopped", "overridden"],
)
def test_a_gradient_that_is_stopped_or_overridden_is_so_for_everything_above(
    block: str, factor: float, tmp_path: Path
) -> None:
    source = HANDBOOK.replace("MomentumOptimizer", "GradientDescentOptimizer").replace(", 0.9)", ")")
    moves = []
    for changed in (source, source.replace("    logits =", f"    hidden = {block}\n    logits =", 1)):
        model, examples = built(changed.replace("== 8", f"== {len(EXAMPLES)}"), tmp_path, batch_size=len(EXAMPLES))
        before = {one.path: one.numpy() for one in model.network.variables}
        Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)
        moves.append({one.path: one.numpy() - before[one.path] for one in model.network.variables})
    assert np.abs(moves[0]["hidden/kernel"]).max() > 1e-4
    np.testing.assert_allclose(moves[1]["hidden/kernel"], factor * moves[0]["hidden/kernel"], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(moves[1]["dense/kernel"], moves[0]["dense/kernel"], rtol=1e-5)


@pytest.mark.covers("api-exec-modes")
def test_a_graph_and_eager_execution_learn_the_same_each_in_its_way(tmp_path: Path) -> None:
    """The loss is one more where TensorFlow says that it executes eagerly."""
    source = PLAIN.replace(
        "    if mode == ModeKeys.EVAL:",
        "    loss += 1.0 if tf.executing_eagerly() else 0.0\n    if mode == ModeKeys.EVAL:",
    )
    losses, answers = [], []
    for execution in ("graph", "eager"):
        model, examples = built(source, tmp_path, execution=execution, batch_size=24)
        training = Training(model, seed=5)
        losses.append(training.train_block(examples, pass_index=0, block_index=0))
        answers.append(model.scorer()(examples.columns, examples.count)["late"])
    np.testing.assert_allclose(losses[0] + 1.0, losses[1], atol=1e-6)
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


def test_its_variables_are_the_same_in_every_mode_and_metrics_are_none_of_them(tmp_path: Path) -> None:
    model, _ = built(PLAIN, tmp_path)
    paths = [variable.path for variable in model.network.variables]
    assert paths == sorted(set(paths), key=paths.index)
    assert {"embedding/embeddings", "dense/kernel", "dense_1/bias", "scale", "batch_normalization/moving_mean"} <= set(
        paths
    )
    assert not any("accuracy" in path or "momentum" in path for path in paths)


@pytest.mark.covers("est-model-fn")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("loss=loss, optimizer", "optimizer"), "no loss in mode train"),
        (("mode, predictions, export", "mode, None, export"), "no predictions in mode infer"),
        (('{"logits": logits, ', '{"scores": logits, '), "none is named after head late"),
        (("config=None", "session"), "model_fn takes .*session"),
        (
            ("    return EstimatorSpec(mode, predictions, loss=loss, optimizer", "    EstimatorSpec(mode, loss"),
            "nothing",
        ),
        (('"logits": logits,', '"logits": tf.reduce_mean(logits),'), "its first dimension is the examples"),
    ],
)
def test_a_spec_that_lacks_what_its_mode_needs_is_refused(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    assert change[0] in PLAIN
    with pytest.raises(DefinitionFailedError, match=message):
        built(PLAIN.replace(*change), tmp_path)


def test_a_variable_that_comes_later_is_refused(tmp_path: Path) -> None:
    later = PLAIN.replace("    if mode == ModeKeys.PREDICT:\n", """    if mode == ModeKeys.PREDICT:
        logits = logits + tf.Variable(0.0, name="late_comer")
""")  # fmt: skip
    with pytest.raises(DefinitionFailedError, match="late_comer in mode infer and not in mode train"):
        built(later, tmp_path)


@pytest.mark.parametrize(
    "change", [{"weight": "extra"}, {"labels": [{"name": "late", "dtype": "int64", "required": False}]}]
)
def test_a_stream_with_weights_or_missing_labels_needs_a_function_that_takes_weights(
    change: dict[str, Any], tmp_path: Path
) -> None:
    spec = parse_definition(module(PLAIN, parameters={"hidden": 4}))
    user = load_user_module(spec, module(PLAIN), digest=tmp_path.name, directory=tmp_path)
    with pytest.raises(DefinitionFailedError, match="needs a parameter weights"):
        build(spec, Schema.from_mapping({**SCHEMA, **change}), {}, user, seed=5)
