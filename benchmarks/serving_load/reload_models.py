"""The versions that benchmarks/reload.py changes between.

    python -m benchmarks.serving_load.reload_models SIZE COUNT DIR [PROGRAMS]    writes DIR/0 ... DIR/<COUNT - 1>

small: a 64-128-128-10 network, 0.1 MB. large: the same behind a table of 300 MB, of which a prediction reads one row.
"""

import functools
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

INPUTS = 64
SIZES = ("small", "large")
_LARGE_BYTES = 300 * 10**6


def save(size: str, count: int, directory: Path, *, programs: int = 1) -> None:
    """`count` SavedModels, each with its own weights; the first `programs` of them have their own programs, too,
    and the others that of the first."""
    import tensorflow as tf

    from services.trainer.export import state

    for seed in range(count):
        target = directory / str(seed)
        module = _module(size, seed)
        if seed < programs:
            predict = functools.partial(_predict, module.kernels, getattr(module, "table", None))
            signature = tf.function(predict, input_signature=[tf.TensorSpec([None, INPUTS], tf.float32, name="x")])
            tf.saved_model.save(module, str(target), signatures=signature)
            continue
        shutil.copytree(directory / "0", target, ignore=shutil.ignore_patterns("variables"))
        values = {f"kernels/{index}": kernel for index, kernel in enumerate(module.kernels)}
        values |= {"table": module.table} if hasattr(module, "table") else {}
        named = {f"{name}/.ATTRIBUTES/VARIABLE_VALUE": value for name, value in values.items()}
        state.write(target, named, state.object_graph_of(directory / "0"))


def _module(size: str, seed: int) -> Any:
    import tensorflow as tf

    module = tf.Module()
    module.kernels = [
        tf.Variable(tf.random.stateless_normal(shape, (seed, shape[0])) * 0.1)
        for shape in itertools.pairwise((INPUTS, 128, 128, 10))
    ]
    if size == "large":
        rows = _LARGE_BYTES // (4 * INPUTS)
        module.table = tf.Variable(tf.random.stateless_uniform((rows, INPUTS), (seed, 0)))
    return module


def _predict(kernels: list[Any], table: Any, x: Any) -> dict[str, Any]:
    import tensorflow as tf

    if table is not None:
        x += tf.gather(table, tf.cast(tf.abs(x[:, 0]) * 1000, tf.int32))
    for kernel in kernels[:-1]:
        x = tf.nn.relu(x @ kernel)
    return {"y": tf.nn.softmax(x @ kernels[-1])}


if __name__ == "__main__":
    save(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), programs=int(sys.argv[4]) if len(sys.argv) > 4 else 1)
