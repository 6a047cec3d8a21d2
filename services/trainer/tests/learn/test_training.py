"""The training loop: orders, batches, weights, optimizers, schedules, and equality between runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.building import build
from services.trainer.families.model import BuiltModel, Scorer
from services.trainer.families.port import TrainingSet
from services.trainer.learn.batches import taken_again
from services.trainer.learn.steps import NotFiniteError
from services.trainer.learn.training import Training
from services.trainer.tests.support.small_rounds import definition

SCHEMA = Schema.from_mapping(
    {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "float32"}]}
)


def line_model(
    *,
    seed: int = 1,
    batch_size: int = 4,
    policy: str = "set_aside",
    training: Mapping[str, Any] | None = None,
    **optimizer: Any,
) -> BuiltModel:
    """y = a x + b. `training`: more of the section."""
    spec = parse_definition(
        definition(
            estimator="linear_regressor",
            label="y",
            features={"x": {"type": "numeric"}},
            parameters={},
            training={
                "batch_size": batch_size,
                "on_not_finite": policy,
                "optimizer": optimizer or {"name": "sgd", "learning_rate": 0.1},
                **(training or {}),
            },
        )
    )
    return build(spec, SCHEMA, {}, None, seed=seed)


def examples(x: list[float], y: list[float], weights: list[float] | None = None) -> TrainingSet:
    columns = {"x": tf.constant(x)[:, tf.newaxis]}
    return TrainingSet(columns, {"y": tf.constant(y)}, {"y": tf.constant(weights or [1.0] * len(x))}, len(x))


def test_rows_of_rarer_classes_are_taken_again_evenly_and_at_most_so_often() -> None:
    classes = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1], np.float32)
    labelled = np.arange(12) != 11
    turn = {"seed": 3, "pass_index": 0, "block_index": 0}
    again = taken_again(classes, labelled, at_most=5, **turn)
    counts = 1 + np.bincount(again, minlength=12)
    assert counts[classes == 0].tolist() == [1] * 8
    assert counts[7:9].tolist() == [4, 4]
    assert (counts[9], counts[11]) == (5, 1), "at most five times; without a label once"
    draws = {tuple(taken_again(classes[:9], labelled[:9], at_most=9, seed=seed, pass_index=0, block_index=0))
             for seed in range(20)}  # fmt: skip
    assert len(draws) > 1, "seven of two: which of them is taken once more is drawn"


def test_a_balanced_round_takes_the_steps_of_examples_that_are_repeated() -> None:
    labels = [1] + [0] * 6
    schema = Schema.from_mapping(SCHEMA.to_mapping() | {"labels": [{"name": "y", "dtype": "int64"}]})
    sections: dict[str, Any] = {"batch_size": 64, "optimizer": {"name": "sgd", "learning_rate": 0.1}}

    def trained(order: list[int], **more: Any) -> Training:
        spec = parse_definition(
            definition(estimator="linear_classifier", label="y", features={"x": {"type": "numeric"}}, parameters={},
                       training=sections | more)
        )  # fmt: skip
        model = build(spec, schema, {}, None, seed=1)
        taught = model.heads[0].labels_of(tf.constant([labels[row] for row in order], tf.int64))
        columns = {"x": tf.constant([[0.5 * row] for row in order])}
        training = Training(model, seed=1)
        block = TrainingSet(columns, {"y": taught}, {"y": tf.ones(len(order))}, len(order))
        training.train_block(block, pass_index=0, block_index=0)
        return training

    def learned(training: Training) -> list[float]:
        return [float(one.numpy().sum()) for one in training.model.network.trainable_variables]

    balanced, repeated = trained([*range(7)], balance={"head": "y", "at_most": 6}), trained([0] * 6 + [*range(1, 7)])
    assert learned(balanced) == pytest.approx(learned(repeated), abs=1e-6)
    assert learned(balanced) != pytest.approx(learned(trained([*range(7)])), abs=1e-6)
    assert (balanced.ways["taken_again"], balanced.rows_left, balanced.step) == (5, 0, 1)


def parameters(training: Training) -> tuple[float, float]:
    values = {path: variable.numpy() for path, variable in training.variables.items()}
    return float(values["model/wide/x_weights"][0, 0]), float(values["model/prediction/bias"][0])


@pytest.mark.covers("opt-builtin")
def test_one_step_of_gradient_descent_equals_the_hand_calculation() -> None:
    training = Training(line_model(), seed=1)
    losses = training.train_block(examples([1.0, 2.0], [3.0, 5.0]), pass_index=0, block_index=0)
    # From 0: loss (9 + 25) / 2; gradients -2 (1*3 + 2*5) / 2 and -2 (3 + 5) / 2; rate 0.1.
    assert losses.tolist() == [17.0]
    assert parameters(training) == pytest.approx((1.3, 0.8))
    assert training.step == 1


@pytest.mark.covers("loss-reduction-reg")
def test_the_loss_is_the_weighted_mean_and_weight_zero_is_no_example() -> None:
    with_zero, without = Training(line_model(), seed=1), Training(line_model(), seed=1)
    a = with_zero.train_block(examples([1.0, 2.0, 9.0], [3.0, 5.0, 7.0], [1.0, 3.0, 0.0]), pass_index=0, block_index=0)
    b = without.train_block(examples([1.0, 2.0], [3.0, 5.0], [1.0, 3.0]), pass_index=0, block_index=0)
    assert a == pytest.approx(b) == [(9.0 + 3 * 25.0) / 4]
    assert parameters(with_zero) == pytest.approx(parameters(without))


@pytest.mark.covers("api-keras", "ex-classic")
def test_a_line_is_learned() -> None:
    training = Training(line_model(batch_size=8), seed=1)
    x = np.linspace(-1, 1, 64).astype(np.float32)
    for index in range(20):
        training.train_block(examples(x.tolist(), (2 * x - 1).tolist()), pass_index=index, block_index=0)
    assert parameters(training) == pytest.approx((2.0, -1.0), abs=0.01)
    predicted = Scorer(training.model)({"x": tf.constant([[3.0]])}, 1)
    assert predicted["y"] == pytest.approx([5.0], abs=0.05)


def test_a_block_without_examples_changes_nothing() -> None:
    training = Training(line_model(), seed=1)
    assert training.train_block(examples([], []), pass_index=0, block_index=0).size == 0
    assert training.step == 0


@pytest.mark.covers("hook-nan")
def test_a_loss_that_is_not_finite_stops_at_its_step() -> None:
    training = Training(line_model(batch_size=1, policy="fail"), seed=1)
    with pytest.raises(NotFiniteError, match=r"the loss became (nan|inf) at step \d"):
        training.train_block(examples([1.0, float("nan"), 2.0], [1.0, 1.0, 1.0]), pass_index=0, block_index=0)
    assert training.step <= 3


@pytest.mark.covers("pipe-generator")
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_batches_cover_a_block_and_differ_by_at_most_one(count: int) -> None:
    bounds = determinism.batch_bounds(count, 8)
    sizes = np.diff(bounds)
    assert sizes.sum() == count
    assert len(sizes) == -(-count // 8)
    assert count == 0 or sizes.max() - sizes.min() <= 1
    assert count == 0 or sizes.max() <= 8


@pytest.mark.covers("pipe-feed-modes", "pipe-etl", "loop-seed")
def test_orders_depend_on_seed_pass_and_block_alone() -> None:
    def order(**changes: int) -> list[int]:
        arguments = {"seed": 1, "pass_index": 0, "block_index": 0, "count": 50} | changes
        return determinism.block_order(arguments.pop("seed"), **arguments).tolist()

    assert order() == order()
    assert sorted(order()) == list(range(50))
    assert len({tuple(order(**change)) for change in ({}, {"seed": 2}, {"pass_index": 1}, {"block_index": 1})}) == 4


@pytest.mark.covers("opt-schedule", "loop-global-step")
def test_a_schedule_goes_on_from_the_restored_step() -> None:
    schedule = {"schedule": "inverse_time", "initial": 0.1, "decay_steps": 1, "decay_rate": 1.0}
    training = Training(line_model(name="sgd", learning_rate=schedule), seed=1)
    training.continue_from(9)
    training.train_block(examples([1.0], [1.0]), pass_index=0, block_index=0)
    # Rate 0.1 / (1 + 9), gradient -2 for both.
    assert parameters(training) == pytest.approx((0.02, 0.02))
    assert training.step == 10


@pytest.mark.covers("opt-schedule")
def test_a_changed_rate_keeps_the_slots() -> None:
    first = Training(line_model(name="adam", learning_rate=0.1), seed=1)
    schedule = {"schedule": "cosine", "initial": 0.1, "decay_steps": 5}
    second = Training(line_model(name="adam", learning_rate=schedule), seed=1)
    assert first.variables.keys() == second.variables.keys()
