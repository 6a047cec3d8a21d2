"""A round that begins with what the process has kept ends, to the bit, as one for which everything is built anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.keras_names import Named
from services.trainer.families.model import BuiltModel
from services.trainer.protocol.messages import Done
from services.trainer.rounds.inputs import version_of
from services.trainer.rounds.kept import Kept
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    MOMENTUM,
    WIDE_AND_DEEP,
    Platform,
    definition,
    event,
    events,
    serialized,
)

DROPOUT = """
import keras

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, activation="relu")
        self.drop = keras.layers.Dropout(0.3)
        self.norm = keras.layers.BatchNormalization()
        self.out = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs, training=False):
        x = keras.ops.reshape(inputs["x"], (-1, 1))
        return self.out(self.drop(self.norm(self.hidden(x)), training=training))

    def train_step(self, data):
        x, y = data
        import tensorflow as tf
        with tf.GradientTape() as tape:
            y_hat = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_hat)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.seen.update_state(loss)
        return {"loss": loss}

inputs = ["x"]

def build_model(schema, parameters):
    model = Net()
    model.compile(optimizer=keras.optimizers.SGD(0.01, 0.9), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model
"""
MODEL_FN = """
import keras
from types import SimpleNamespace

def model_fn(features, labels, mode, params):
    x = keras.layers.Dense(3, activation="relu", name="hidden")(keras.ops.reshape(features["x"], (-1, 1)))
    logits = keras.layers.Dense(1, name="out")(x)
    if mode == "infer":
        return SimpleNamespace(predictions=logits)
    y = keras.ops.cast(keras.ops.reshape(labels, (-1, 1)), "float32")
    loss = keras.ops.mean(keras.losses.binary_crossentropy(y, logits, from_logits=True))
    return SimpleNamespace(loss=loss, predictions=logits)
"""
OF_X: Mapping[str, Any] = {
    "estimator": None,
    "parameters": None,
    "features": None,
    "task": "binary",
    "module": "model.py",
}
TRAINED = {"batch_size": 8, "passes": 2}
SCHEDULED = {**MOMENTUM, "learning_rate": {"initial": 0.01, "schedule": "cosine", "decay_steps": 50}}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "wide and deep: averaged, calibrated, frozen, a schedule": {
        "features": WIDE_AND_DEEP,
        "calibration": "temperature",
        "training": {**TRAINED, "optimizer": {**SCHEDULED, "use_ema": True}, "frozen": ["hidden_0/bias"]},
    },
    "module with a train_step": {**OF_X, "training": TRAINED, "model_py": DROPOUT},
    "model_fn": {**OF_X, "training": {**TRAINED, "optimizer": MOMENTUM}, "model_py": MODEL_FN},
}


@dataclass(frozen=True)
class Chain:
    """Weights and metrics by version, and whether each began with what was kept."""

    digests: list[str]
    metrics: list[Any]
    warm: list[bool]


def chain_of(directory: Path, files: Mapping[str, bytes], *, kept: Kept | None, parents: list[int]) -> Chain:
    """A round for each of the parents, over events that are new for its parent; those of estimators with `kept`
    export, those without have no graph."""
    platform = Platform(directory, exports=kept is not None and len(files) == 1)
    for number, parent in enumerate(parents):
        platform.append(events(60, seed=number + 1))
        done = platform.train(platform.lease(files, parent_version=parent, has_window=True), kept=kept)
        assert isinstance(done, Done), done
    versions = platform.registry.versions
    return Chain(
        [one.weights_digest for one in versions],
        [(one.metrics, one.evaluation, one.step) for one in versions],
        [bool(one.environment.get("process", {}).get("warm")) for one in versions],
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chain_with_a_rejection_and_a_rollback_has_the_bits_of_one_in_new_processes(
    tmp_path: Path, family: str
) -> None:
    files = definition(**FAMILIES[family])
    # The second is nobody's parent: production goes back to the first.
    parents = [0, 1] if "module" in FAMILIES[family] else [0, 1, 1]
    fresh = chain_of(tmp_path / "fresh", files, kept=None, parents=parents)
    warm = chain_of(tmp_path / "warm", files, kept=Kept(), parents=parents)
    assert warm.digests == fresh.digests
    assert warm.metrics == fresh.metrics
    assert warm.warm == [False, *[True] * len(parents[1:])]


COUNTS = """
import keras

calls = 0

def on_block(run, losses):
    global calls
    calls += 1
    if calls > 2:
        run.network.layers[-1].bias.assign_add([0.5])

def build_model(schema, parameters):
    x = keras.Input((), name="x")
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Reshape((1,))(x)))
"""
DRAWS = """
import keras
import numpy

