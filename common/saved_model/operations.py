"""Which operations a graph may hold where it is served: those of operations.txt that are classed as served.

An operation that is in no class is refused. What a version may read is its own files: a loader gives the saver the path
of the variables and the vocabularies the paths of the assets, and nothing else that runs takes a path.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from common.saved_model.calls import Calls, text_of
from common.saved_model.graph import GraphProto
from protos.saved_model_pb2 import NodeDef

READS_FILES = "reads or writes files, which a replica does not have; make their content a constant or a vocabulary"
_SERVED, _SAVER, _VOCABULARY = "served", "saver", "vocabulary"
_REFUSED: Mapping[str, str] = {
    "python": "calls Python, which a replica has none of; use TensorFlow's or Keras's operations",
    "files": READS_FILES,
    "hidden": "runs a graph that is hidden in a value, where it cannot be checked",
    "native": "calls machine code by its name, where it cannot be checked",
    "machines": "speaks to other machines, which a version has no business with",
    "tpu": "runs on a TPU, which a replica has none of; export the model for a CPU",
    "internal": "is made by TensorFlow while a graph runs, and no loader takes it; export the graph as it was before",
    "tests": "is for TensorFlow's own tests",
    "ends": "ends the process that runs it",
}
"""By class of operations.txt, why its operations are not served."""
_WRITERS = {"Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints"}
_READERS = {"Restore": 0, "RestoreSlice": 0, "RestoreV2": 0, "DTensorRestoreV2": 0}
_TABLE_FILES = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""The input that is a file's name, of operations of the classes saver and vocabulary."""
_STREAMS = {"stdout", "stderr", "log(info)", "log(warning)", "log(error)"}
_LIST = Path(__file__).with_name("operations.txt")


@cache
def classes() -> Mapping[str, str]:
    """The class of every operation that TensorFlow 2.21 registers; a test of the trainer asks TensorFlow itself."""
    found: dict[str, str] = {}
    name = ""
    for line in _LIST.read_text().split("\n"):
        if line.startswith("["):
            name = line.strip("[]")
        elif line and not line.startswith("#"):
            found[line] = name
    return found


def reason_of(operation: str) -> str:
    """Why an operation is served nowhere, of those that TensorFlow registers; "" where it may be."""
    return _REFUSED.get(classes().get(operation, ""), "")


def faults_of(graph: GraphProto, *, has_own_operations: bool) -> Iterator[str]:
    """A sentence for each operation that cannot be served, the first node of each.

    Args:
        has_own_operations: libraries of operations travel with the SavedModel, so an operation that TensorFlow
            lacks may be among them.
    """
    calls = Calls(graph)
    functions = calls.functions()
    for name in sorted(functions & classes().keys()):
        yield f"function {name} has the name of an operation of TensorFlow"
    files = _Files(calls)
    refused: set[str] = set()
    for scope, node in calls.nodes():
        if node.op in refused or node.op in functions:
            continue
        known = classes().get(node.op, "")
        if known in _REFUSED:
            fault = _REFUSED[known]
        elif known in (_SAVER, _VOCABULARY):
            fault = files.fault_of(scope, node)
        elif known == _SERVED:
            fault = _fault_of_attributes(node)
        elif not has_own_operations:
            fault = (
                "is none of TensorFlow's; a library of own operations travels with the version and is named in "
                "assets.extra/custom_ops.txt"
            )
        else:
            fault = ""
        if fault:
            refused.add(node.op)
            yield f"operation {node.name} ({node.op}) {fault}"


class _Files:
    """The operations that read files by name and are served: a loader says the names, and it alone runs them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._called, self._loading = calls.by_signatures(), calls.by_loading()
        self._saving, self._restoring = calls.by_saving(), calls.by_restoring()

    def fault_of(self, scope: str, node: NodeDef) -> str:
        if node.op in _TABLE_FILES:
            if not self._calls.is_asset(scope, node, _TABLE_FILES[node.op]):
                return "reads a vocabulary from a file that is none of its assets"
            is_elsewhere = self._called.holds(scope, node)
            return f"reads its vocabulary when a signature is called: it {READS_FILES}" if is_elsewhere else ""
        if self._called.holds(scope, node) or self._loading.holds(scope, node) or not self._is_savers(scope, node):
            return f"is the saver's, and is used elsewhere: it {READS_FILES}"
        return ""

    def _is_savers(self, scope: str, node: NodeDef) -> bool:
        """Whether the saver alone runs it, and reads the version's own variables by it; or nothing runs it."""
        is_restoring = self._restoring.holds(scope, node)
        if node.op in _WRITERS:
            return not is_restoring and (not scope or self._saving.holds(scope, node))
        if is_restoring:
            return self._calls.is_saver_file(scope, node, _READERS[node.op])
        return not scope


def _fault_of_attributes(node: NodeDef) -> str:
    """Operations that are harmless but for a file that an attribute names."""
    stream = text_of(node.attr, "output_stream")
    if node.op == "PrintV2" and stream and stream not in _STREAMS:
        return f"prints into {stream[:100]}: it {READS_FILES}"
    source = text_of(node.attr, "descriptor_source")
    if node.op in ("DecodeProtoV2", "EncodeProto") and not source.startswith(("local://", "bytes://")) and source:
        return f"reads its descriptors from a file: it {READS_FILES}"
    if node.op == "FixedUnigramCandidateSampler" and text_of(node.attr, "vocab_file"):
        return f"reads its vocabulary from a file that an attribute names: it {READS_FILES}"
    return ""
