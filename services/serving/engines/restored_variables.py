"""The variables that the restore operation of a SavedModel's graph fills: TensorFlow assigns a tensor of another
shape without a word, and the model then answers something else, or refuses everything."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

VARIABLES_PATH = Path("variables/variables")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class _Expected(NamedTuple):
    dtype: tf.DType
    shape: tf.TensorShape
    handle: str
    """The node of the graph that makes the variable."""


class RestoredVariables:
    """Of a graph."""

    def __init__(self, meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
        self._expected = dict(_expected(meta_graph.graph_def, meta_graph.saver_def.restore_op_name))

    def names_of(self, handles: Sequence[str]) -> tuple[str, ...] | None:
        """Their names in the files, in the order of these nodes; None where one is not restored from a file."""
        names = {expected.handle: name for name, expected in self._expected.items()}
        return tuple(names[handle] for handle in handles) if names.keys() >= set(handles) else None

    def check(self, directory: Path) -> None:
        """Raises RequestFailed, FAILED_PRECONDITION: a variable of the SavedModel in the folder is missing, or has
        another shape or type than in the graph. Reads the index alone."""
        if not self._expected:
            return
        reader = tf.train.load_checkpoint(str(directory / VARIABLES_PATH))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for name, (dtype, shape, _) in self._expected.items():
            if name not in shapes:
                raise RequestFailed(Code.FAILED_PRECONDITION, f"{VARIABLES_PATH} has no {name}")
            found = f"{dtypes[name].name} {shapes[name]}"
            if dtypes[name] != dtype or not shape.is_compatible_with(shapes[name]):
                raise RequestFailed(
                    Code.FAILED_PRECONDITION,
                    f"{name} of {VARIABLES_PATH} is {found}, the graph's variable is {dtype.name} {shape}",
                )


def _expected(graph: graph_pb2.GraphDef, restore: str) -> Iterator[tuple[str, _Expected]]:
    """(name in the checkpoint, the variable's specification) of every assignment that can be followed from file to
    variable."""
    nodes = {node.name: node for node in graph.node}
    call = nodes.get(restore)
    if call is None or call.op not in _CALLS:
        yield from _assigned(graph.node, nodes)
        return
    name = call.attr["f"].func.name
    function = next(function for function in graph.library.function if function.signature.name == name)
    given = {
        argument.name: nodes.get(_node_of(tensor))
        for argument, tensor in zip(function.signature.input_arg, call.input, strict=False)
    }
    yield from _assigned(function.node_def, {node.name: node for node in function.node_def} | given)


def _assigned(
    nodes: Sequence[node_def_pb2.NodeDef], known: Mapping[str, node_def_pb2.NodeDef | None]
) -> Iterator[tuple[str, _Expected]]:
    for node in nodes:
        if node.op != "AssignVariableOp":
            continue
        variable, source = known.get(_node_of(node.input[0])), node.input[1]
        while (value := known.get(_node_of(source))) is not None and value.op == "Identity":
            source = value.input[0]
        if variable is None or variable.op != "VarHandleOp" or value is None or value.op != "RestoreV2":
            continue
        names = known.get(_node_of(value.input[1]))
        if names is None or names.op != "Const":
            continue
        index = source.rpartition(":")[2]
        key = tf.make_ndarray(names.attr["value"].tensor)[int(index) if index.isdecimal() else 0].decode()
        dtype, shape = tf.as_dtype(variable.attr["dtype"].type), tf.TensorShape(variable.attr["shape"].shape)
        yield key, _Expected(dtype, shape, variable.name)


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
