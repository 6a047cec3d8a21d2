"""A version reads its own files and no others, however its graph names one."""

from collections.abc import Iterator

import pytest

from common.saved_model.operations import faults_of
from protos import saved_model_pb2
from testing.rows import each_row

Graph = saved_model_pb2.MetaGraphDef
_TABLE, _RESTORE = "InitializeTableFromTextFileV2", "RestoreV2"


def graph(*nodes: tuple[str, str, tuple[str, ...]], call: str = "", load: str = "") -> Graph:
    """Of nodes (name, operation, inputs); the constant `words` is an asset, `file` is what the saver is told."""
    found = Graph()
    for name, operation, inputs in (("words", "Const", ()), ("file", "Placeholder", ()), *nodes):
        found.graph_def.node.add(name=name, op=operation).input.extend(inputs)
    found.asset_file_def.add(filename="words.txt").tensor_info.name = "words:0"
    found.saver_def.filename_tensor_name, found.saver_def.restore_op_name = "file:0", "restored"
    if call:
        found.signature_def["serving_default"].outputs["y"].name = call
    if load:
        found.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = load
    return found


def function(found: Graph, operation: str, *inputs: str) -> saved_model_pb2.FunctionDef:
    """f(handle, path), which runs one operation on its arguments."""
    made = found.graph_def.library.function.add()
    made.signature.name = "f"
    for name in ("handle", "path"):
        made.signature.input_arg.add(name=name)
    made.node_def.add(name="inner", op=operation).input.extend(inputs)
    return made


def attributed(operation: str, name: str, text: bytes) -> Graph:
    found = graph(("node", operation, ()))
    found.graph_def.node[-1].attr[name].s = text
    return found


def by_collection(name: str) -> Graph:
    found = graph(("other", "Const", ()), ("main", _RESTORE, ("other",)))
    found.collection_def[name].node_list.value.append("main")
    return found


def called_with(*, bound: str = "", swapped: bool = False, is_called: bool = True) -> Graph:
    """f initializes a table, of a path that loading gives it and that an object captured."""
    found = graph(*([("table", "f", ("handle", "words"))] if is_called else []), load="table")
    made = function(found, _TABLE, "handle", "path")
    if swapped:
        made.attr["api_implements"].s = b"lookup"
    if bound:
        found.object_graph_def.nodes.add()
        found.object_graph_def.nodes.add().asset.asset_file_def_index = 0
        found.object_graph_def.concrete_functions["f"].bound_inputs.extend([0, int(bound == "asset")])
    return found


def restored_by(path: str) -> Graph:
    found = graph(("other", "Const", ()), ("restored", "f", ("handle", path)))
    function(found, _RESTORE, "path", "handle")
    return found


def readers() -> Iterator[tuple[str, Graph, str]]:
    """The place, its graph, and the words of the refusal."""
    elsewhere, savers = "none of its assets", "is the saver's, and is used elsewhere"
    used = ("table", _TABLE, ("handle", "words")), ("y", "Identity", ("x", "^table"))
    yield "an asset when called, which has the constant's value then", graph(*used, call="y:0"), "when a signature is"
    yield "the same by a loader's signature that gives a tensor", graph(*used, load="y:0"), "when a signature is called"
    yield "variables of another place", graph(("other", "Const", ()), ("restored", _RESTORE, ("other",))), savers
    yield "the same through a function", restored_by("other"), savers
    yield "the same while the version is loaded", graph(("main", _RESTORE, ("file",)), load="main"), savers
    for name in ("saved_model_main_op", "legacy_init_op"):
        yield f"the same, by {name}", by_collection(name), savers
    written = graph(("restored", "NoOp", ("^write",)), ("write", "SaveV2", ("file",)))
    yield "a write while variables are restored", written, savers
    yield "a path that an object captured", called_with(bound="constant"), elsewhere
    yield "the same where the graph does not call it", called_with(bound="constant", is_called=False), elsewhere
    yield "a function that TensorFlow swaps in", called_with(swapped=True), elsewhere
    yield "an attribute", attributed("FixedUnigramCandidateSampler", "vocab_file", b"/etc/passwd"), "an attribute names"
    yield "a stream that is a file", attributed("PrintV2", "output_stream", b"file:///x"), "prints into file:///x"
    yield "an operation of no class", graph(("node", "ReadFileV9", ())), "is none of TensorFlow's"
    yield "code by its name", graph(("node", "XlaCustomCall", ())), "machine code"


@pytest.mark.covers("fmt-op-list")
@pytest.mark.parametrize(("found", "words"), [pytest.param(*one[1:], id=one[0]) for one in readers()])
def test_a_version_that_would_read_other_files_is_refused(found: Graph, words: str) -> None:
    assert words in "; ".join(faults_of(found, has_own_operations=False))


@each_row(
    "found",
    [
        graph(("table", _TABLE, ("handle", "words")), ("y", "Identity", ("x",)), call="y:0", load="table"),
        graph(("restored", _RESTORE, ("file",)), ("saved", "SaveV2", ("file",))),
        restored_by("file"),
        called_with(),
        called_with(bound="asset"),
        called_with(bound="asset", is_called=False),
        attributed("FixedUnigramCandidateSampler", "vocab_file", b""),
        attributed("PrintV2", "output_stream", b"stderr"),
    ],
)
def test_its_own_variables_and_vocabularies_are_read(found: Graph) -> None:
    assert list(faults_of(found, has_own_operations=False)) == []
