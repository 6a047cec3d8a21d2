"""Each private attribute of Keras that is used, against what Keras does in public; and that no other file uses one."""

import inspect
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer import keras_internals as internals

NAMES = sorted(set(re.findall(r"\.(_[a-z]\w+)|\"(_[a-z]\w+)\"", inspect.getsource(internals))))
PRIVATE = [one or other for one, other in NAMES]


def test_no_other_file_of_the_trainer_uses_a_private_attribute_of_keras() -> None:
    used = re.compile(rf"(?<!self)(?<!cls)\.({'|'.join(PRIVATE)})\b|attr\([^)]*\"({'|'.join(PRIVATE)})\"")
    own = Path(inspect.getfile(internals))
    files = [path for path in own.parent.rglob("*.py") if path != own and "tests" not in path.parts]
    assert len(files) > 100
    lines = [(path.name, line.strip()) for path in files for line in path.read_text().splitlines()]
    found = [f"{name}: {line}" for name, line in lines if used.search(line)]
    assert found == []
    assert len(PRIVATE) >= 20


@pytest.fixture
def network() -> Any:
    inputs = keras.Input((3,), name="x")
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="first")], name="inner")
    return keras.Model(inputs, keras.layers.Dense(1, name="last")(inner(inputs)), name="whole")


