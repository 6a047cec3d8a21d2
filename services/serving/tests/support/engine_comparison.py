"""Compares the engine with TensorFlow's own way to call a signature: `python -m ...engine_comparison SAVED_MODELS`.

A process of its own, so that pytest's process stays free of TensorFlow. Prints {case: "" or the difference} as JSON.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from services.serving.engines import tensorflow_engine
from services.serving.options.model_options import REWRITERS, EngineOptions

Inputs = Mapping[str, np.ndarray]


def example(x: float, k: int | None) -> bytes:
    features = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[x]))}
    if k is not None:
        features["k"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[k]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def strings(*values: bytes) -> np.ndarray:
    return np.array(values, object)


CASES: list[tuple[str, str, Inputs]] = [
    ("affine/1", "serving_default", {"x": np.arange(12, dtype="f4").reshape(4, 3)}),
    ("affine/1", "serving_default", {"x": np.zeros((0, 3), "f4")}),
    ("network", "serving_default", {"x": np.linspace(-2, 2, 640, dtype="f4").reshape(10, 64)}),
    (
        "kinds",
        "serving_default",
        {
            "count": np.array([2**62, -1], "i8"),
            "word": strings(b"\xff\x00", b""),
            "point": np.array([[3, 4], [np.nan, 1]], "f4"),
        },
    ),
    ("lookup", "serving_default", {"word": strings(b"cat", b"unknown", b"ant")}),
    ("examples", "serving_default", {"examples": strings(example(1.5, 3), example(-1, None))}),
    ("shapes", "serving_default", {"x": np.array([1, 2, 4], "f4")}),
    ("shapes", "square", {"x": np.array(3, "f4")}),
    ("shapes", "distinct", {"x": np.array([5, 5, 1], "f4")}),
    ("checked", "serving_default", {"x": np.array([1, 2], "f4"), "steps": np.array([3, 0], "i8")}),
    ("v1_control_flow", "serving_default", {"x": np.array([1, -3], "f4")}),
]


def difference(ours: Inputs, theirs: Inputs) -> str:
    if ours.keys() != theirs.keys():
        return f"outputs {sorted(ours)} and {sorted(theirs)}"
    for name, array in ours.items():
        if (array.shape, array.dtype) != (theirs[name].shape, theirs[name].dtype):
            return f"{name}: {array.shape} {array.dtype} and {theirs[name].shape} {theirs[name].dtype}"
        if array.dtype == object:
            same = array.tolist() == theirs[name].tolist()
        else:
            same = bool(np.allclose(array, theirs[name], rtol=1e-6, equal_nan=True))
        if not same:
            return f"{name}: {array} and {theirs[name]}"
    return ""


def compare(directory: Path, signature: str, inputs: Inputs) -> str:
    ours = tensorflow_engine.load(directory, EngineOptions())
    theirs = tf.saved_model.load(str(directory))
    expected = theirs.signatures[signature](**{name: tf.constant(array) for name, array in inputs.items()})
    whole = difference(ours.run(signature, inputs), {name: value.numpy() for name, value in expected.items()})
    if whole:
        return whole
    name = sorted(expected)[-1]
    return difference(ours.run(signature, inputs, (name,)), {name: np.asarray(expected[name].numpy())})


def xla_operations(directory: Path) -> str:
    """Whether a call of an engine that compiles with XLA runs what XLA made; to be asked before any other session."""
    compiled = tensorflow_engine.load(directory, EngineOptions(is_xla=True))
    signature = compiled.signatures["serving_default"]
    metadata = config_pb2.RunMetadata()
    compiled._session.run(
        [spec.tensor_name for spec in signature.outputs.values()],
        {signature.inputs["x"].tensor_name: np.ones((2, 64), "f4")},
        options=config_pb2.RunOptions(output_partition_graphs=True),
        run_metadata=metadata,
    )
    operations = {node.op for graph in metadata.partition_graphs for node in graph.node}
    return "" if "_XlaRun" in operations else f"the operations are {sorted(operations)}"


def without_rewriters(directory: Path) -> str:
    """Whether a session is told to leave rewriters out, says so, and answers as another one does."""
    ours = tensorflow_engine.load(directory, EngineOptions(rewriters_off=("constant_folding", "remapping")))
    options = ours._session._config.graph_options.rewrite_options
    off = [name for name in REWRITERS if getattr(options, name) == rewriter_config_pb2.RewriterConfig.OFF]
    if ours.kind != f"{tensorflow_engine.SINGLE_THREADED}, without constant_folding, remapping" or len(off) != 2:
        return f"{ours.kind}, and off are {off}"
    inputs: Inputs = {"x": np.ones((2, 64), "f4")}
    usual = tensorflow_engine.load(directory, EngineOptions())
    return difference(ours.run("serving_default", inputs), usual.run("serving_default", inputs))


def threads(directory: Path) -> str:
    """Whether the threads that are asked for are those of the session."""
    config = tensorflow_engine.load(directory, EngineOptions(intra_op_threads=3, inter_op_threads=2))._session._config
    found = (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads, config.use_per_session_threads)
    return "" if found == (3, 2, True) else f"the session has {found}"


if __name__ == "__main__":
    saved_models = Path(sys.argv[1])
    results = {"compiled with XLA": xla_operations(saved_models / "network")}
    results |= {"without rewriters": without_rewriters(saved_models / "network")}
    results |= {"threads": threads(saved_models / "network")}
    results |= {
        f"{number} {model} {signature}": compare(saved_models / model, signature, inputs)
        for number, (model, signature, inputs) in enumerate(CASES)
    }
    print(json.dumps(results))
