"""Whether a folder is a SavedModel that can be served: its parts, its tags, its operations."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from common.errors import InvalidInput
from common.saved_model.graph import MODEL_FILE, SERVE, Graph, GraphProto, graph_of, nodes_of, read, tagged
from common.saved_model.operations import faults_of
from common.saved_model.variables import INDEX_FILE, check_sizes, read_index

_MOST_BYTES = {MODEL_FILE: 512 << 20, INDEX_FILE: 64 << 20}
"""What is read whole to be looked at."""
_MOST_NODES = 1_000_000
"""Two bytes may be a node, and looking at it takes some hundred."""
_OTHER_FORMS = ("saved_model.pbtxt", "saved_model.cpb")
"""Loaders take these in the place of saved_model.pb, or beside it, without a check of them."""
OWN_OPERATIONS_FILE = "assets.extra/custom_ops.txt"
_VARIABLES = {"VarHandleOp", "VariableV2", "Variable"}
_MOST_REMEMBERED = 64
ReadFile = Callable[[str], bytes]


@dataclass(frozen=True)
class Found:
    """In a saved_model.pb. fault: why it cannot be served, a sentence; "" where it can."""

    graph: Graph
    has_variables: bool
    fault: str


Look = Callable[[bytes, tuple[str, ...], bool], Found]
"""The content, the tags of the graph that is meant, and whether its author's operations travel with it; raises
InvalidInput."""


def look_at(content: bytes, tags: tuple[str, ...], has_own_operations: bool) -> Found:
    graph = tagged(read(content), tags)
    _check_node_count(graph)
    fault = next(faults_of(graph, has_own_operations=has_own_operations), "")
    return Found(graph_of(graph), any(node.op in _VARIABLES for node in nodes_of(graph)), fault)


class KnownGraphs:
    """Remembers what was found in the last files: the versions of a program have the same graph, and to look at its
    nodes takes longer than everything else that is checked. Thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[bytes, tuple[str, ...], bool], Found] = OrderedDict()
        self._lock = threading.Lock()

    def look_at(self, content: bytes, tags: tuple[str, ...], has_own_operations: bool) -> Found:
        key = hashlib.sha256(content).digest(), tags, has_own_operations
        with self._lock:
            known = self._found.get(key)
        found = known or look_at(content, tags, has_own_operations)
        with self._lock:
            self._found[key] = found
            self._found.move_to_end(key)
            if len(self._found) > _MOST_REMEMBERED:
                self._found.popitem(last=False)
        return found


def check_layout(
    sizes: Mapping[str, int], read_file: ReadFile, *, tags: tuple[str, ...] = (SERVE,), look: Look = look_at
) -> Graph:
    """The graph of these tags, once everything that it needs is known to be there.

    Args:
        sizes: {path relative to the SavedModel: bytes} of every file.
        read_file: the content of one of them.

    Raises:
        InvalidInput: what is missing, cut short, not readable, or cannot be served; one sentence.
    """
    if MODEL_FILE not in sizes:
        raise InvalidInput(f"there is no {MODEL_FILE}; the files are: {', '.join(sorted(sizes)[:8]) or 'none'}")
    other = next((name for name in _OTHER_FORMS if name in sizes), "")
    if other:
        raise InvalidInput(f"{other} stands beside {MODEL_FILE}; only {MODEL_FILE} is read")
    for name, most in _MOST_BYTES.items():
        if sizes.get(name, 0) > most:
            raise InvalidInput(f"{name} has {sizes[name]} bytes, at most {most} are read")
    found = look(read_file(MODEL_FILE), tags, OWN_OPERATIONS_FILE in sizes)
    if not found.graph.signatures:
        raise InvalidInput(f"the graph tagged {','.join(tags)} has no signature, so it cannot be called")
    if INDEX_FILE in sizes:
        check_sizes(read_index(read_file(INDEX_FILE)), sizes)
    elif found.has_variables:
        raise InvalidInput(f"{INDEX_FILE} is not there, and the graph has variables")
    for asset in found.graph.assets:
        if f"assets/{asset}" not in sizes:
            raise InvalidInput(f"assets/{asset} is not there, and the graph reads it")
    if OWN_OPERATIONS_FILE in sizes:
        _check_libraries(read_file(OWN_OPERATIONS_FILE), sizes)
    if found.fault:
        raise InvalidInput(f"the model cannot be served: {found.fault}")
    return found.graph


def check_folder(directory: Path, *, tags: tuple[str, ...] = (SERVE,), look: Look = look_at) -> Graph:
    """check_layout of a SavedModel on this machine. Raises InvalidInput: as there, or a file cannot be read."""
    try:
        files = [path for path in directory.rglob("*") if path.is_file()]
        sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
        return check_layout(sizes, lambda path: (directory / path).read_bytes(), tags=tags, look=look)
    except OSError as error:
        raise InvalidInput(f"the SavedModel cannot be read: {error}") from error


def _check_node_count(graph: GraphProto) -> None:
    """Raises InvalidInput: to look at all of them would take all memory."""
    count = len(graph.graph_def.node) + sum(len(function.node_def) for function in graph.graph_def.library.function)
    if count > _MOST_NODES:
        raise InvalidInput(f"{MODEL_FILE} has a graph of {count} nodes, at most {_MOST_NODES} are looked at")


def own_libraries(content: bytes) -> list[str]:
    """The libraries of operations that a list names, one path per line; empty lines and those that begin with # do not
    count. Raises InvalidInput: a path is absolute or leads out of the version: it would load what was not checked."""
    named = [line.strip() for line in content.decode(errors="replace").splitlines()]
    paths = [path for path in named if path and not path.startswith("#")]
    for path in paths:
        # As written, not resolved: a version's files may themselves be links.
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise InvalidInput(
                f"{OWN_OPERATIONS_FILE} names {path[:200]}, which is none of the version's own files; "
                "a path is relative to the version and does not lead out of it"
            )
    return paths


def _check_libraries(content: bytes, sizes: Mapping[str, int]) -> None:
    """Raises InvalidInput: a library of own operations does not travel with the version."""
    for path in own_libraries(content):
        if path not in sizes:
            raise InvalidInput(f"{OWN_OPERATIONS_FILE} names {path[:200]}, which is none of the version's own files")
