"""Hooks of a module: when they are called, what they remember, and what happens when one raises."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidInput
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import checkpoint
from services.trainer.learn.training import Training
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.shards.team import Team
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
    asked: dict[str, Any] = {"batch_size": 48, "optimizer": {"name": "sgd", "learning_rate": 0.5}}
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
    platform = Platform(tmp_path, exports=False).append(events(120))
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


CLASSES = """
import keras
import tensorflow as tf

class Audit:
    def __init__(self, path, factor=1):
        self.path, self.factor = path, factor

    def note(self, what):
        with open(self.path, "a") as file:
            file.write(f"{type(self).__name__} {what}\\n")

    def on_round_begin(self, run):
        self.note("begin")

    def before_step(self, run, features, labels):
        return {"rows": tf.size(labels), "x": tf.reduce_sum(features["x"])}

    def on_block(self, run, losses):
        self.note(f"block {len(losses)}")

    def on_checkpoint(self, arrays):
        self.note(f"checkpoint {'hook/Summed.rows' in arrays}")

    def on_round_end(self, run):
        self.note("end")

class Summed(Audit):
    def hook_state(self, network):
        return {"rows": 0, "x": 0.0}

    def after_step(self, run, loss, kept):
        run.state["rows"].assign_add(tf.cast(kept["rows"], run.state["rows"].dtype) * self.factor)
        run.state["x"].assign_add(kept["x"])

class Halving:
    def on_gradients(self, run, gradients, variables):
        return [one / 2.0 for one in gradients]

class Stopping:
    def on_block(self, run, losses):
        run.stop()

class Asserting:
    def after_step(self, run, loss, kept):
        tf.debugging.assert_less(loss, -1.0, "the loss is not below -1")

class Misspelt:
    def on_blok(self, run, losses): ...

class Idle:
    def look(self): ...

class Watching(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_begin(self, logs=None):
        self.seen = [self.model.name]

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, logs["loss"], float(self.model.optimizer.learning_rate)))
        self.model.stop_training = epoch == 1

    def on_train_end(self, logs=None):
        with open(self.path, "w") as file:
            file.write(repr(self.seen))

