"""Modules that learn without a taught head: from features alone, by what a layer adds, by a `train_step`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.port import TrainingSet
from services.trainer.families.user_module import load_module
from services.trainer.learn import adapters
from services.trainer.learn.training import Training
from services.trainer.protocol.messages import Failed
from services.trainer.tests.families.test_modules import SMALL, module, trained_twice
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, events

AUTOENCODER = """
def build_model(schema, parameters):
    pair = keras.Input((2,), name="pair")
    code = keras.layers.Dense(2, activity_regularizer=keras.regularizers.L2(1e-4), name="code")(pair)
    return keras.Model(pair, {"pair": keras.layers.Dense(2, name="pair_again")(code), "code": code})
"""
GAN = """
class Gan(keras.Model):
    \"\"\"Draws an x from a pair, which is noise; the judge tells drawn ones from those of the stream.\"\"\"
    def __init__(self):
        super().__init__()
        self.artist = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)], name="artist")
        self.judge = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)], name="judge")
        self.turn = self.add_weight(shape=(), dtype="int64", trainable=False, name="turn")
        self.first = keras.optimizers.SGD(0.01, 0.9, name="of_judge")
        self.second = keras.optimizers.SGD(0.01, 0.9, name="of_artist")

    def call(self, inputs, training=False):
        drawn = self.artist(inputs["pair"])
        return {"x": drawn, "real": self.judge(drawn)}

    def train_step(self, data):
        inputs, labels, weights = data
        loss = tf.cond(self.turn % 2 == 0, lambda: self.judged(inputs, labels), lambda: self.drew(inputs))
        self.turn.assign_add(1)
        return {"loss": loss}

    def judged(self, inputs, labels):
        real = tf.reshape(labels["x"], [-1, 1])
        with tf.GradientTape() as tape:
            found = self.judge(tf.concat([real, self.artist(inputs["pair"])], 0))
            loss = entropy(tf.concat([tf.ones_like(real), tf.zeros_like(real)], 0), found)
        weights = self.judge.trainable_variables
        self.first.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    def drew(self, inputs):
        with tf.GradientTape() as tape:
            found = self.judge(self.artist(inputs["pair"]))
            loss = entropy(tf.ones_like(found), found)
        weights = self.artist.trainable_variables
        self.second.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

def entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

def metrics(labels, outputs):
    return {"mean_apart": float(abs(labels.mean() - outputs.mean()))}

inputs = ["pair"]

def build_model(schema, parameters):
    return Gan()
