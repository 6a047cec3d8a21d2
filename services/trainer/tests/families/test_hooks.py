"""Hooks of a module: when they are called, what they remember, and what happens when one raises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import checkpoint
from services.trainer.learn.training import Training
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import module, trained_twice
from services.trainer.tests.support.small_rounds import Platform, events, rebuilt

NET = """
def build_model(schema, parameters):
    x = keras.Input((), name="x")
    return keras.Model({"x": x}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(x)))
"""
COUNTING = (
    NET
    + """
def hook_state(network):
    return {"calls": np.zeros(5, np.int64), "rounds": 0, "mean": 0.0, "order_is_kept": True}

def on_round_begin(run):
    run.state["calls"].assign(np.zeros(5))
    run.state["rounds"].assign_add(1)

def before_step(run, features, labels):
    run.state["calls"].assign_add([1, 0, 0, 0, 0])
    return {"seen": tf.cast(tf.size(labels), tf.float32) + 0.0 * features["x"][0], "step": run.optimizer.iterations + 0}

def after_step(run, loss, kept):
    calls, state = run.state["calls"], run.state
    calls.assign_add([0, 1, 0, 0, 0])
    took_one = tf.equal(tf.cast(run.optimizer.iterations, tf.int64), tf.cast(kept["step"], tf.int64) + 1)
    in_turn = tf.logical_and(took_one, tf.equal(calls[0], calls[1]))
    state["order_is_kept"].assign(tf.logical_and(state["order_is_kept"], in_turn))
    if loss > 0.1:  # a tensor: decided in the graph
        state["mean"].assign(0.9 * state["mean"] + 0.1 * loss * kept["seen"])

def on_block(run, losses):
    run.state["calls"].assign_add([0, 0, 1, len(losses), 0])
    kernel = run.network.trainable_variables[0]
    kernel.assign(kernel * 0.99)

def on_checkpoint(arrays):
    with open(CALLS, "a") as file:
        file.write(f"{arrays['hook/calls'].tolist()} {arrays['hook/calls'].flags.writeable}\\n")

def after_checkpoint(saved):
    with open(CALLS, "a") as file:
        file.write(f"{saved.kind} {saved.step} {'hook/calls' in saved.paths}\\n")

def on_round_end(run):
    run.state["calls"].assign_add([0, 0, 0, 0, 1])
"""
)


@pytest.mark.covers("hook-api")
def test_hooks_are_called_in_order_and_what_they_remember_survives_resume_and_rebuild(tmp_path: Path) -> None:
    written = tmp_path / "calls.txt"
    trained_twice(tmp_path, module(f"CALLS = {str(written)!r}\n" + COUNTING), stops=(1, 2), exports=False)
    for version in (1, 2):
        stored = checkpoint.read(tmp_path / "cache" / "model" / str(version))
        arrays = stored.arrays
        before, after, blocks, losses, ends = (int(count) for count in arrays["hook/calls"])
        assert before == after == losses > blocks > 0, "a call for each step, a loss for each"
        assert (blocks, ends) == (4, 1), "two passes over two blocks, however often the round was stopped"
        assert arrays["hook/rounds"] == version, "carried from round to round; a resumed round does not begin again"
        assert arrays["hook/order_is_kept"], "before, the optimizer's step, after"
        assert arrays["hook/mean"].any()
    told = written.read_text().splitlines()
    assert len(told) >= 8, "at each resume point and at the end of each round"
    assert told[-2] == f"{arrays['hook/calls'].tolist()} False", (
        "on_checkpoint gets what is written, and cannot change it"
    )
    assert told[-1] == f"result {stored.state['step']} True", "after_checkpoint hears that it is"
    kinds = [line.split()[0] for line in told[1::2]]
    assert kinds == ["result", "resume_point", "resume_point", "result"], "each after its on_checkpoint"


@pytest.mark.covers("opt-builtin", "hook-api")
@pytest.mark.parametrize("execution", ["graph", "eager"])
def test_a_hook_between_gradients_and_optimizer_sees_the_ones_and_decides_what_the_other_takes(
    execution: str, tmp_path: Path
) -> None:
    hook = """
def hook_state(network):
    return {"seen": np.zeros((1, 1), np.float32)}

def on_gradients(run, gradients, variables):
    by_path = dict(zip([one.path for one in variables], gradients))
    run.state["seen"].assign(by_path["dense/kernel"])
    return [by_path["dense/kernel"] / 2.0, tf.zeros_like(by_path["dense/bias"])]
