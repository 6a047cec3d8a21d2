"""A version's graph of constants: as it is, or rewritten for speed by passes of TensorFlow's Grappler.

question   {"model": a SavedModel's folder, "target": folder} and, to rewrite it, "passes": [...] by their names there;
           to freeze it, "outputs": names of serving_default, none for all
answer     {"nodes_before", "nodes_after", "operations_before", "operations_after", "largest_difference", "rows"}, and
           "passes" or "outputs"; nodes before freezing are those of the SavedModel and of the functions in it
target/    frozen_graph.pb and tensors.json (converting.py), report.json: the answer
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, saved_model_pb2
from tensorflow.python.grappler import tf_optimizer

from common.suggestions import did_you_mean
from services.trainer.export import tapping
from services.trainer.export.arrays import Arrays
from services.trainer.export.converting import SIGNATURE, NotMadeError, answers_of, make

PASSES = (
    "pruning", "function", "constfold", "arithmetic", "dependency", "remap", "shape", "common_subgraph_elimination",
)  # fmt: skip
_LARGEST_DIFFERENCE = 1e-5
_FROZEN_DIFFERENCE = 1e-6
"""Relative to the largest answer where that is above 1."""


def optimize(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises NotMadeError: not a graph of constants, an unknown pass, or it then answers otherwise."""
    model, target, passes = Path(question["model"]), Path(question["target"]), tuple(question["passes"])
    if unknown := [name for name in passes if name not in PASSES]:
        raise NotMadeError(f"there is no pass {', '.join(unknown)}, expected some of {', '.join(PASSES)}")
    rows = _rows(model)
    expected = make("frozen", model, target, rows)(rows)
    path = target / "frozen_graph.pb"
    before = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    tensors = json.loads((target / "tensors.json").read_text())
    after = _rewritten(before, list(tensors["inputs"].values()), list(tensors["outputs"].values()), passes)
    path.write_bytes(after.SerializeToString(deterministic=True))
    got = answers_of(after, tensors, rows)
    difference = _difference(expected, got)
    if not difference <= _LARGEST_DIFFERENCE:
        raise NotMadeError(f"the rewritten graph answers otherwise, by up to {difference:.3g}")
    return _reported(target, rows, before.node, after.node, difference, passes=list(passes))


def freeze(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises NotMadeError: not a graph of constants, an unknown output, or it then answers otherwise."""
    model, target, outputs = Path(question["model"]), Path(question["target"]), list(question["outputs"])
    rows = _rows(model)
    loaded = tf.saved_model.load(str(model))
    function = loaded.signatures[SIGNATURE]
    if unknown := [name for name in outputs if name not in function.structured_outputs]:
        known = list(function.structured_outputs)
        raise NotMadeError(f"there is no output {unknown[0]!r}: {', '.join(known)}{did_you_mean(unknown, known)}")
    found = function(**{name: tf.constant(value) for name, value in rows.items()})
    make("frozen", model, target, rows)
    path, written = target / "frozen_graph.pb", json.loads((target / "tensors.json").read_text())
    tensors = {name: tensor for name, tensor in written["outputs"].items() if name in (outputs or written["outputs"])}
    whole = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    graph = tf.compat.v1.graph_util.extract_sub_graph(whole, [tensor.partition(":")[0] for tensor in tensors.values()])
    kept = {node.name for node in graph.node}
    inputs = {name: tensor for name, tensor in written["inputs"].items() if tensor.partition(":")[0] in kept}
    (target / "tensors.json").write_text(json.dumps({"inputs": inputs, "outputs": tensors}, sort_keys=True, indent=1))
    path.write_bytes(graph.SerializeToString(deterministic=True))
    expected = {name: found[name].numpy() for name in tensors}
    difference = _difference(expected, answers_of(graph, {"inputs": inputs, "outputs": tensors}, rows))
    most = _FROZEN_DIFFERENCE * max([1.0, *(float(np.max(np.abs(expected[name]))) for name in _floats(expected))])
    if not difference <= most:
        raise NotMadeError(f"the graph of constants answers otherwise, by up to {difference:.3g}")
    source = saved_model_pb2.SavedModel.FromString((model / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    before = [*source.node, *(node for function in source.library.function for node in function.node_def)]
    return _reported(target, rows, before, graph.node, difference, outputs=list(tensors))


def _rows(model: Path) -> Arrays:
    """Of the warm-up request. Raises NotMadeError: there is none."""
    if rows := tapping.warm_up(model, SIGNATURE):
        return rows
    raise NotMadeError(f"it has no warm-up request of {SIGNATURE}, by which both graphs could be compared")


def _reported(
    target: Path, rows: Arrays, before: Collection[Any], after: Collection[Any], difference: float, **parts: list[str]
) -> dict[str, Any]:
    report = parts | {
        "nodes_before": len(before), "nodes_after": len(after), "operations_before": _counted(before),
        "operations_after": _counted(after), "largest_difference": difference, "rows": len(next(iter(rows.values()))),
    }  # fmt: skip
    (target / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return report


def _difference(expected: Arrays, got: Arrays) -> float:
    """The largest of floats; infinite where others are not the same."""
    floats = _floats(expected)
    if not all(np.array_equal(got[name], expected[name]) for name in expected if name not in floats):
        return float("inf")
    return max((float(np.max(np.abs(got[name] - expected[name]), initial=0.0)) for name in floats), default=0.0)


def _rewritten(graph_def: Any, inputs: Sequence[str], outputs: Sequence[str], passes: Sequence[str]) -> Any:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        meta = tf.compat.v1.train.export_meta_graph(graph=graph, graph_def=graph.as_graph_def(add_shapes=True))
    for key, names in (("train_op", outputs), ("feeds", inputs)):
        collection = meta.collection_def[key]
        collection.node_list.value.extend(names)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.optimizers.extend(passes)
    config.graph_options.rewrite_options.meta_optimizer_iterations = 2
    config.graph_options.rewrite_options.min_graph_nodes = -1
    return tf_optimizer.OptimizeGraph(config, meta)


def _floats(outputs: Arrays) -> list[str]:
    return [name for name, value in outputs.items() if value.dtype.kind == "f"]


def _counted(nodes: Iterable[Any]) -> dict[str, int]:
    return dict(sorted(Counter(node.op for node in nodes).items()))