"""


@pytest.mark.covers("ex-nets", "api-keras")
@pytest.mark.parametrize(
    ("source", "head", "rule", "outputs"),
    [
        (AUTOENCODER, {"label": "pair", "task": "vector_regression"}, {"metric": "rmse"}, {"prediction", "code"}),
        (GAN, {"label": "x", "task": "regression"}, {"metric": "mean_apart", "direction": "lower"},
         {"prediction", "real"}),
    ],
    ids=["autoencoder", "GAN of two optimizers, alternating"],
)  # fmt: skip
def test_a_module_learns_from_features_alone(
    tmp_path: Path, source: str, head: dict[str, Any], rule: dict[str, Any], outputs: set[str]
) -> None:
    unlabelled = {**SCHEMA, "labels": []}
    rule = {**rule, "max_regression": 100.0}
    platform = trained_twice(tmp_path, module(source, **head, gate=rule), schema=unlabelled)
    version = platform.registry.versions[1]
    assert rule["metric"] in version.metrics["candidate"].keys() & version.metrics["parent"].keys()
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model"))
    assert set(saved.signatures["serving_examples"](tf.constant(events(4)))) == outputs


def built_on_pairs(
    directory: Path, source: str, head: dict[str, Any], *, weight: str | None = None, **optimizer: Any
) -> tuple[Training, TrainingSet]:
    """64 examples of `pair` and `x`, learned in one batch."""
    files = module(source, **head, training={"batch_size": 64, **optimizer})
    schema = Schema.from_mapping({**SCHEMA, "labels": [], "weight": weight})
    own = load_module(files, "net.py", digest=directory.name, directory=directory)
    model = adapters.build(parse_definition(files), schema, {}, own, seed=1)
    training = adapters.trainable_of(model, seed=1)
    assert isinstance(training, Training)
    random = np.random.default_rng(1)
    values = {"pair": random.normal(size=(64, 2)), "x": random.normal(size=64)}
    columns = {name: tf.constant(value, tf.float32) for name, value in values.items()}
    name = head["label"]
    return training, TrainingSet({"pair": columns["pair"]}, {name: columns[name]}, {name: tf.ones(64)}, 64)


UNTAUGHT = """
class Again(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.code, self.back = keras.layers.Dense(2), keras.layers.Dense(2)

    def call(self, pair):
        again = self.back(self.code(pair))
        self.add_loss(tf.reduce_mean(tf.square(pair - again)))
        return again

def build_model(schema, parameters):
    pair = keras.Input((2,), name="pair")
    return keras.Model(pair, Again()(pair))
"""


@pytest.mark.covers("ex-nets", "loss-custom")
def test_a_module_learns_by_what_its_layers_add_alone_and_its_head_is_only_measured(tmp_path: Path) -> None:
    head = {"label": "pair", "task": "vector_regression", "weight": 0}
    optimizer = {"name": "adam", "learning_rate": 0.05}
    training, block = built_on_pairs(tmp_path, UNTAUGHT, head, optimizer=optimizer)
    losses = [training.train_block(block, pass_index=index, block_index=0).mean() for index in range(150)]
    np.testing.assert_array_equal(training.added, losses[-1:])
    again = training.model.scorer()(block.columns, block.count)["pair"]
    assert np.sqrt(np.mean((again - block.labels["pair"].numpy()) ** 2)) < 0.1


@pytest.mark.covers("ex-nets")
def test_a_module_of_untaught_heads_that_adds_no_loss_is_refused(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(20))
    outcome = platform.train(platform.lease(module(SMALL + "\ndef build_model(s, p):\n    return keras.Model(*small())",
                                                   weight=0)))  # fmt: skip
    assert isinstance(outcome, Failed), outcome
    assert "every head has weight 0 and no layer adds a loss" in outcome.reason


@pytest.mark.covers("ex-nets")
def test_a_step_of_a_gan_leaves_the_other_half_untouched(tmp_path: Path) -> None:
    training, block = built_on_pairs(tmp_path, GAN, {"label": "x", "task": "regression"})
    for index, (moves, stays) in enumerate([("judge", "artist"), ("artist", "judge")]):
        before = training.captured()
        training.train_block(block, pass_index=index, block_index=0)
        after = training.captured()
        changed = {path for path in before if not np.array_equal(before[path], after[path])}
        assert any(f"/{moves}/" in path for path in changed)
        assert not any(f"/{stays}/" in path or f"of_{stays}" in path for path in changed)
    assert training.curve(np.ones(2, np.float32))[0].tolist() == [0, 1], "each batch has a place in the curve"


OWN_STEP = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.last, self.optimizer_of_last, self.traced = keras.layers.Dense(1), keras.optimizers.SGD(0.1), 0

    def call(self, inputs):
        return self.last(inputs["pair"])

    def train_step(self, data):
        TAKEN = data
        self.given, self.traced = len(data), self.traced + 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs)[:, 0] - tf.reshape(labels, [-1])) ** 2)
        weights = self.last.trainable_variables
        self.optimizer_of_last.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

inputs = ["pair"]

def build_model(schema, parameters):
    return Own()
"""


@pytest.mark.covers("grad-api")
@pytest.mark.parametrize(
    ("taken", "weight", "given"),
    [("inputs, labels", None, 2), ("inputs, labels, weights", "x", 3), ("inputs, labels, weights", None, 3)],
    ids=["as fit gives it", "with weights", "a module that always takes weights"],
)
def test_a_train_step_gets_what_fit_would_give_it(tmp_path: Path, taken: str, weight: str | None, given: int) -> None:
    """And is traced to find its variables, and once more."""
    source = OWN_STEP.replace("TAKEN", taken)
    training, block = built_on_pairs(tmp_path, source, {"label": "x", "task": "regression"}, weight=weight)
    for index in range(2):
        training.train_block(block, pass_index=index, block_index=0)
    network = training.model.network
    assert (network.given, network.traced <= 2) == (given, True)
