"""The graph of a SavedModel, loaded once, and any number of sessions over it, each with variables of its own.

Loading a graph takes most of a second of CPU time, compiling its signatures as much for each session; putting another
version's variables into a session that is there takes a millisecond, and 0.1 s for 300 MB. Calls in other sessions go
on meanwhile.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.saved_model import loader_impl

from services.serving.engines.restored_variables import VARIABLES_PATH, RestoredVariables

tf.get_logger().setLevel("ERROR")  # Each load would warn that v1's loader is old; v2's cannot do this.
# TensorFlow loads modules at first use; what is touched here is shared by all runners instead of private to each.
_LOADER: Callable[..., Any] = loader_impl.SavedModelLoader
_SESSION: Callable[..., Any] = tf.compat.v1.Session
_WITHOUT_STATE = {"VarHandleOp", "HashTableV2", "HashTable", "Placeholder"}
"""What gives a resource or a reference and has no values but its variable's, or those that initialisation gives it."""
_CHANGES = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "ResourceStridedSliceAssign")


class Program:
    """The shared part of a program's versions."""

    def __init__(self, directory: Path, tags: tuple[str, ...], config: config_pb2.ConfigProto) -> None:
        """Raises TensorFlow's errors for a folder without a SavedModel, or without a graph of these tags."""
        self._config = config
        self._graph = tf.Graph()
        loader = _LOADER(str(directory))
        self._saver, _ = loader.load_graph(self._graph, list(tags))
        whole = loader.get_meta_graph_def_from_tags(tags)
        self._variables = RestoredVariables(whole)
        self.meta_graph = meta_graph_pb2.MetaGraphDef()
        """Without its graph, which is several times as large as the rest."""
        self.meta_graph.CopyFrom(whole)
        self.meta_graph.ClearField("graph_def")
        with self._graph.as_default():
            self._initialise = loader_impl.get_init_op(self.meta_graph)
            handles, self._reads, self._values, self._assignment = _exchange_of(self._graph, whole)
        self.names = self._variables.names_of(handles) if self._assignment is not None else None
        """Of the variables in the files, in the order of `values`; None where a session has more state than these."""

    def session(self) -> Any:
        """A session whose variables have no values yet."""
        return _SESSION(graph=self._graph, config=self._config)

    def values(self, session: Any) -> list[np.ndarray] | None:
        """Copies of the values of its variables; None where a session has more state than variables."""
        return None if self._assignment is None else list(session.run(self._reads))

    def assignment(self, session: Any) -> Callable[..., Any]:
        """Takes such values, one argument each, and makes them those of the session's variables, without copying."""
        assert self._assignment is not None
        options = config_pb2.CallableOptions()
        options.feed.extend(value.name for value in self._values)
        options.target.append(self._assignment.name)
        options.run_options.inter_op_thread_pool = -1
        return cast(Callable[..., Any], session._make_callable_from_options(options))

    def check(self, directory: Path) -> None:
        """Raises RequestFailed: a variable is missing there, or has another shape or type than in the graph."""
        if self._saver is not None:
            self._variables.check(directory)

    def restore(self, session: Any, directory: Path) -> None:
        """Gives the session's variables the values of a SavedModel of the same program. Raises tf.errors.OpError,
        ValueError: the files cannot be read, or are damaged."""
        with self._graph.as_default():
            if self._saver is not None:
                self._saver.restore(session, str(directory / VARIABLES_PATH))

    def fill_tables(self, session: Any, directory: Path) -> None:
        """From the SavedModel's assets. Raises tf.errors.OpError."""
        with self._graph.as_default():
            if self._initialise is not None:
                session.run(self._initialise, loader_impl.get_asset_tensors(str(directory), self.meta_graph))


def _exchange_of(
    graph: tf.Graph, meta_graph: meta_graph_pb2.MetaGraphDef
) -> tuple[list[str], list[tf.Tensor], list[tf.Tensor], tf.Operation | None]:
    """Of a graph whose state is in variables that no call changes: their nodes, what reads them all, what can be fed,
    and what assigns that."""
    operations = graph.get_operations()
    handles = [operation for operation in operations if operation.type == "VarHandleOp"]
    stateful = {tf.resource, tf.variant}
    others = [
        operation.type
        for operation in operations
        if any(output.dtype in stateful or output.dtype._is_ref_dtype for output in operation.outputs)
    ]
    if not handles or set(others) - _WITHOUT_STATE or _assigns(meta_graph):
        return [], [], [], None
    reads, values, assigned = [], [], []
    for operation in handles:
        handle, dtype = operation.outputs[0], operation.get_attr("dtype")
        reads.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
        values.append(tf.compat.v1.placeholder(dtype))
        # A variable that has a value gets a copy of the next; a new variable takes the array's memory.
        with tf.control_dependencies([tf.raw_ops.DestroyResourceOp(resource=handle)]):
            assigned.append(tf.raw_ops.AssignVariableOp(resource=handle, value=values[-1]))
    return [operation.name for operation in handles], reads, values, tf.group(*assigned)


def _assigns(meta_graph: meta_graph_pb2.MetaGraphDef) -> bool:
    """Whether anything but the restore operation's function changes a variable."""
    graph, restore = meta_graph.graph_def, meta_graph.saver_def.restore_op_name
    restoring = {node.attr["f"].func.name for node in graph.node if node.name == restore}
    functions = [function for function in graph.library.function if function.signature.name not in restoring]
    return any(
        node.op.startswith(_CHANGES) for nodes in (graph.node, *(each.node_def for each in functions)) for node in nodes
    )