def test_layers_weights_and_calls(network: Any) -> None:
    assert {layer.name for layer in internals.layers_of(network)} >= {"x", "inner", "first", "last"}
    assert network not in internals.layers_of(network)
    assert network in internals.layers_of(network, include_self=True)
    last = network.get_layer("last")
    last.trainable = False
    assert last.trainable_variables == []
    assert internals.weights_of(last) == last.weights
    nodes = internals.nodes_of(network) or []
    assert [node.operation.name for node in nodes] == ["x", "inner", "last"]
    assert [node.is_input for node in nodes] == [True, False, False]
    assert internals.node_of(network.output).operation is last
    assert internals.nodes_of(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])) is not None

    class Subclassed(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    assert internals.nodes_of(Subclassed()) is None


def test_what_layers_hold() -> None:
    dense, table = keras.layers.Dense(2), keras.layers.Embedding(4, 3)
    dense.build((None, 3))
    table.build()
    assert internals.kernel_of(dense) is dense.weights[0]
    assert internals.table_of(table) is table.weights[0]
    convolution = keras.layers.DepthwiseConv1D(2)
    convolution.build((None, 4, 3))
    assert internals.kernel_of(convolution) is convolution.weights[0]
    text = keras.layers.TextVectorization(vocabulary=["a", "b"])
    assert internals.lookup_of(text).get_vocabulary() == text.get_vocabulary()
    seen: list[bool] = []

    class Asking(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(internals.is_training(self))
            return x

    for training in (True, False):
        Asking()(tf.ones([1]), training=training)
    assert seen == [True, False]
    with pytest.raises(ValueError, match="cannot add new elements"):
        dense.add_weight(name="late", shape=())
    with internals.taking_state(dense):
        dense.add_weight(name="late", shape=())
    with pytest.raises(ValueError, match="cannot add new elements"):
        dense.add_weight(name="later", shape=())


def test_recurrence_leaves_cudnn_unless_a_layer_asks_for_it() -> None:
    """On a GPU the export of a GRU then has no CudnnRNN, for which a CPU has no kernel."""
    layers = [keras.layers.GRU(2), keras.layers.LSTM(2, use_cudnn=True), keras.layers.Dense(1)]
    internals.leave_cudnn(keras.Sequential(layers))
    assert [getattr(layer, "use_cudnn", None) for layer in layers] == [False, True, None]


def test_compiled_metrics(network: Any) -> None:
    assert not internals.has_compiled_metrics(network)
    network.compile(loss="mse")
    assert not internals.has_compiled_metrics(network)
    network.compile(loss="mse", metrics=["mae"])
    assert internals.has_compiled_metrics(network)


def built(kind: Any, **options: Any) -> tuple[Any, list[keras.Variable]]:
    variables = [keras.Variable(np.ones(size, np.float32), name=f"v{n}") for n, size in enumerate((2, 3))]
    optimizer = kind(**options)
    optimizer.build(variables)
    return optimizer, variables


def applied(optimizer: Any, variables: list[keras.Variable], value: float = 1.0) -> None:
    optimizer.apply([tf.fill(one.shape, value) for one in variables], variables)


def test_steps_slots_and_averages() -> None:
    optimizer, variables = built(keras.optimizers.SGD, learning_rate=0.5, gradient_accumulation_steps=2, use_ema=True,
                                 ema_momentum=0.9)  # fmt: skip
    for _ in range(3):
        applied(optimizer, variables)
    assert (int(internals.calls_of(optimizer)), int(optimizer.iterations)) == (3, 1)
    assert internals.taught_by(optimizer) == variables
    assert [internals.place_of(optimizer, one) for one in variables] == [0, 1]
    averages = [one.numpy() for one in internals.averages_of(optimizer)]
    optimizer.finalize_variable_values(variables)  # Keras's own way to put the averages into the variables
    for variable, average in zip(variables, averages, strict=True):
        np.testing.assert_array_equal(variable.numpy(), average)
    free, variables = built(keras.optimizers.ScheduleFreeAdamW, learning_rate=0.5)
    assert [one.shape for one in internals.momentums_of(free)] == [one.shape for one in variables]
    assert {id(one) for one in internals.momentums_of(free)} <= {id(one) for one in free.variables}
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    scaled.build(variables)
    own = {id(one) for one in internals.own_variables(scaled)}
    assert own == {id(one) for one in scaled.variables} - {id(one) for one in scaled.inner_optimizer.variables}


def test_a_variable_has_the_path_that_it_is_given_and_slots_are_named_after_it() -> None:
    variable = keras.Variable(np.ones(2, np.float32), name="v")
    internals.name_variable(variable, "a/kernel")
    assert variable.path == "a/kernel"
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build([variable])
    assert any("a_kernel" in one.path for one in optimizer.variables)


def test_rates_decay_and_clipping() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 10)
    assert internals.rate_of(keras.optimizers.SGD(schedule)) is schedule
    optimizer, variables = built(keras.optimizers.AdamW, learning_rate=0.5, weight_decay=0.1)
    optimizer, (one, other) = keras.optimizers.AdamW(0.0, weight_decay=0.1), variables
    assert not internals.excludes_from_decay(optimizer)
    optimizer.exclude_from_weight_decay(var_names=["v1"])
    assert internals.excludes_from_decay(optimizer)
    optimizer.build(variables)
    assert [internals.decays(optimizer, each) for each in (one, other)] == [True, False]
    decayed: list[str] = []
    internals.decay_by(optimizer, lambda given: decayed.extend(each.name for each in given))
    applied(optimizer, variables)
    assert decayed == ["v0", "v1"]
    np.testing.assert_array_equal(one.numpy(), [1.0, 1.0])
    clipped, variables = built(keras.optimizers.SGD, learning_rate=1.0)
    internals.clip_by(clipped, lambda gradients: [gradient / 4.0 for gradient in gradients])
    applied(clipped, variables)
    np.testing.assert_allclose(variables[0].numpy(), [0.75, 0.75])


def _draws() -> list[Any]:
    vector = keras.layers.Dense(2)
    vector.build((None, 3))
    return [vector.kernel.numpy().tolist(), keras.random.uniform(()).numpy(), np.random.rand(), vector.name]


def test_the_beginning_from_a_seed_is_that_of_keras_but_kernels_go_on() -> None:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    expected = _draws()
    drawing = tf.function(lambda: tf.random.uniform([], seed=1))  # its kernel counts what it has drawn
    drawn = [float(drawing()), float(drawing())]
    internals.start_from_seed(7)
    assert _draws() == expected
    assert float(drawing()) not in drawn
    keras.utils.set_random_seed(7)
    assert float(drawing()) == drawn[0]
