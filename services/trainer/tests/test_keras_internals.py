"""Each private attribute of Keras that is used, against what Keras does in public; and that no other file uses one."""

import inspect
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
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


def test_recurrence_leaves_cudnn_unless_a_layer_asks_for_it() -> None:
    """On a GPU the export of a GRU then has no CudnnRNN, for which a CPU has no kernel."""
    layers = [keras.layers.GRU(2), keras.layers.LSTM(2, use_cudnn=True), keras.layers.Dense(1)]
    internals.leave_cudnn(keras.Sequential(layers))
    assert [getattr(layer, "use_cudnn", None) for layer in layers] == [False, True, None]


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
