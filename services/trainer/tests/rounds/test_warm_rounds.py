"""A round that begins with what the process has kept ends, to the bit, as one for which everything is built anew."""

from collections.abc import Callable, Mapping
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


def assert_as_fresh(
    platform: Platform,
    files: Mapping[str, bytes],
    kept: Kept,
    parents: list[int],
    appended: Callable[[int], list[bytes]],
) -> list[Any]:
    """Trains a first version; then for each parent, over further events, a version by what is kept and its twin, for
    which everything is built anew and which is not exported. What the process told of all versions but the twins."""
    versions = platform.registry.versions
    exports = platform.exports
    platform.append(appended(0))
    platform.train(platform.lease(files), kept=kept)
    told = [versions[0].environment["process"]]
    for number, parent in enumerate(parents, 1):
        platform.append(appended(number))
        lease = platform.lease(files, parent_version=parent, has_window=True)
        for name, process in (("warm", kept), ("fresh", None)):
            platform.exports = exports and process is not None
            done = platform.train(lease, kept=process, work_dir=f"{name}-{number}")
            assert isinstance(done, Done), done
        warm, fresh = versions[-2:]
        assert warm.weights_digest == fresh.weights_digest
        assert (warm.metrics, warm.evaluation, warm.step) == (fresh.metrics, fresh.evaluation, fresh.step)
        told.append(warm.environment["process"])
    return told


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chain_with_a_rejection_and_a_rollback_has_the_bits_of_one_in_new_processes(
    tmp_path: Path, family: str
) -> None:
    files = definition(**FAMILIES[family])
    # Of an estimator, the second is nobody's parent: production goes back to the first.
    parents = [1] if "module" in FAMILIES[family] else [1, 1]
    platform = Platform(tmp_path, exports=len(files) == 1)
    told = assert_as_fresh(platform, files, Kept(), parents, lambda number: events(60, seed=number + 1))
    assert [one["warm"] for one in told] == [False, *[True] * len(parents)]


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
    files, kept = definition(**OF_X, model_py=DRAWS.replace("AFTER", "8")), Kept()
    platform = Platform(tmp_path, exports=False)
    told = assert_as_fresh(platform, files, kept, [1], lambda number: events(60, seed=number + 1))
    assert not any(one["warm"] for one in told)
    assert "generator between steps" in kept.leaves_because


def test_a_round_that_learns_other_words_has_the_bits_of_one_in_a_new_process(tmp_path: Path) -> None:
    """Rows of a table then mean something else; those that mean nothing have initial values that are not 0."""
    words = {"type": "vocabulary", "max_words": 20, "oov": "bucket", "update": True}
    vector = {"type": "embedding", "of": "word", "dimension": 2}
    files = definition(features={"x": FEATURES["x"], "word": words, "word_vector": vector}, training=TRAINED)

    def appended(number: int) -> list[bytes]:
        random, word = np.random.default_rng(number), ("red", "green", "green")[number]
        return [serialized({**event(random), "word": word}) for _ in range(40)]

    told = assert_as_fresh(Platform(tmp_path, exports=False), files, Kept(), [1, 2], appended)
    assert [one["warm"] for one in told] == [False, True, True]
    assert ["rows mean something else" in one.get("renewed", "") for one in told] == [False, True, False]


def test_a_parent_draws_no_values_for_tables_that_it_gets_from_its_checkpoint(tmp_path: Path) -> None:
    vector = {"type": "embedding", "of": "code", "dimension": 2}
    files = definition(features={"code": FEATURES["code"], "code_vector": vector}, training=TRAINED)
    platform = Platform(tmp_path, exports=False, eager=True).append(events(60))
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
