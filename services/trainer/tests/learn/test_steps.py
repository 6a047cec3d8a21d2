"""What a step is: one shape, one trace, in which precision, and how its norms are told."""

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from common.errors import InvalidInput
from services.trainer.families.model import BuiltModel, Scorer
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import checkpoint
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.learn.test_training import examples, line_model, parameters
from services.trainer.tests.support.small_rounds import definition

NET = """
def build_model(schema, parameters):
    x = keras.Input((), name="x")
    hidden = keras.layers.Reshape((1,))(x)
    HIDDEN
    return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))
"""
ONE_SHAPE = (
    NET.replace("HIDDEN", "")
    + """
def loss(labels, outputs):
    assert labels.shape == (8,), labels.shape
    return tf.square(tf.cast(labels, tf.float32) - outputs)
"""
)


def line(**training: Any) -> BuiltModel:
    return line_model(training=training)


@pytest.mark.covers("est-tpu", "perf-xla")
def test_fixed_batches_have_one_shape_and_what_fills_them_up_weighs_nothing(tmp_path: Path) -> None:
    plain, fixed = Training(line(batch_size=4), seed=1), Training(line(batch_size=4, fixed_batch=True), seed=1)
    few = examples([1.0, 2.0, 9.0], [3.0, 5.0, 7.0], [1.0, 3.0, 0.5])
    losses = [one.train_block(few, pass_index=0, block_index=0).tolist() for one in (plain, fixed)]
    assert losses[0] == pytest.approx(losses[1])
    assert parameters(plain) == pytest.approx(parameters(fixed))
    assert len(fixed.train_block(examples([1.0] * 10, [1.0] * 10), pass_index=0, block_index=1)) == 3
    slope, bias = parameters(fixed)
    for rows in (np.array([2.0, 5.0, -1.0]), np.arange(5.0)):
        answered = Scorer(fixed.model)({"x": tf.constant(rows[:, np.newaxis], tf.float32)}, len(rows))["y"]
        np.testing.assert_allclose(answered, slope * rows + bias, rtol=1e-5)

    model, block = built(ONE_SHAPE, tmp_path, fixed_batch=True, jit_compile=True)
    some = {name: values[:43] for name, values in block.columns.items()}
    block = TrainingSet(some, {"late": block.labels["late"][:43]}, {"late": block.weights["late"][:43]}, 43)
    taken = Training(model, seed=1).train_block(block, pass_index=0, block_index=0)
    assert len(taken) == 6, "five full batches, and one of three rows that is filled up"
    unpadded = Training(built(ONE_SHAPE, tmp_path / "other")[0], seed=1)
    with pytest.raises(DefinitionFailedError, match="AssertionError"):
        unpadded.train_block(block, pass_index=0, block_index=0)
    model, _ = built(NET.replace("HIDDEN", "hidden = keras.layers.BatchNormalization()(hidden)"), tmp_path / "norm",
                     fixed_batch=True)  # fmt: skip
    with pytest.raises(DefinitionFailedError, match="fixed_batch is true, and batch normalisation counts every row"):
        Training(model, seed=1)
    with pytest.raises(InvalidInput, match="into 3 shards of one size; make it a multiple of 3"):
        line(batch_size=8, shards=3, fixed_batch=True)


@pytest.mark.covers("api-graph-control", "pipe-generator")
def test_a_thousand_steps_add_no_trace_and_no_operation_and_two_trainings_share_nothing() -> None:
    training, other = Training(line(batch_size=2), seed=1), Training(line(batch_size=2), seed=1)
    compiled: Any = training._steps._compiled
    random = np.random.default_rng(1)

    def steps(count: int, index: int) -> None:
        x = random.normal(size=2 * count).tolist()
        training.train_block(examples(x, x), pass_index=0, block_index=index)

    steps(10, 0)
    concrete = compiled.get_concrete_function()
    operations = len(concrete.graph.get_operations())
    before = psutil.Process().memory_info().rss
    for index in range(1, 41):
        steps(20 + index % 11, index)
    assert training.step > 1000
    assert compiled.experimental_get_tracing_count() == 1
    assert len(concrete.graph.get_operations()) == operations
    assert psutil.Process().memory_info().rss - before < 32 * 2**20
    assert other.step == 0
    assert parameters(other) == (0.0, 0.0)


