"""What becomes of a batch whose loss is not finite, and where a NaN came from."""

from pathlib import Path

import numpy as np
import pytest

from services.trainer.learn.steps import NotFiniteError
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.learn.test_steps import NET
from services.trainer.tests.learn.test_training import examples, line_model, parameters

NAN = float("nan")


@pytest.mark.parametrize(("policy", "aside", "steps"), [("set_aside", 1, 2), ("skip_batch", 4, 1)])
def test_the_example_at_fault_is_set_aside_or_its_batch_is_skipped(policy: str, aside: int, steps: int) -> None:
    training = Training(line_model(batch_size=4, policy=policy), seed=1)
    losses = training.train_block(examples([1.0, 2.0, NAN, *[0.5] * 5], [1.0] * 8), pass_index=0, block_index=3)
    assert len(training.set_aside) == aside
    assert "the loss became nan" in training.set_aside[3, 2]
    assert (policy == "skip_batch") == training.set_aside[3, 2].startswith("its batch was skipped: ")
    assert (training.step, len(losses)) == (steps, steps)
    assert np.isfinite([*losses, *parameters(training)]).all()
    again = training.train_block(examples([1.0, 2.0, NAN, *[0.5] * 5], [1.0] * 8), pass_index=1, block_index=3)
    assert len(training.set_aside) == aside, "in the next pass nothing is at fault"
    assert np.isfinite(again).all()


def test_where_most_examples_are_at_fault_it_is_the_model() -> None:
    training = Training(line_model(batch_size=16), seed=1)
    block = examples([NAN] * 12 + [1.0] * 4, [1.0] * 16)
    with pytest.raises(NotFiniteError, match="step 0: 16 of 16 examples are at fault, so it is the model and not they"):
        training.train_block(block, pass_index=0, block_index=0)
    few_each = Training(line_model(batch_size=8), seed=1)
    with pytest.raises(NotFiniteError, match=r"1[1-9] of \d+ examples are at fault"):
        few_each.train_block(examples([NAN, NAN, 1.0] * 11, [1.0] * 33), pass_index=0, block_index=0)


@pytest.mark.covers("dbg-tfdbg")
@pytest.mark.parametrize(("policy", "debug"), [("fail", True), ("set_aside", True), ("set_aside", False)])
def test_the_operation_that_made_a_nan_is_named_with_its_line_and_layer(
    tmp_path: Path, policy: str, debug: bool
) -> None:
    net = NET.replace("HIDDEN", "hidden = keras.layers.Lambda(lambda one: tf.math.log(one), name='logs')(hidden)")
    model, block = built(net, tmp_path, debug=debug, on_not_finite=policy)
    place = next(number for number, text in enumerate(source_lines(tmp_path), 1) if "tf.math.log" in text)
    training = Training(model, seed=1)
    told = rf"the first operation that was not finite is Log \(net.py, line {place}, in <lambda>\), in layer logs"
    with pytest.raises(NotFiniteError, match=told) as raised:
        training.train_block(block, pass_index=0, block_index=0)
    assert raised.value.facts["operation"] == "Log"
    assert policy != "fail" or (raised.value.facts["step"], bool(raised.value.facts["rows"])) == (0, True)
    assert (raised.value.facts["layer"], "net.py" in raised.value.facts["place"]) == ("layer logs", True)


@pytest.mark.covers("dbg-tfdbg")
def test_a_gradient_that_is_not_finite_is_named_by_its_layer(tmp_path: Path) -> None:
    hidden = """hidden = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False, name="first")(hidden)
    hidden = keras.layers.Lambda(tf.sqrt, name="roots")(hidden)"""
    model, block = built(NET.replace("HIDDEN", hidden), tmp_path, debug=True, on_not_finite="fail")
    with pytest.raises(NotFiniteError, match=r"in the gradient of layer roots"):
        Training(model, seed=1).train_block(block, pass_index=0, block_index=0)


def source_lines(directory: Path) -> list[str]:
    (path,) = directory.rglob("net.py")
    return path.read_text().splitlines()
