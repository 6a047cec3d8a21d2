"""Which operations a graph may hold where it is served: those that TensorFlow has, without what a replica lacks."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from common.saved_model.graph import GraphProto, nodes_of

_CALLS_PYTHON = "calls Python, which a replica has none of; use TensorFlow's or Keras's operations"
_READS_FILES = "reads or writes files, which a replica does not have; make their content a constant or a vocabulary"
REFUSED: Mapping[str, str] = {
    "PyFunc": _CALLS_PYTHON,
    "PyFuncStateless": _CALLS_PYTHON,
    "EagerPyFunc": _CALLS_PYTHON,
    "ReadFile": _READS_FILES,
    "WriteFile": _READS_FILES,
    "MatchingFiles": _READS_FILES,
}
"""What tf.numpy_function, tf.py_function, tf.io.read_file and the like become, and why they are refused."""
_LIST = Path(__file__).with_name("operations.txt")


@cache
def known() -> frozenset[str]:
    """Every operation that TensorFlow 2.21 registers; a test of serving compares the list with TensorFlow itself."""
    return frozenset(_LIST.read_text().split())


def faults_of(graph: GraphProto, *, has_own_operations: bool) -> Iterator[str]:
    """A sentence for each operation that cannot be served, the first node of each.

    Args:
        has_own_operations: libraries of operations travel with the SavedModel, so one that TensorFlow lacks may be
            among them.
    """
    functions = {function.signature.name for function in graph.graph_def.library.function}
    told: set[str] = set()
    for node in nodes_of(graph):
        if node.op in told or node.op in functions:
            continue
        if node.op in REFUSED:
            told.add(node.op)
            yield f"operation {node.name} ({node.op}) {REFUSED[node.op]}"
        elif node.op not in known() and not has_own_operations:
            told.add(node.op)
            yield (
                f"operation {node.name} ({node.op}) is none of TensorFlow's; a library of own operations travels with "
                f"the version and is named in assets.extra/custom_ops.txt"
            )