def test_mixed_precision_trains_resumes_rebuilds_and_answers_in_float32(tmp_path: Path) -> None:
    files = definition(training={"batch_size": 8, "passes": 2, "mixed_precision": "float16"})
    platform = trained_twice(tmp_path, files)
    arrays = checkpoint.read(platform.directory / "cache" / "model" / "2").arrays
    assert {array.dtype for path, array in arrays.items() if path.startswith("model/") and array.dtype.kind == "f"} == {
        np.dtype(np.float32)
    }
    assert "optimizer/loss_scale/dynamic_scale" in arrays
    saved = platform.directory / "cache" / "model" / "2" / "saved_model"
    loaded = tf.saved_model.load(str(saved))
    outputs = loaded.signatures["serving_default"].structured_outputs
    assert {spec.dtype for spec in outputs.values()} == {tf.float32}
    operations = loaded.signatures["serving_default"].graph.as_graph_def().library.function
    kinds = {node.attr["T"].type for function in operations for node in function.node_def if node.op == "MatMul"}
    assert tf.float16.as_datatype_enum in kinds, "the hidden layer computes in it"
    assert np.isfinite(platform.registry.versions[1].metrics["candidate"]["log_loss"])


@pytest.mark.covers("opt-clip")
def test_norms_of_gradients_and_updates_are_told_in_one_step_of_every_so_many() -> None:
    sgd = {"name": "sgd", "learning_rate": 0.1, "clip_norm": 1.0}
    training = Training(line(batch_size=2, norms_every_steps=2, optimizer=sgd), seed=1)
    for index in range(3):
        training.train_block(examples([1.0, 2.0], [3.0, 5.0]), pass_index=0, block_index=index)
        told = dict(zip(training.norm_names, training.norms[0].tolist(), strict=True))
        if index == 0:  # the gradients of the hand calculation in test_training.py, before they are clipped
            assert told["gradient_norm/wide"] == 13.0
            assert told["gradient_norm/prediction"] == 8.0
            assert told["gradient_norm/all"] == pytest.approx(np.hypot(13.0, 8.0))
            assert told["update_ratio/all"] == 0.0, "of what was 0"
        if index == 1:
            assert np.isnan(list(told.values())).all()
        if index == 2:
            assert told["step"] == 2.0
            # Two updates of length 0.1 in nearly one direction, and a third.
            assert told["update_ratio/all"] == pytest.approx(0.5, rel=0.05)


def test_a_slot_or_a_hooks_value_of_another_shape_starts_anew_and_is_on_record(tmp_path: Path) -> None:
    remembering = NET.replace("HIDDEN", "") + "def hook_state(network):\n    return {'seen': np.zeros(SIZE)}\n"
    model, _ = built(remembering.replace("SIZE", "2"), tmp_path / "before")
    arrays = Training(model, seed=1).captured()
    (slot,) = (path for path in arrays if path.endswith("kernel_momentum"))
    arrays |= {"hook/seen": np.ones(2), slot: np.ones(7, np.float32)}
    model, _ = built(remembering.replace("SIZE", "3"), tmp_path / "after")
    training = Training(model, seed=1)
    report = checkpoint.restore(training.variables, arrays)
    assert training.variables["hook/seen"].numpy().tolist() == [0.0] * 3
    assert not training.variables[slot].numpy().any()
    assert set(report.new) == {"hook/seen", slot}
    assert "hook/seen: the parent's float64 (2,) does not fit float64 (3,); it starts anew" in report.rows
