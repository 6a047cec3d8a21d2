"""`training.execution` and `training.input`: the steps are run and fed in other ways, and learn the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.registry.catalog import Version
from services.trainer.determinism import block_order
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.training import Training
from services.trainer.protocol.messages import Done
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, event, events, rebuilt, serialized

NET = """
def build_model(schema, parameters):
    x, pair = keras.Input((), name="x"), keras.Input((2,), name="pair")
    given = keras.layers.Concatenate()([keras.layers.Reshape((1,))(x), pair])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4, activation="tanh")(given))
    return keras.Model({"x": x, "pair": pair}, keras.layers.Dense(1)(hidden))
"""
DROPPING = NET.replace("BatchNormalization()", "Dropout(0.4)")
ASKED: Mapping[str, Any] = {"batch_size": 20, "optimizer": {"name": "adam", "learning_rate": 0.05}}
ROW_BYTES = 4 * 3 + 4 + 4
"""x and pair, the label, the weight."""
SESSION = {"execution": "session"}


@pytest.fixture
def fed_to_sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each run of a session of TensorFlow's that is fed examples, their number."""
    found: list[int] = []

    class Noted(tf.compat.v1.Session):
        def run(self, wanted: Any, fed: Any = None) -> Any:
            rows = {len(value) for place, value in (fed or {}).items() if place.shape.as_list() == [None, 2]}
            found.extend(rows)
            return super().run(wanted, fed)

    monkeypatch.setattr(tf.compat.v1, "Session", Noted)
    return found


def learned(source: str, directory: Path, passes: int = 3, **training: Any) -> tuple[Training, list[float]]:
    model, examples = built(source, directory, **{**ASKED, **training})
    found = Training(model, seed=5)
    losses = [found.train_block(examples, pass_index=index, block_index=0) for index in range(passes)]
    return found, np.concatenate(losses).tolist()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Keras's own fit over the same events in the same order, loss by loss."""
    model, examples = built(NET, tmp_path_factory.mktemp("fitted"), **ASKED)
    network = model.network
    network.compile(keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
    losses: list[float] = []

    class Noted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]) * (batch + 1) - sum(losses[len(losses) - batch :]))

    for index in range(3):
        order = block_order(5, count=examples.count, pass_index=index, block_index=0)
        x, y = (
            {name: one.numpy()[order] for name, one in part.items()} for part in (examples.columns, examples.labels)
        )
        columns = {name: x[name] for name in ("x", "pair")}
        network.fit(columns, y["late"], batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[Noted()])
    return losses


@pytest.mark.covers("pipe-feed-modes", "api-exec-modes", "api-keras")
@pytest.mark.parametrize("training", [
    {}, {"input": "feed"}, {"input": "stream"}, {"execution": "eager"}, {"execution": "eager", "input": "stream"},
    SESSION, SESSION | {"input": "feed"},
], ids=str)  # fmt: skip
def test_every_way_to_run_and_feed_the_steps_has_the_losses_of_keras_fit(
    training: dict[str, Any], tmp_path: Path, fitted: list[float], fed_to_sessions: list[int]
) -> None:
    """48 examples in batches of 20 at most are three even ones of 16."""
    found, losses = learned(NET, tmp_path, **training)
    np.testing.assert_allclose(losses, fitted, atol=1e-6)
    assert found.step == 9
    mode = training.get("input", "memory")
    expected = {"feed": (9, 16 * ROW_BYTES), "stream": (3, 0)}.get(mode)
    if expected:
        assert found.ways["calls"] == expected[0], "a call for each batch, or one for each block"
        assert expected[1] <= found.ways["largest_call_bytes"] < expected[1] + 48 * 8
    assert found.ways.get("execution", "graph") == training.get("execution", "graph")
    rows = {"memory": [48] * 3, "feed": [16] * 9}.get(mode) if "session" in training.values() else []
    assert fed_to_sessions == rows, "pair, which a placeholder got"


@pytest.mark.covers("api-exec-modes", "pipe-feed-modes")
def test_randomness_faults_and_rebuilds_are_those_of_the_plain_way(tmp_path: Path) -> None:
    poisoned = events(61)
    poisoned[7] = serialized(event(np.random.default_rng(2)) | {"x": float("nan")})

    def learned_in_round(name: str, **more: Any) -> Version:
        platform = Platform(tmp_path / name, exports=False).append(poisoned)
        lease = platform.lease(module(DROPPING, training={**ASKED, "passes": 2, "fixed_batch": True, **more}))
        assert isinstance(platform.train(lease), Done)
        (version,) = platform.registry.versions
        assert not more or rebuilt(platform, lease, 1).weights_digest == version.weights_digest
        return version

    plain = learned_in_round("plain")
    assert "input" not in plain.environment["training"]
    for name, ways in {"stream": {"input": "stream"}, "session": SESSION | {"input": "feed"}}.items():
        other = learned_in_round(name, **ways)
        assert other.events_unusable == plain.events_unusable == 1
        assert other.metrics["candidate"] == pytest.approx(plain.metrics["candidate"], abs=1e-5)
        assert other.environment["training"]["input"] == ways["input"]


@pytest.mark.covers("api-exec-modes")
def test_a_session_names_what_it_cannot_carry(tmp_path: Path) -> None:
    table = """
class Counted(keras.layers.Layer):
    def build(self, shape):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    def call(self, x):
        return x + tf.ensure_shape(self.table.lookup(tf.cast(x, tf.int64)), [None, 3])
"""
    source = NET.replace("    hidden =", '    given = Counted(name="counted")(given)\n    hidden =')
    with pytest.raises(DefinitionFailedError, match="is session, which carries variables"):
        Training(built(table + source, tmp_path, **SESSION)[0], seed=5)