class Batchwise(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None): ...
"""


def hooks_by_class(path: Path) -> list[Any]:
    arguments = {"path": str(path)}
    return [
        {"class": "audit.Summed", "arguments": arguments | {"factor": 3}},
        {"class": "audit.Audit", "arguments": arguments, "chief_only": True},
    ]


@pytest.mark.covers("hook-api", "ckpt-save")
def test_functions_and_classes_are_called_in_order_and_what_they_remember_survives_resume_and_rebuild(
    tmp_path: Path,
) -> None:
    written, noted = tmp_path / "calls.txt", tmp_path / "noted.txt"
    asked = {"batch_size": 8, "passes": 2, "hooks": hooks_by_class(noted)}
    source = f"CALLS = {str(written)!r}\n" + COUNTING
    platform = trained_twice(tmp_path, module(source, training=asked, audit_py=CLASSES), exports=False)
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
    assert len(told) == 6, "at the resume point and at the end of each round"
    assert told[-2] == f"{arrays['hook/calls'].tolist()} False", (
        "on_checkpoint gets what is written, and cannot change it"
    )
    assert told[-1] == f"result {stored.state['step']} True", "after_checkpoint hears that it is"
    kinds = [line.split()[0] for line in told[1::2]]
    assert kinds == ["result", "resume_point", "result"], "each after its on_checkpoint"

    trained = sum(one.events_trained for one in platform.registry.versions)
    assert arrays["hook/Summed.rows"] == 3 * 2 * trained, "three times each event, twice in each of two rounds"
    assert arrays["hook/Summed.x"].any()
    lines = [line for line in noted.read_text().splitlines() if line.startswith("Audit")]
    words = [line.split()[1] for line in lines]
    assert (words[0], words.count("begin"), words.count("block")) == ("begin", 3, 12), "two rounds and the rebuild"
    assert words.count("end") == 3
    assert "Audit checkpoint True" in lines, "the state of the other class is in it"


@pytest.mark.covers("hook-api")
def test_a_class_for_the_chief_alone_is_called_in_no_other_process(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = tmp_path / f"{rank}.txt"
        model, examples = built(NET, tmp_path, audit=CLASSES, batch_size=16, hooks=hooks_by_class(path))
        training = Training(model, seed=5, team=Team(rank=rank))
        training.begin_round()
        training.train_block(examples, pass_index=0, block_index=0)
        assert training.captured()["hook/Summed.rows"] == 3 * 48
        assert training.captured()["hook/Summed.x"] == pytest.approx(examples.columns["x"].numpy().sum(), abs=1e-4)
        both = ["Summed begin", "Audit begin", "Summed block 3", "Audit block 3"]
        assert path.read_text().splitlines() == [line for line in both if rank == 0 or line.startswith("Summed")]


@pytest.mark.covers("hook-api")
def test_gradients_go_from_hook_to_hook(tmp_path: Path) -> None:
    moves: list[Any] = []
    for hooks in ([], ["audit.Halving"]):
        own = "\ndef on_gradients(run, gradients, variables):\n    return [one / 2.0 for one in gradients]\n"
        asked = {"batch_size": 48, "optimizer": {"name": "sgd", "learning_rate": 0.5}, "hooks": hooks}
        model, examples = built(NET + own * bool(hooks), tmp_path, audit=CLASSES, **asked)
        training = Training(model, seed=5)
        kernel = training.model.network.trainable_variables[0]
        before = kernel.numpy()
        training.train_block(examples, pass_index=0, block_index=0)
        moves.append(kernel.numpy() - before)
    np.testing.assert_allclose(moves[1], moves[0] / 4, rtol=1e-4)


@pytest.mark.covers("hook-api")
def test_a_keras_callback_is_called_with_a_round_as_its_training_and_blocks_as_its_epochs(tmp_path: Path) -> None:
    hooks = [{"class": "audit.Watching", "arguments": {"path": str(tmp_path / "seen")}}]
    optimizer = {"name": "sgd", "learning_rate": 0.25}
    model, examples = built(NET, tmp_path, audit=CLASSES, batch_size=16, hooks=hooks, optimizer=optimizer)
    training = Training(model, seed=5)
    training.begin_round()
    losses, stopped = list[float](), list[bool]()
    for index in range(2):
        losses.append(float(training.train_block(examples, pass_index=0, block_index=index).mean()))
        stopped.append(training._hooks.is_stopped)
    assert training.captured()["hook/Watching.block"] == 2, "kept in a resume point"
    training.end_round()
    name, *seen = ast.literal_eval((tmp_path / "seen").read_text())
    assert (name, stopped) == (model.network.name, [False, True])
    assert seen == [(0, pytest.approx(losses[0]), 0.25), (1, pytest.approx(losses[1]), 0.25)]
    assert not hasattr(model.network, "optimizer"), "it would be exported"


@pytest.mark.covers("hook-api")
def test_a_callback_of_kerass_lowers_the_rate_of_an_optimizer_that_the_module_compiles(tmp_path: Path) -> None:
    plateau = "from keras.callbacks import ReduceLROnPlateau"
    asked = {"monitor": "loss", "factor": 0.5, "patience": 1, "min_delta": 1e9}
    compiled = (
        NET.replace("return keras", "net = keras") + "    net.compile(keras.optimizers.SGD(0.25))\n    return net\n"
    )
    hooks = [{"class": "audit.ReduceLROnPlateau", "arguments": asked}]
    model, examples = built(compiled, tmp_path, audit=plateau, batch_size=16, hooks=hooks)
    training = Training(model, seed=5)
    training.begin_round()
    for index in range(3):
        training.train_block(examples, pass_index=0, block_index=index)
    assert training.rates(np.ones(1, np.int64)) == [0.25 / 4], "a first block is no plateau"


@pytest.mark.covers("hook-api")
@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("audit.Asserting", r"^audit.py: Asserting.after_step: .*the loss is not below -1"),
        ({"class": "audit.Stopping", "chief_only": True}, "Stopping.on_block: .*a hook of the chief alone cannot end"),
        ({"class": "audit.Halving", "chief_only": True}, "Halving is for the chief alone, and on_gradients changes"),
        ("audit.Misspelt", r"nothing calls on_blok\(\).*did you mean on_block\?"),
        ("audit.Batchwise", "Batchwise is a Keras callback with on_train_batch_end; a round calls on_train_begin, "),
        ("audit.Idle", "Idle has none of the hooks hook_state, on_round_begin"),
        ("audit.Summed", r"Summed: TypeError: .*'path'"),
        ("audit.Gone", "names its class Gone, which it lacks"),
        ("other.Audit", "other.Audit is a class of other.py, which the definition lacks"),
        ("Audit", "class must be file.Class, got 'Audit'"),
        ({"class": "audit.Audit", "chief": True}, "chief_only"),
    ],
)
def test_a_class_that_fails_or_that_nothing_could_call_is_refused_by_its_name(
    hook: Any, words: str, tmp_path: Path
) -> None:
    def trained() -> None:
        model, examples = built(NET, tmp_path, audit=CLASSES, hooks=[hook])
        Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)

    with pytest.raises((DefinitionFailedError, InvalidInput), match=words):
        trained()