"""
    asked = {"batch_size": 48, "optimizer": {"name": "sgd", "learning_rate": 0.5}}
    model, examples = built(NET + hook, tmp_path, execution=execution, **asked)
    training = Training(model, seed=5)
    before: dict[str, Any] = {path: array.copy() for path, array in training.captured().items()}
    training.train_block(examples, pass_index=0, block_index=0)
    after: dict[str, Any] = dict(training.captured())
    x, y = examples.columns["x"].numpy().reshape(-1), examples.labels["late"].numpy().reshape(-1)
    error = 1 / (1 + np.exp(-(before["model/dense/kernel"][0, 0] * x + before["model/dense/bias"][0]))) - y
    slope = float(np.mean(error * x))
    np.testing.assert_allclose(after["hook/seen"], [[slope]], rtol=1e-5)
    np.testing.assert_allclose(after["model/dense/kernel"], before["model/dense/kernel"] - 0.5 * slope / 2, rtol=1e-5)
    np.testing.assert_array_equal(after["model/dense/bias"], before["model/dense/bias"])


@pytest.mark.covers("opt-builtin")
def test_a_hook_of_gradients_is_refused_where_it_would_see_others(tmp_path: Path) -> None:
    hook = "def on_gradients(run, gradients, variables):\n    return gradients"
    model, _ = built(NET + hook, tmp_path, mixed_precision="float16")
    with pytest.raises(DefinitionFailedError, match="on_gradients is a hook, and mixed_precision: float16 scales them"):
        Training(model, seed=5)


RAISING = "def HOOK:\n    raise ValueError('no')"
ASSERTING = """
def after_step(run, loss, kept):
    tf.debugging.assert_less(loss, -1.0, "the loss is not below -1")
"""


@pytest.mark.covers("hook-api")
@pytest.mark.parametrize(
    ("hook", "execution", "reason"),
    [
        (ASSERTING, "graph", "^net.py: after_step: .*the loss is not below -1"),
        (ASSERTING, "eager", "^net.py: after_step: .*the loss is not below -1"),
        (RAISING.replace("HOOK", "before_step(run, x, y)"), "graph", "^net.py: before_step: .*no .net.py, line 10"),
        (RAISING.replace("HOOK", "on_block(run, losses)"), "graph", "^net.py: on_block: ValueError: no .net.py"),
        ("def hook_state(network):\n    return {'a': 'word'}", "graph", "net.py: hook_state: a must be a number"),
        ("def on_gradients(run, g, v):\n    return g[:1]", "graph",
         r"on_gradients must return a list with a gradient for each variable, of shapes \[\(1, 1\), \(1,\)\], got"),
        ("def after_gradients(run): ...", "graph", r"did you mean on_gradients\?"),
        ("def hook_state(network):\n    return 3", "graph", "net.py: hook_state must return a dict"),
        ("def on_epoch_end(run): ...", "graph", r"nothing calls on_epoch_end\(\).*did you mean on_round_end\?"),
        ("def on_blok(run, losses): ...", "graph", r"nothing calls on_blok\(\).*did you mean on_block\?"),
        ("def before_steps(run, x, y): ...", "graph", r"nothing calls before_steps\(\); did you mean before_step\?"),
        ("def losses(labels, outputs): ...", "graph", r"nothing calls losses\(\); did you mean loss\?"),
        ("callbacks = [keras.callbacks.EarlyStopping()]", "graph", "nothing reads callbacks; what they do, hooks do"),
        (RAISING.replace("HOOK", "after_step(run, a, b)").replace("raise ValueError('no')", "run.stop()"), "graph",
         r"after_step: .*run.stop\(\) is for on_block"),
        ("def on_block(run, losses):\n    run.network.stop_training = True", "graph", r"ends a round by run.stop\(\)"),
        ("def on_round_end(): ...", "graph", r"net.py: on_round_end must take \(run\)"),
    ],
)  # fmt: skip
def test_a_hook_that_raises_or_that_nothing_calls_fails_by_its_name(
    hook: str, execution: str, reason: str, tmp_path: Path
) -> None:
    def trained() -> None:
        model, examples = built(NET + hook, tmp_path, execution=execution)
        Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)

    with pytest.raises(DefinitionFailedError, match=reason):
        trained()


@pytest.mark.covers("hook-api")
def test_a_hook_ends_its_round_behind_a_block_and_the_rest_is_left_out(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False)
    platform.append(events(120))
    stopping = (
        NET
        + """
def hook_state(network):
    return {"blocks": 0}

def on_block(run, losses):
    run.state["blocks"].assign_add(1)
    if run.state["blocks"] == 2:
        run.stop()
"""
    )
    lease = platform.lease(module(stopping))
    first = platform.train(lease, stop_requested=platform.after_blocks(1), resume_interval_seconds=0.0)
    assert isinstance(first, Stopped), first
    assert isinstance(platform.train(lease), Done)
    (version,) = platform.registry.versions
    course = version.environment["training"]
    assert course["ended_by"] == course["left_out"]["reason"] == "hook"
    assert 0 < course["left_out"]["examples"] == 120 - version.events_trained - version.events_held_out
    assert rebuilt(platform, lease, 1).weights_digest == version.weights_digest
