"""Optimizers and learning rates by name: made as Keras makes them, restored by path, refused where they say nothing."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition import keras_names
from common.definition.keras_names import OPTIMIZERS, SCHEDULES, Option, Value
from common.definition.learning_rate import parse_learning_rate
from common.definition.model import parse_definition
from common.definition.training import Training as Asked
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.keras_internals import rate_of
from services.trainer.learn import checkpoint
from services.trainer.learn.optimizers import constant_of, make_optimizer, rate_at
from services.trainer.learn.training import Training
from services.trainer.tests.learn.test_training import examples, line_model
from services.trainer.tests.support.small_rounds import definition

DATA = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
_GIVEN: dict[str, Value] = {
    "global_clipnorm": None, "clipvalue": None, "learning_rate_power": -0.5, "gradient_accumulation_steps": 2,
    "use_ema": True, "beta_2_decay": -0.7, "exclude_layers": ("last",), "muon_b": -4.0,
}  # fmt: skip


def parsed(**optimizer: Any) -> Asked:
    return parse_definition(definition(training={"optimizer": optimizer})).training


def given(key: str, option: Option) -> Value:
    """Another value than the default."""
    values: dict[str, Value] = {"number": 0.5, "integer": 3, "flag": not option.default}
    return _GIVEN.get(key, values.get(option.kind))


def settings(training: Training) -> dict[str, Any]:
    return {path: variable.numpy() for path, variable in training.variables.items() if path.startswith("model/")}


@pytest.mark.covers("opt-builtin")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_keras_is_made_with_every_option_that_keras_gives_it(name: str) -> None:
    options = {key: given(key, option) for key, option in OPTIMIZERS[name].options.items()}
    made = make_optimizer(parsed(name=name, **options))
    assert type(made) is getattr(keras.optimizers, OPTIMIZERS[name].keras_name)
    kept = {key: value for key, value in options.items() if value is not None}
    shown = {key: getattr(made, key) for key in kept}
    assert {key: tuple(v) if isinstance(v, list) else v for key, v in shown.items()} == kept


@pytest.mark.covers("opt-builtin", "loop-global-step", "ckpt-resume")
@pytest.mark.parametrize("name", ["sgd", "adam", "adafactor", "muon", "schedule_free_adamw"])
def test_steps_equal_those_of_keras_and_a_restored_optimizer_goes_on_with_equal_bits(name: str) -> None:
    options: dict[str, Any] = {"name": name, "learning_rate": 0.01} | ({"momentum": 0.9} if name == "sgd" else {})
    training = Training(line_model(batch_size=2, **options), seed=1)
    keras_own = getattr(keras.optimizers, OPTIMIZERS[name].keras_name)(
        **({"learning_rate": 0.01} | {key: value for key, value in options.items() if key == "momentum"})
    )
    twins = [keras.Variable(v.numpy(), name=v.name) for v in training.model.network.trainable_variables]
    with tf.GradientTape() as tape:
        one = examples([3.0], [2.0])
        loss = training.model.loss(one.columns, one.labels, one.weights)
    gradients = tape.gradient(loss, [v.value for v in training.model.network.trainable_variables])
    keras_own.apply(gradients, twins)
    training.train_block(one, pass_index=0, block_index=0)
    for variable, twin in zip(training.model.network.trainable_variables, twins, strict=True):
        np.testing.assert_allclose(variable.numpy(), twin.numpy(), rtol=1e-5)
    saved = checkpoint.capture(training.variables)
    resumed = Training(line_model(batch_size=2, seed=99, **options), seed=1)
    report = checkpoint.restore(resumed.variables, saved)
    assert (report.new, report.dropped, resumed.step) == ((), (), 1)
    for each in (training, resumed):
        each.train_block(examples(*DATA), pass_index=0, block_index=1)
    digests = [checkpoint.weights_digest(checkpoint.capture(t.variables)) for t in (training, resumed)]
    assert digests[0] == digests[1]


@pytest.mark.covers("opt-builtin")
def test_an_optimizer_for_the_linear_part_and_another_for_the_rest_take_the_steps_of_keras() -> None:
    sections: dict[str, Any] = {"optimizers": {"wide": {"name": "ftrl", "learning_rate": 0.2}}}
    training = Training(line_model(batch_size=1, training=sections, name="adam", learning_rate=0.1), seed=1)
    slope, bias = keras.Variable([[0.0]]), keras.Variable([0.0])
    own = (keras.optimizers.Ftrl(0.2), slope), (keras.optimizers.Adam(0.1), bias)
    for index, (x, y) in enumerate(zip(*DATA, strict=True)):
        error = float(slope[0, 0]) * x + float(bias[0]) - y
        for (optimizer, variable), gradient in zip(own, ([[2.0 * error * x]], [2.0 * error]), strict=True):
            optimizer.apply([tf.constant(gradient)], [variable])
        training.train_block(examples([x], [y]), pass_index=0, block_index=index)
    found = settings(training)
    np.testing.assert_allclose(found["model/wide/x_weights"], slope, rtol=1e-5)
    np.testing.assert_allclose(found["model/prediction/bias"], bias, rtol=1e-5)
    assert training.ways["optimizers"] == {"adam": ["prediction/bias"], "ftrl_1": ["wide/x_weights"]}

    resumed = Training(line_model(batch_size=1, training=sections, name="adam", learning_rate=0.1), seed=1)
    report = checkpoint.restore(resumed.variables, checkpoint.capture(training.variables))
    assert (report.new, report.dropped, resumed.step) == ((), (), 5)
    for each in (training, resumed):
        each.train_block(examples(*DATA), pass_index=1, block_index=0)
    digests = [checkpoint.weights_digest(checkpoint.capture(one.variables)) for one in (training, resumed)]
    assert digests[0] == digests[1]

    for patterns, sentence in ((["deep"], "deep teaches none of"), (["*"], "optimizer then teaches none of")):
        sections = {"optimizers": {key: {"name": "ftrl"} for key in patterns}}
        with pytest.raises(DefinitionFailedError, match=sentence):
            Training(line_model(training=sections), seed=1)


@pytest.mark.covers("opt-clip")
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"clip_norm": 1.0}, [-0.6, -0.8]),
        ({"global_clipnorm": 1.0}, [-0.6, -0.8]),
        ({"clipnorm": 2.5}, [-1.5, -2.0]),
        ({"clipvalue": 3.5}, [-3.0, -3.5]),
        ({"clip_average_norm": 1.0}, [-1.2, -1.6]),
        ({}, [-3.0, -4.0]),
    ],
)
def test_gradients_are_clipped_by_norm_by_global_norm_and_by_value(
    option: dict[str, float], expected: list[float]
) -> None:
    optimizer = make_optimizer(parsed(name="sgd", learning_rate=1.0, **option))
    variable = keras.Variable([0.0, 0.0])
    optimizer.build([variable])
    optimizer.apply([tf.constant([3.0, 4.0])], [variable])
    assert variable.numpy() == pytest.approx(expected)


@pytest.mark.covers("loop-global-step")
def test_accumulated_gradients_are_one_step_and_count_once() -> None:
    options: dict[str, Any] = {"name": "sgd", "learning_rate": 0.1}
    apart = Training(line_model(batch_size=2, gradient_accumulation_steps=2, **options), seed=1)
    losses = apart.train_block(examples(DATA[0][:4], DATA[1][:4]), pass_index=0, block_index=0)
    together = Training(line_model(batch_size=4, **options), seed=1)
    together.train_block(examples(DATA[0][:4], DATA[1][:4]), pass_index=0, block_index=0)
    for path, value in settings(together).items():
        np.testing.assert_allclose(settings(apart)[path], value, rtol=1e-6)
    assert (len(losses), apart.step, together.step) == (2, 1, 1)
    steps, curve = apart.curve(losses)
    assert (steps.tolist(), curve.tolist()) == ([0], [pytest.approx(losses.mean())])


def test_gradients_that_wait_to_be_applied_are_restored_with_their_place() -> None:
    options: dict[str, Any] = {"name": "adam", "learning_rate": 0.1, "gradient_accumulation_steps": 3}
    undisturbed = Training(line_model(batch_size=1, **options), seed=1)
    undisturbed.train_block(examples(*DATA), pass_index=0, block_index=0)
    resumed = Training(line_model(batch_size=1, seed=9, **options), seed=1)
    checkpoint.restore(resumed.variables, checkpoint.capture(undisturbed.variables))
    resumed.continue_from(undisturbed.step)
    for each in (undisturbed, resumed):
        each.train_block(examples(*DATA), pass_index=0, block_index=1)
    assert undisturbed.step == resumed.step == 3
    digests = [checkpoint.weights_digest(checkpoint.capture(t.variables)) for t in (undisturbed, resumed)]
    assert digests[0] == digests[1]


@pytest.mark.covers("opt-ema")
def test_averages_that_a_later_definition_adds_begin_at_the_weights() -> None:
    plain = Training(line_model(name="sgd", learning_rate=0.1), seed=1)
    plain.train_block(examples(*DATA), pass_index=0, block_index=0)
    for name in ({"name": "sgd", "use_ema": True, "ema_momentum": 0.9}, {"name": "schedule_free_adamw"}):
        averaged = Training(line_model(learning_rate=0.0, **name), seed=1)
        report = checkpoint.restore(averaged.variables, checkpoint.capture(plain.variables))
        averaged.start_copies(report.new)
        averaged.continue_from(plain.step)
        averaged.train_block(examples(*DATA), pass_index=0, block_index=0)
        values = {path: variable.numpy() for path, variable in averaged.variables.items()}
        for path, average in averaged.averages().items():
            np.testing.assert_allclose(values[average], values[path], rtol=1e-6)
        for path, value in settings(plain).items():
            np.testing.assert_allclose(values[path], value, rtol=1e-6)


_HALF = {"schedule": "constant", "initial": 0.5}
_LINE = {"schedule": "polynomial_decay", "initial_learning_rate": 1.0, "decay_steps": 10, "end_learning_rate": 0.0}


@pytest.mark.covers("opt-schedule")
@pytest.mark.parametrize(
    ("section", "step", "expected"),
    [
        (0.5, 100, 0.5),
        ({"schedule": "exponential", "initial": 0.5, "decay_steps": 10, "decay_rate": 0.1}, 20, 0.005),
        ({"schedule": "cosine", "initial": 0.5, "decay_steps": 10, "floor": 0.1}, 5, 0.275),
        ({**_HALF, "warmup": {"steps": 4, "from": 0.1}}, 1, 0.2),
        ({**_LINE, "warmup": {"steps": 4}}, 4, 1.0),
        ({**_LINE, "warmup": {"steps": 4}}, 9, 0.5),
        ({"schedule": "sequence", "parts": [{**_HALF, "steps": 5}, {**_LINE, "steps": 5}, _HALF]}, 8, 0.7),
        ({"schedule": "sequence", "parts": [{**_HALF, "steps": 5}, {**_LINE, "steps": 5}, _HALF]}, 10, 0.5),
    ],
)
def test_learning_rates_follow_their_formulas(section: Any, step: int, expected: float) -> None:
    rate = parse_learning_rate(section)
    assert float(rate_at(rate, tf.constant(step, tf.int64))) == pytest.approx(expected)


@pytest.mark.covers("opt-schedule")
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_of_keras_gives_kerass_rates(name: str) -> None:
    options: dict[str, Any] = {
        key: {"boundaries": [3, 6], "values": [0.3, 0.2, 0.1], "decay_rate": 0.5, "initial_learning_rate": 0.3}.get(
            key, 4
        )
        for key, option in SCHEDULES[name].options.items()
        if option.is_required
    }
    own = getattr(keras.optimizers.schedules, SCHEDULES[name].keras_name)(**options)
    rate = parse_learning_rate({"schedule": name, **options})
    ours = [float(rate_at(rate, tf.constant(step, tf.int64))) for step in range(10)]
    assert ours == pytest.approx([float(own(float(step))) for step in range(10)])
    assert len(set(ours)) > 1


@pytest.mark.parametrize(
    ("rate", "constant"), [(0.1, np.float32(0.1)), ({**_HALF, "warmup": {"steps": 4}}, None), (_LINE, None)]
)
def test_a_rate_is_constant_where_no_step_changes_it(rate: Any, constant: float | None) -> None:
    assert constant_of(rate_of(make_optimizer(parsed(name="adam", learning_rate=rate)))) == constant


def test_the_table_holds_what_this_keras_has() -> None:
    kinds = {"optimizers": OPTIMIZERS, "losses": keras_names.LOSSES, "metrics": keras_names.METRICS,
             "initializers": keras_names.INITIALIZERS, "regularizers": keras_names.REGULARIZERS,
             "activations": keras_names.ACTIVATIONS, "optimizers.schedules": SCHEDULES}  # fmt: skip
    for package, names in kinds.items():
        module = keras
        for part in package.split("."):
            module = getattr(module, part)
        assert all(callable(getattr(module, named.keras_name)) for named in names.values())