def on_round_end(run):
    if float(run.optimizer.iterations) > AFTER:
        run.network.layers[-1].bias.assign_add(numpy.random.uniform(size=1))

def build_model(schema, parameters):
    x = keras.Input((), name="x")
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Reshape((1,))(x)))
"""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (COUNTS, "its module keeps values from round to round: model.calls was 0 and is 2"),
        (DRAWS.replace("AFTER", "0"), "its module draws from numpy's or Python's generator between steps"),
    ],
)
def test_a_module_whose_python_remembers_rounds_is_found_out_and_its_process_takes_no_other(
    platform: Platform, code: str, reason: str
) -> None:
    platform.append(events(60))
    kept = Kept()
    platform.train(platform.lease(definition(**OF_X, model_py=code)), kept=kept)
    assert kept.leaves_because == reason
    assert platform.registry.versions[0].environment["process"]["leaves"] == reason


def test_a_module_that_is_found_out_in_a_warm_round_has_it_taken_again_with_all_built_anew(tmp_path: Path) -> None:
    files = definition(**OF_X, model_py=DRAWS.replace("AFTER", "8"))
    fresh = chain_of(tmp_path / "fresh", files, kept=None, parents=[0, 1])
    kept = Kept()
    warm = chain_of(tmp_path / "warm", files, kept=kept, parents=[0, 1])
    assert warm.digests == fresh.digests
    assert not any(warm.warm)
    assert "generator between steps" in kept.leaves_because


def test_a_round_that_learns_other_words_has_the_bits_of_one_in_a_new_process(tmp_path: Path) -> None:
    """Rows of a table then mean something else; those that mean nothing have initial values that are not 0."""
    words = {"type": "vocabulary", "max_words": 20, "oov": "bucket", "update": True}
    vector = {"type": "embedding", "of": "word", "dimension": 2}
    files = definition(features={"x": FEATURES["x"], "word": words, "word_vector": vector}, training=TRAINED)
    digests, told = list[list[str]](), list[Any]()
    for name, kept in (("fresh", None), ("warm", Kept())):
        platform = Platform(tmp_path / name, exports=False)
        for number, word in enumerate(("red", "green", "green")):
            random = np.random.default_rng(number)
            platform.append([serialized({**event(random), "word": word}) for _ in range(40)])
            platform.train(platform.lease(files, parent_version=number), kept=kept)
        digests.append([one.weights_digest for one in platform.registry.versions])
        told = [one.environment.get("process", {}) for one in platform.registry.versions]
    assert digests[0] == digests[1]
    assert [one["warm"] for one in told] == [False, True, True]
    assert ["rows mean something else" in one.get("renewed", "") for one in told] == [False, True, False]


def test_a_parent_draws_no_values_for_tables_that_it_gets_from_its_checkpoint(tmp_path: Path) -> None:
    vector = {"type": "embedding", "of": "code", "dimension": 2}
    files = definition(features={"code": FEATURES["code"], "code_vector": vector}, training=TRAINED)
    platform = Platform(tmp_path, exports=False).append(events(60))
    model = platform.learn(files).model
    assignment = platform.assignment(platform.lease(files, parent_version=1))
    parent = version_of(platform.registry, model, 1, assignment, tmp_path)[0]
    built = parent.built()
    assert isinstance(built, BuiltModel)
    parameters = built.definition.estimator_parameters
    assert parameters is not None
    assert parameters.embedding_initializer == Named("zeros")
    [table] = [variable for variable in built.network.variables if variable.path.endswith("/table")]
    assert np.array_equal(table.numpy(), parent.checkpoint.arrays[f"model/{table.path}"])
