"""The model that is served, and its bare cost: a 64-128-128-10 network, the one the recorded figures were taken with.

python -m benchmarks.serving_load.model save DIR [UNITS...] writes the SavedModel; units: of the input and hidden layers
python -m benchmarks.serving_load.model reference DIR OUT  writes 64 inputs and the outputs that TensorFlow gives (.npz)
python -m benchmarks.serving_load.model time DIR B [B...]  prints {batch size: seconds per call} of the runner's engine
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

INPUTS = 64
_UNITS = (INPUTS, 128, 128)
_OUTPUTS = 10
_SECONDS_PER_BATCH_SIZE = 0.5
_REPEATS = 5


def save(directory: Path, units: Sequence[int] = _UNITS) -> None:
    """A dense network with 10 outputs; `units`: of its input and its hidden layers."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(7)
    x = hidden = keras.Input((units[0],), name="x", dtype="float32")
    for of_layer in units[1:]:
        hidden = keras.layers.Dense(of_layer, activation="relu")(hidden)
    y = keras.layers.Dense(_OUTPUTS, activation="softmax", name="y")(hidden)
    signature = [tf.TensorSpec([None, units[0]], tf.float32, name="x")]
    keras.Model(x, y).export(str(directory), input_signature=signature, verbose=False)


def saved(directory: Path, units: Sequence[int] = _UNITS) -> Path:
    """`save` in a process without a GPU; returns the directory."""
    command = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(directory), *map(str, units)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command, env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)
    return directory


def seconds_per_call(directory: Path, batch_sizes: list[int]) -> dict[int, float]:
    """The median of five repeats, by batch size, through the engine that a runner uses."""
    from services.serving.engines import tensorflow_engine
    from services.serving.options.model_options import EngineOptions

    model = tensorflow_engine.load(directory, EngineOptions())
    found = {}
    for batch_size in batch_sizes:
        x = np.random.default_rng(1).standard_normal((batch_size, INPUTS)).astype(np.float32)
        repeats = []
        for _ in range(_REPEATS):
            calls, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < _SECONDS_PER_BATCH_SIZE / _REPEATS:
                model.run("serving_default", {"x": x})
                calls += 1
            repeats.append(elapsed / calls)
        found[batch_size] = sorted(repeats)[_REPEATS // 2]
    return found


def write_body(path: Path) -> Path:
    """A predict call of one row, as JSON; returns the path."""
    row = np.random.default_rng(1).standard_normal(INPUTS).astype(np.float32)
    path.write_text(json.dumps({"instances": [[float(f"{value:.9g}") for value in row]]}))
    return path


def reference(directory: Path, out: Path) -> None:
    """inputs: float32 [64, 64], whose decimal texts are short; outputs: float32 [64, 10], row by row."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(directory))
    signature = loaded.signatures["serving_default"]
    inputs = np.random.default_rng(2).integers(-2000, 2000, (64, INPUTS)).astype(np.float32) / 1024
    outputs = [next(iter(signature(x=tf.constant(row[None])).values())).numpy()[0] for row in inputs]
    np.savez(out, inputs=inputs, outputs=np.array(outputs))


def main() -> None:
    command, directory, *rest = sys.argv[1:]
    if command == "save":
        save(Path(directory), [int(units) for units in rest] or _UNITS)
    elif command == "reference":
        reference(Path(directory), Path(rest[0]))
    else:
        print(json.dumps(seconds_per_call(Path(directory), [int(size) for size in rest])))


if __name__ == "__main__":
    main()
