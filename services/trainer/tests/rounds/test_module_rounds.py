"""Rounds of a module of one's own: its loss and metrics count, and what is wrong with it is the reason."""

import re
from typing import Any

import pytest

from services.trainer.protocol.messages import Failed, FailureKind
from services.trainer.tests.support.small_rounds import Platform, definition, events

MODULE = """
import keras
import tensorflow as tf

def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    hidden = keras.layers.Dense(4, activation="relu")(keras.layers.Reshape((1,))(x))
    hidden = keras.layers.Dropout(0.5)(hidden)
    return keras.Model(x, keras.layers.Dense(1)(hidden))
"""


def module_definition(source: str, **sections: Any) -> dict[str, bytes]:
    return definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", model_py=source, **sections
    )


def failed(outcome: object) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def assert_matches(text: str, pattern: str) -> None:
    assert re.search(pattern, text), text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", r"ZeroDivisionError: division by zero \(model.py, line 1"),
        ("def build_model(schema, parameters):\n    return parameters['none']", r"KeyError: 'none' \(model.py, line 2"),
        ("def build_model(schema, parameters):\n    return 3", "returned int, expected a keras.Model"),
        ("x = 1", "has neither build_model"),
        (MODULE.replace('name="x"', 'name="y"'), "input 'y' is no feature of the stream"),
        (MODULE.replace("Dense(1)", "Dense(1, activation='sigmoid')"), "return the logits"),
        (
            MODULE.replace("keras.layers.Dense(1)(hidden)", "keras.ops.sigmoid(keras.layers.Dense(1)(hidden))"),
            "a sigmoid",
        ),
        (MODULE.replace("Dense(1)(hidden)", "Lambda(lambda one: tf.nn.sigmoid(one[:, :1]))(hidden)"), "a sigmoid"),
        (
            MODULE + "\ndef loss(labels, outputs):\n    raise RuntimeError('no loss')",
            r"RuntimeError: no loss \(model.py, line 12",
        ),
        (MODULE + "\ndef metrics(labels, outputs):\n    return {'m': float('nan')}", "m is not finite"),
        (MODULE + "\ndef metrics(labels, outputs):\n    return {'m': outputs}", "m must be a number, got ndarray"),
    ],
)
def test_a_module_at_fault_fails_the_round_with_the_reason(platform: Platform, source: str, reason: str) -> None:
    platform.append(events(20))
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.DEFINITION
    assert_matches(outcome.reason, reason)
    assert platform.registry.versions == []


def test_a_model_that_begins_otherwise_each_time_fails_its_first_round(exporting_platform: Platform) -> None:
    drawn = "Dense(1, bias_initializer=lambda *_, **__: np.random.default_rng().random(1))"
    source = "import numpy as np\n" + MODULE.replace("Dense(1)", drawn)
    outcome = failed(exporting_platform.append(events(20)).train(exporting_platform.lease(module_definition(source))))
    assert_matches(outcome.reason, r"built twice from one seed, the model begins with another dense_1/bias each time")


def test_numbers_of_a_seeded_generator_are_those_of_every_build_and_a_coarse_layer_is_compared_as_one(
    exporting_platform: Platform,
) -> None:
    drawn = "Dense(1, bias_initializer=lambda *_, **__: GENERATOR.normal(size=1))"
    source = MODULE.replace("Dense(4,", "Dense(64, dtype='mixed_bfloat16',").replace("Dense(1)", drawn)
    source = "import numpy as np\nGENERATOR = np.random.default_rng(7)\n" + source
    version = exporting_platform.append(events(20)).learn(module_definition(source))
    assert "answers in a batch" not in version.environment.get("warnings", {})


def test_a_version_warns_of_answers_that_depend_on_who_else_asks_and_of_an_output_without_a_row_for_each_example(
    exporting_platform: Platform,
) -> None:
    of_batch = "keras.layers.Lambda(lambda one: one - tf.reduce_mean(one, 0))(hidden)"
    several = f'{{"late": keras.layers.Dense(1)({of_batch}), "all": keras.ops.sum(keras.ops.ones_like(hidden)) * 0.0}}'
    source = MODULE.replace("keras.layers.Dense(1)(hidden)", several)
    warnings = exporting_platform.append(events(20)).learn(module_definition(source)).environment["warnings"]
    assert "beside 7 others" in warnings["answers in a batch"]
    assert "requests by rows" in warnings["output all"]


@pytest.mark.covers("hook-nan")
def test_a_loss_that_is_not_finite_fails_the_round_with_the_step(platform: Platform) -> None:
    platform.append(events(60))
    source = MODULE + "\ndef loss(labels, outputs):\n    return tf.math.log(-tf.ones_like(outputs) * outputs * outputs)"
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.NUMERIC
    assert_matches(outcome.reason, r"the loss became nan at step 0")
    assert_matches(outcome.reason, "it is the model and not they")


def test_a_model_that_does_not_fit_fails_the_round_as_out_of_memory(platform: Platform) -> None:
    platform.append(events(20))
    source = MODULE.replace("Dense(1)(hidden)", "Dense(1)(hidden + tf.zeros([2**46])[:1])")
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.MEMORY


@pytest.mark.covers("loss-custom")
def test_a_module_brings_its_own_loss_and_metrics(platform: Platform) -> None:
    platform.append(events(60))
    source = MODULE + (
        "\ndef loss(labels, outputs):\n    return tf.square(outputs - tf.cast(labels, tf.float32))"
        "\ndef metrics(labels, outputs):\n    return {'zero_one': (abs((outputs > 0) - labels) > 0.5).mean()}"
    )
    platform.learn(module_definition(source))
    metrics = platform.registry.versions[0].metrics["candidate"]
    assert metrics["zero_one"] == pytest.approx(1 - metrics["accuracy"])
