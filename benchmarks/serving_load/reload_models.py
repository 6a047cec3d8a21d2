"""The versions that benchmarks/reload.py changes between.

    python -m benchmarks.serving_load.reload_models SIZE COUNT DIR    writes DIR/0 ... DIR/<COUNT - 1>

small: a 64-128-128-10 network, 0.1 MB. large: the same behind a table of 300 MB, of which a prediction reads one row.
"""

import functools
import itertools
import sys
from pathlib import Path
from typing import Any

INPUTS = 64
SIZES = ("small", "large")
_LARGE_BYTES = 300 * 10**6


def save(size: str, count: int, directory: Path) -> None:
    """`count` SavedModels, each with weights of its own."""
    import tensorflow as tf

    for seed in range(count):
        module = tf.Module()
        module.kernels = [
            tf.Variable(tf.random.stateless_normal(shape, (seed, shape[0])) * 0.1)
            for shape in itertools.pairwise((INPUTS, 128, 128, 10))
        ]
        if size == "large":
            rows = _LARGE_BYTES // (4 * INPUTS)
            module.table = tf.Variable(tf.random.stateless_uniform((rows, INPUTS), (seed, 0)))
        predict = functools.partial(_predict, module.kernels, getattr(module, "table", None))
        signature = tf.function(predict, input_signature=[tf.TensorSpec([None, INPUTS], tf.float32, name="x")])
        tf.saved_model.save(module, str(directory / str(seed)), signatures=signature)


def _predict(kernels: list[Any], table: Any, x: Any) -> dict[str, Any]:
    import tensorflow as tf

    if table is not None:
        x += tf.gather(table, tf.cast(tf.abs(x[:, 0]) * 1000, tf.int32))
    for kernel in kernels[:-1]:
        x = tf.nn.relu(x @ kernel)
    return {"y": tf.nn.softmax(x @ kernels[-1])}


if __name__ == "__main__":
    save(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
