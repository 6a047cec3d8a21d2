"""Which operations a graph may hold where it is served: those that TensorFlow has, without what a replica lacks."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from common.saved_model.calls import Calls, text_of
from common.saved_model.graph import GraphProto
from protos.saved_model_pb2 import NodeDef

_CALLS_PYTHON = "calls Python, which a replica has none of; use TensorFlow's or Keras's operations"
_READS_FILES = "reads or writes files, which a replica does not have; make their content a constant or a vocabulary"
_HIDES = "runs a graph that is hidden in a value, where nobody can look"
_SPEAKS = "speaks to other machines, which a version has no business with"
_REASONS: Mapping[str, tuple[str, ...]] = {
    _CALLS_PYTHON: ("PyFunc", "PyFuncStateless", "EagerPyFunc"),
    _READS_FILES: (
        "ReadFile", "WriteFile", "MatchingFiles", "WholeFileReader", "WholeFileReaderV2", "TextLineReader",
        "TextLineReaderV2", "FixedLengthRecordReader", "FixedLengthRecordReaderV2", "TFRecordReader",
        "TFRecordReaderV2", "LMDBReader", "TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2",
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2", "MatchingFilesDataset", "LMDBDataset", "SqlDataset", "CSVDataset", "CSVDatasetV2",
        "ExperimentalMatchingFilesDataset", "ExperimentalLMDBDataset", "ExperimentalSqlDataset",
        "ExperimentalCSVDataset",
        "ExperimentalDatasetToTFRecord", "DatasetToTFRecord", "CacheDataset", "CacheDatasetV2", "SnapshotDataset",
        "SnapshotDatasetV2", "SnapshotDatasetReader", "SnapshotNestedDatasetReader", "SnapshotChunkDataset",
        "ListSnapshotChunksDataset", "LoadDataset", "SaveDataset", "SaveDatasetV2", "CreateSummaryFileWriter",
        "CreateSummaryDbWriter", "GenerateVocabRemapping", "LoadAndRemapMatrix", "Skipgram", "DumpTensor",
        "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary",
        "FileSystemSetConfiguration", "_XlaAotOnlyVarHandleOp",
    ),
    _HIDES: ("DatasetFromGraph",),
    _SPEAKS: (
        "DataServiceDataset", "DataServiceDatasetV2", "DataServiceDatasetV3", "DataServiceDatasetV4", "RegisterDataset",
        "RegisterDatasetV2", "DistributedSave", "RpcCall", "RpcClient", "RpcServer", "RpcServerStart",
        "RpcServerRegister", "RemoteCall", "Send", "Recv", "_Send", "_Recv", "_HostSend", "_HostRecv",
    ),
    "ends the process that runs it": ("Abort",),
}  # fmt: skip
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}
"""What tf.numpy_function, tf.io.read_file, tf.data over files and the like become, and why they are refused."""
_SAVERS = {
    "Save",
    "SaveSlices",
    "SaveV2",
    "MergeV2Checkpoints",
    "Restore",
    "RestoreSlice",
    "RestoreV2",
    "DTensorRestoreV2",
}
"""Read and write files by name: what a SavedModel's variables come from, and nothing else may use."""
_TABLE_FILES = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""The input that is a file's name."""
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
    calls = Calls(graph)
    functions = calls.functions()
    for name in sorted(functions & known()):
        yield f"function {name} has the name of an operation of TensorFlow"
    run, saver = calls.by_signatures(), calls.by_saver()
    told: set[str] = set()
    for scope, node in calls.nodes():
        if node.op in told or node.op in functions:
            continue
        if node.op in REFUSED:
            fault = REFUSED[node.op]
        elif node.op in _SAVERS and (run.holds(scope, node) or (scope and not saver.holds(scope, node))):
            fault = f"is the saver's, and is used elsewhere: it {_READS_FILES}"
        elif node.op in _TABLE_FILES and not calls.is_asset(scope, node, _TABLE_FILES[node.op]):
            fault = "reads a vocabulary from a file that is none of its assets"
        elif node.op not in known() and not has_own_operations:
            fault = (
                "is none of TensorFlow's; a library of own operations travels with the version and is named in "
                "assets.extra/custom_ops.txt"
            )
        else:
            fault = _fault_of_attributes(node)
        if fault:
            told.add(node.op)
            yield f"operation {node.name} ({node.op}) {fault}"


def _fault_of_attributes(node: NodeDef) -> str:
    """Operations that are harmless but for a file that an attribute names."""
    if node.op == "PrintV2" and text_of(node.attr, "output_stream").startswith("file:"):
        return f"prints into a file: it {_READS_FILES}"
    source = text_of(node.attr, "descriptor_source")
    if node.op in ("DecodeProtoV2", "EncodeProto") and not source.startswith(("local://", "bytes://")) and source:
        return f"reads its descriptors from a file: it {_READS_FILES}"
    return ""
