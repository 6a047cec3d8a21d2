"""A version's graph of constants, rewritten for speed by passes of TensorFlow's Grappler, by their names there.

question   {"model": a SavedModel's folder, "target": folder, "passes": [...]}
answer     {"passes", "nodes_before", "nodes_after", "operations_before", "operations_after", "largest_difference",
            "rows"}
target/    frozen_graph.pb and tensors.json (converting.py), report.json: the answer
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer

from services.trainer.export import tapping
from services.trainer.export.arrays import Arrays
from services.trainer.export.converting import SIGNATURE, NotMadeError, make

PASSES = (
    "pruning",
    "function",
    "constfold",
    "arithmetic",
    "dependency",
    "remap",
    "shape",
    "common_subgraph_elimination",
)
_LARGEST_DIFFERENCE = 1e-5


def optimize(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises NotMadeError: not a graph of constants, an unknown pass, or it then answers otherwise."""
    model, target, passes = Path(question["model"]), Path(question["target"]), tuple(question["passes"])
    if unknown := [name for name in passes if name not in PASSES]:
        raise NotMadeError(f"there is no pass {', '.join(unknown)}, expected some of {', '.join(PASSES)}")
    rows = tapping.warm_up(model, SIGNATURE)
    if not rows:
        raise NotMadeError(f"it has no warm-up request of {SIGNATURE}, by which both graphs could be compared")
    expected = make("frozen", model, target, rows)(rows)
    path = target / "frozen_graph.pb"
    before = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    tensors = json.loads((target / "tensors.json").read_text())
    after = _rewritten(before, list(tensors["inputs"].values()), list(tensors["outputs"].values()), passes)
    path.write_bytes(after.SerializeToString(deterministic=True))
    got = _asked(after, tensors, rows)
    difference = max(
        (float(np.max(np.abs(got[name] - expected[name]), initial=0.0)) for name in _floats(expected)), default=0.0
    )
    same = all(np.array_equal(got[name], expected[name]) for name in expected if name not in _floats(expected))
    if not same or not difference <= _LARGEST_DIFFERENCE:
        raise NotMadeError(f"the rewritten graph answers otherwise, by up to {difference:.3g}")
    report = {
        "passes": list(passes), "nodes_before": len(before.node), "nodes_after": len(after.node),
        "operations_before": _counted(before), "operations_after": _counted(after),
        "largest_difference": difference, "rows": len(next(iter(rows.values()))),
    }  # fmt: skip
    (target / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return report


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


def _asked(graph_def: Any, tensors: Any, rows: Arrays) -> dict[str, Any]:
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        feed = {tensor: rows[name.removeprefix(f"{SIGNATURE}_")] for name, tensor in tensors["inputs"].items()}
        return {name: np.asarray(value) for name, value in session.run(tensors["outputs"], feed).items()}


def _floats(outputs: Arrays) -> list[str]:
    return [name for name, value in outputs.items() if value.dtype.kind == "f"]


def _counted(graph_def: Any) -> dict[str, int]:
    return dict(sorted(Counter(node.op for node in graph_def.node).items()))
