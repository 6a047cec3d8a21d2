"""One SavedModel whose signatures cover the contract, and what TensorFlow itself answers to the test's calls.

contract_model DIRECTORY < CALLS > ANSWERS, started by `lean_command`
CALLS: JSON [[signature, {input: nested list}]]; ANSWERS: JSON [{output: [shape, flat list]}].
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
ECHOED = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "string", "complex64", "complex128",
)  # fmt: skip
CLASSIFY, REGRESS, PREDICT = (f"tensorflow/serving/{name}" for name in ("classify", "regress", "predict"))
Tensors = dict[str, Any]


def _signature(inputs: Tensors, outputs: Tensors, method: str = PREDICT) -> Any:
    infos = [{name: v1.saved_model.build_tensor_info(t) for name, t in side.items()} for side in (inputs, outputs)]
    return v1.saved_model.build_signature_def(*infos, method)


def _predict_signatures() -> dict[str, Any]:
    signatures = {}
    for name in ECHOED:
        x = v1.placeholder(getattr(tf, name), None)
        signatures[f"echo_{name}"] = _signature({"x": x}, {"y": tf.identity(x)})
    x = v1.placeholder(tf.float32, [None, 3])
    signatures["serving_default"] = _signature({"x": x}, {"y": tf.reduce_sum(x, axis=-1)})
    a, b, c = (
        v1.placeholder(t, shape) for t, shape in ((tf.int64, [None]), (tf.string, [None]), (tf.float32, [None, 2]))
    )
    joined = tf.strings.join([b, tf.strings.as_string(a)], "-")
    several = {"doubled": a * 2, "joined": joined, "joined_bytes": joined, "halves": c / 2}
    signatures["several"] = _signature({"a": a, "b": b, "c": c}, several)
    x, y = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.float32, [None])
    signatures["divide"] = _signature({"x": x, "y": y}, {"quotient": x / y})
    with_default = signatures["divide_by_two"] = _signature({"x": x, "y": y}, {"quotient": x / y})
    with_default.defaults["y"].CopyFrom(tf.make_tensor_proto([2.0]))
    # Its rows depend on those before them: it shows whether a request was cut.
    signatures["running"] = _signature({"x": x}, {"sum": tf.cumsum(x), "count": tf.fill([tf.size(x)], tf.size(x))})
    signatures["mean"] = _signature({"x": x}, {"mean": tf.reduce_mean(x)})
    signatures["sizes"] = _signature({"x": x}, {"whole": x, "two": x[:2]})
    f = v1.placeholder(tf.float32, [2, 2])
    signatures["fixed"] = _signature({"x": f}, {"y": tf.linalg.matmul(f, f)})
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x >= 0), ["must not be negative"])]):
        signatures["checked"] = _signature({"x": x}, {"y": tf.sqrt(x)})
    # Two that no request can feed; they take no other with them.
    sparse = v1.sparse_placeholder(tf.float32, [None, 3])
    signatures["sparse"] = _signature({"x": sparse}, {"y": tf.sparse.to_dense(sparse)})
    signatures["one_tensor_twice"] = _signature({"x": x, "y": x}, {"z": x * 2})
    path = v1.placeholder(tf.string, [])
    signatures["file"] = _signature({"path": path}, {"content": tf.io.read_file(path)})
    return signatures


def _example_signatures() -> dict[str, Any]:
    inputs = v1.placeholder(tf.string, [None])
    spec = {"x": tf.io.FixedLenFeature([], tf.float32), "k": tf.io.FixedLenFeature([], tf.int64, 7)}
    spec["s"] = tf.io.FixedLenFeature([], tf.string, "")
    parsed = tf.io.parse_example(inputs, spec)
    x, k = parsed["x"], tf.cast(parsed["k"], tf.float32)
    scores = tf.stack([x, k], axis=1)
    classes = tf.stack([parsed["s"], tf.fill(tf.shape(x), "other")], axis=1)
    given = {"inputs": inputs}
    other = v1.placeholder(tf.float32, [None])
    return {
        "examples": _signature(given, {"x": x, "k": parsed["k"], "s": parsed["s"]}),
        "classify": _signature(given, {"classes": classes, "scores": scores}, CLASSIFY),
        "classification": _signature(given, {"classes": classes, "scores": scores}, CLASSIFY),
        "regression": _signature(given, {"outputs": x * 2}, REGRESS),
        "classify_scores": _signature(given, {"scores": scores}, CLASSIFY),
        "classify_classes": _signature(given, {"classes": classes}, CLASSIFY),
        "classify_flat": _signature(given, {"scores": x}, CLASSIFY),
        "classify_double": _signature(given, {"scores": tf.cast(scores, tf.float64)}, CLASSIFY),
        "classify_numbers": _signature(given, {"classes": scores}, CLASSIFY),
        "classify_first": _signature(given, {"scores": scores[:1]}, CLASSIFY),
        "classify_wide": _signature(given, {"classes": classes, "scores": scores[:, :1]}, CLASSIFY),
        "classify_other": _signature(given, {"y": scores}, CLASSIFY),
        "classify_three": _signature(given, {"classes": classes, "scores": scores, "y": x}, CLASSIFY),
        "named_x": _signature({"x": inputs}, {"scores": scores, "outputs": x}, CLASSIFY),
        "regress_named_x": _signature({"x": inputs}, {"outputs": x}, REGRESS),
        "two_inputs": _signature({"inputs": inputs, "other": other}, {"outputs": x}, REGRESS),
        "regress": _signature(given, {"outputs": x * 2}, REGRESS),
        "regress_column": _signature(given, {"outputs": scores[:, 1:]}, REGRESS),
        "regress_wide": _signature(given, {"outputs": scores}, REGRESS),
        "regress_int": _signature(given, {"outputs": parsed["k"]}, REGRESS),
        "regress_first": _signature(given, {"outputs": x[:1]}, REGRESS),
        "regress_other": _signature(given, {"y": x}, REGRESS),
    }


def build(directory: Path) -> None:
    with v1.Graph().as_default(), v1.Session() as session:
        signatures = _predict_signatures() | _example_signatures()
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING], signatures)
        builder.save()


def answers(directory: Path, calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What TensorFlow answers: a plain session, nothing of ours."""
    found = []
    with v1.Session(graph=tf.Graph()) as session:
        graph = v1.saved_model.load(session, [tf.saved_model.SERVING], str(directory))
        for signature, inputs in calls:
            definition = graph.signature_def[signature]
            infos = {name: definition.inputs[name] for name in inputs}
            types = {name: tf.as_dtype(info.dtype).as_numpy_dtype for name, info in infos.items()}
            feed = {info.name: np.array(inputs[name], types[name]) for name, info in infos.items()}
            fetched = session.run({name: info.name for name, info in definition.outputs.items()}, feed)
            found.append({name: _plain(value) for name, value in fetched.items()})
    return found


def _plain(value: Any) -> Any:
    array = np.array(value, object) if isinstance(value, bytes) else np.asarray(value)
    return [array.shape, [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]]


def main() -> None:
    build(Path(sys.argv[1]))
    json.dump(answers(Path(sys.argv[1]), json.load(sys.stdin)), sys.stdout)
