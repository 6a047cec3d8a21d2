"""Variables that do not learn, and variables that learn at a rate of their own."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from services.trainer.families.building import build
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import checkpoint
from services.trainer.learn.freezing import freeze
from services.trainer.learn.training import Training
from services.trainer.tests.learn.test_training import SCHEMA, examples
from services.trainer.tests.support.small_rounds import definition

X, Y = [1.0, 2.0, 3.0, 4.0], [3.0, 5.0, 6.0, 9.0]


def training(optimizer: str = "adam", **section: Any) -> Training:
    said = definition(
        estimator="dnn_regressor", label="y", features={"x": {"type": "numeric"}},
        parameters={"hidden_units": [3]},
        training={"batch_size": 2, "optimizer": {"name": optimizer, "learning_rate": 0.01}, **section},
    )  # fmt: skip
    return Training(build(parse_definition(said), SCHEMA, {}, None, seed=1), seed=1)


def values(training: Training) -> dict[str, Any]:
    return {path.removeprefix("model/"): v.numpy() for path, v in training.variables.items() if "model/" in path}


@pytest.mark.covers("mode-fine-tune", "api-variables")
@pytest.mark.parametrize("pattern", ["hidden_0", "hidden_0/*", "hid*/kernel"])
def test_frozen_variables_keep_their_bits_and_have_no_slots(pattern: str) -> None:
    frozen = training(frozen=[pattern])
    before = values(frozen)
    frozen.train_block(examples(X, Y), pass_index=0, block_index=0)
    changed = {path for path, value in values(frozen).items() if (value != before[path]).any()}
    kept = {"hidden_0/kernel"} | (set() if "kernel" in pattern else {"hidden_0/bias"})
    assert changed == before.keys() - kept
    assert frozen.frozen() == sorted(f"model/{path}" for path in kept)
    slots = [path for path in frozen.variables if path.startswith("optimizer/")]
    assert not any(path.replace("/", "_") in slot for path in kept for slot in slots)
    assert any("deep_kernel" in slot for slot in slots)


@pytest.mark.covers("mode-fine-tune")
def test_what_is_unfrozen_later_goes_on_from_its_weights_with_new_slots() -> None:
    first = training(frozen=["hidden_0"])
    first.train_block(examples(X, Y), pass_index=0, block_index=0)
    second = training()
    report = checkpoint.restore(second.variables, checkpoint.capture(first.variables))
    assert all("hidden_0" in path for path in report.new)
    assert not report.dropped
    np.testing.assert_array_equal(values(second)["hidden_0/kernel"], values(first)["hidden_0/kernel"])
    second.continue_from(first.step)
    second.train_block(examples(X, Y), pass_index=0, block_index=0)
    assert (values(second)["hidden_0/kernel"] != values(first)["hidden_0/kernel"]).any()


@pytest.mark.covers("mode-fine-tune", "norm-batch")
def test_a_batch_normalisation_that_is_frozen_keeps_its_moving_statistics() -> None:
    inputs = keras.Input((2,), name="x")
    network = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization(name="norm")(inputs)))
    freeze(network, ["norm"])
    before = [variable.numpy() for variable in network.get_layer("norm").variables]
    network(tf.random.stateless_normal((8, 2), [1, 2]) + 5.0, training=True)
    for variable, value in zip(network.get_layer("norm").variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert [variable.path.split("/")[0] for variable in network.trainable_variables] == ["dense", "dense"]


@pytest.mark.covers("mode-fine-tune")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_rate_of_its_own_is_the_rate_times_the_factor(optimizer: str) -> None:
    """Also under Adam, where a factor on the gradient would do nothing."""
    plain, scaled = training(optimizer), training(optimizer, learning_rates={"hidden_0/kernel": 0.1})
    before = values(plain)
    for each in (plain, scaled):
        each.train_block(examples(X[:2], Y[:2]), pass_index=0, block_index=0)
    for path, value in values(plain).items():
        factor = 0.1 if path == "hidden_0/kernel" else 1.0
        np.testing.assert_allclose(
            values(scaled)[path] - before[path], factor * (value - before[path]), rtol=1e-3, atol=1e-7
        )


@pytest.mark.covers("mode-fine-tune")
@pytest.mark.parametrize("key", ["frozen", "learning_rates"])
def test_a_pattern_that_means_nothing_is_refused_with_what_there_is(key: str) -> None:
    said: Any = ["hiden_0"] if key == "frozen" else {"hiden_0": 0.5}
    with pytest.raises(DefinitionFailedError, match=f"{key} names 'hiden_0', .* deep/kernel, hidden_0/bias"):
        training(**{key: said})
