"""`training.check_gradients`: what TensorFlow differentiates against what the loss does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.model import parse_definition
from common.errors import InvalidInput
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, definition, event, events, serialized

NET = """
class Block(keras.layers.Layer):
    def call(self, x):
        return BLOCK

def build_model(schema, parameters):
    x, pair = keras.Input((), name="x"), keras.Input((2,), name="pair")
    given = keras.layers.Concatenate()([keras.layers.Reshape((1,))(x), pair])
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(4, activation="tanh", name="above")(given))
    hidden = keras.layers.BatchNormalization(name="between")(Block(name="block")(hidden))
    return keras.Model({"x": x, "pair": pair}, keras.layers.Dense(1, name="below")(hidden))
"""
RESAMPLER = """
SIGNAL = (0.0, 1.0, 3.0, 2.0, -1.0)

class Resampler(keras.layers.Layer):
    def build(self, shape):
        self.place = self.add_weight(shape=(), initializer=keras.initializers.Constant(2.25), name="place")
    def call(self, x):
        places = keras.ops.tanh(x) + self.place
        return keras.ops.image.map_coordinates(tf.constant(SIGNAL), places[None], order=1)[:, None]

def build_model(schema, parameters):
    x = keras.Input((), name="x")
    return keras.Model({"x": x}, Resampler(name="resampler")(x))
"""


def checked(source: str, directory: Path, **training: Any) -> tuple[Training, Any]:
    model, examples = built(source, directory, **{"check_gradients": 0.02, **training})
    found = Training(model, seed=5)
    found.train_block(examples, pass_index=0, block_index=0)
    return found, found.ways["gradients"]


@pytest.mark.covers("grad-api")
def test_gradients_differ_from_finite_differences_above_a_block_that_changes_them_and_nowhere_else(
    tmp_path: Path,
) -> None:
    overridden = "tf.custom_gradient(lambda x: (x, lambda dy: -2.0 * dy))(x)"
    _, told = checked(NET.replace("BLOCK", overridden), tmp_path)
    assert (told["variables"], told["examples"]) == (6, 48)
    assert set(told["differing"]) == {"above/kernel", "above/bias"}
    for slopes in told["differing"].values():
        assert slopes["analytic"] == pytest.approx(-2.0 * slopes["numeric"], rel=0.02)
        assert abs(slopes["numeric"]) > 1e-3


@pytest.mark.covers("grad-api", "api-tensor-ops")
def test_a_resampler_learns_where_it_reads(tmp_path: Path) -> None:
    """numpy's: the slope of the signal at each place, times the error."""
    training, told = checked(RESAMPLER, tmp_path, batch_size=48, optimizer={"name": "sgd", "learning_rate": 0.5})
    assert told["differing"] == {}
    _, examples = built(RESAMPLER, tmp_path)
    x, y = examples.columns["x"].numpy().reshape(-1), examples.labels["late"].numpy()
    signal = np.array([0.0, 1.0, 3.0, 2.0, -1.0])
    places = np.tanh(x) + 2.25
    error = 1 / (1 + np.exp(-np.interp(places, range(5), signal))) - y
    slope = np.mean(error * np.diff(signal)[np.floor(places).astype(int)])
    assert training.captured()["model/resampler/place"] == pytest.approx(2.25 - 0.5 * slope, abs=1e-5)


@pytest.mark.covers("grad-api")
def test_a_round_says_what_it_found_and_learns_what_it_would_learn_without(tmp_path: Path) -> None:
    versions = []
    for name, more in (("plain", {}), ("checked", {"check_gradients": 0.02})):
        platform = Platform(tmp_path / name, exports=False).append(events(60))
        stopped = NET.replace("BLOCK", "tf.stop_gradient(x)")
        platform.learn(module(stopped, training={"batch_size": 8, **more}))
        versions.append(platform.registry.versions[0])
    assert versions[0].weights_digest == versions[1].weights_digest
    assert "gradients" not in versions[0].environment["training"]
    assert set(versions[1].environment["training"]["gradients"]["differing"]) == {"above/kernel", "above/bias"}
    assert "above/kernel 0 for " in versions[1].environment["warnings"]["gradients"]


@pytest.mark.covers("grad-api")
@pytest.mark.parametrize("x", [float("nan"), 1e5], ids=["not finite", "refused by a layer"])
def test_examples_at_fault_are_set_aside_and_leave_the_gradients_unchecked(x: float, tmp_path: Path) -> None:
    refusing = """
def checked(x):
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(x), 50.0, "too large")]):
        return tf.identity(x)
"""
    source = refusing + NET.replace("BLOCK", "checked(x)").replace("tanh", "linear")
    poisoned = events(60)
    poisoned[7:12] = [serialized(event(np.random.default_rng(2)) | {"x": x})] * 5
    platform = Platform(tmp_path, exports=False).append(poisoned)
    asked = {"batch_size": 8, "check_gradients": 0.02}
    version = platform.learn(module(source, training=asked))
    assert version.events_unusable == 5
    assert version.environment["warnings"]["gradients"].startswith("not checked: the first ")


@pytest.mark.covers("grad-api")
def test_estimators_are_checked_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False).append(events(60))
    asked = {"batch_size": 8, "check_gradients": 0.02}
    platform.learn(definition(training=asked))
    told = platform.registry.versions[0].environment["training"]["gradients"]
    assert told["differing"] == {}
    assert told["variables"] > 5
    with pytest.raises(InvalidInput, match="check_gradients moves weights by little"):
        parse_definition(definition(training={**asked, "mixed_precision": "bfloat16"}))
    own = (
        NET.replace("BLOCK", "x").replace("keras.Model(", "Own(")
        + """
class Own(keras.Model):
    def train_step(self, data):
        return super().train_step(data)
"""
    )
    with pytest.raises(DefinitionFailedError, match=r"check_gradients is given, and the module's own train_step"):
        checked(own, tmp_path)
