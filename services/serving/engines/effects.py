"""Finds what a signature does besides computing its outputs: checks, random numbers, prints, assignments.

Converters drop such operations or freeze them, and no comparison of outputs would show it.
"""

from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from services.serving.wire.replica_state import Signature

_CHECKS = {"CheckNumerics", "CheckNumericsV2"}
"""They have no effect as TensorFlow counts them, but they refuse values."""
_SHAPE_CHECK = "EnsureShape"
"""Refuses shapes: harmless where no call differs from another in more than its rows."""
_HARMLESS = {
    "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "ReadVariableOp", "VarIsInitializedOp",
    "ResourceGather", "ResourceGatherNd", "PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case",
    "HashTable", "HashTableV2", "LookupTableFind", "LookupTableFindV2", "NoOp",
}  # fmt: skip
"""Stateful as TensorFlow counts them, but reading a variable or a table that nobody writes to changes nothing."""


def effect_in_words(directory: Path, signature: Signature) -> str:
    """Which operation keeps the signature on TensorFlow; empty when there is none."""
    graph = _graph(directory)
    functions = {function.signature.name: list(function.node_def) for function in graph.library.function}
    waiting = _reachable(graph, [spec.tensor_name for spec in signature.outputs.values()])
    seen: set[str] = set()
    checks = _CHECKS if _only_rows_differ(signature) else _CHECKS | {_SHAPE_CHECK}
    while waiting:
        node = waiting.pop()
        if node.op in checks or (node.op not in _HARMLESS and _is_stateful(node.op)):
            return f"its operation {node.op} does more than compute, which a converted model would not do"
        for name in _called(node):
            if name in functions and name not in seen:
                seen.add(name)
                waiting += functions[name]
    return ""


def _only_rows_differ(signature: Signature) -> bool:
    return all(spec.shape is not None and -1 not in spec.shape[1:] for spec in signature.inputs.values())


def _graph(directory: Path) -> graph_pb2.GraphDef:
    saved_model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    tagged = [graph for graph in saved_model.meta_graphs if tf.saved_model.SERVING in graph.meta_info_def.tags]
    return tagged[0].graph_def


def _reachable(graph: graph_pb2.GraphDef, tensors: Iterable[str]) -> list[node_def_pb2.NodeDef]:
    """The nodes that the tensors depend on."""
    nodes = {node.name: node for node in graph.node}
    found: dict[str, node_def_pb2.NodeDef] = {}
    waiting = list(tensors)
    while waiting:
        name = waiting.pop().removeprefix("^").partition(":")[0]
        if name in nodes and name not in found:
            found[name] = nodes[name]
            waiting += nodes[name].input
    return list(found.values())


def _called(node: node_def_pb2.NodeDef) -> list[str]:
    """The functions that a node may call."""
    names = [node.op]
    for value in node.attr.values():
        names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return [name for name in names if name]


def _is_stateful(op: str) -> bool:
    known = op_def_registry.get(op)
    return known is not None and known.is_stateful
