"""How the parts of a graph hang together: what a signature reaches, and where a file's name comes from.

A scope is the graph itself ("") or one of its functions, whose whole body runs when it is called. An input is written
NODE, NODE:0, NODE:output:0 or ^NODE; within a function, a name that is no node's is an argument's.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from common.saved_model.graph import GraphProto
from protos import saved_model_pb2

GRAPH = ""
Node = saved_model_pb2.NodeDef
_ARGUMENTS_FROM = {"PartitionedCall": 0, "StatefulPartitionedCall": 0, "While": 0, "StatelessWhile": 0, "If": 1,
                   "StatelessIf": 1, "Case": 1, "StatelessCase": 1}  # fmt: skip
"""The input of a calling node that is the function's first argument."""
_PASSES_ON = {"Identity", "IdentityN"}
_READS_VARIABLE, _VARIABLE = "ReadVariableOp", "VarHandleOp"
_MOST_STEPS = 1_000_000
_Place = tuple[str, Node, int | None]
"""An input of a node by its scope and number; None where the number is not known."""
LOADERS_OWN = ("__saved_model_init_op", "__saved_model_train_op")
"""Signatures that a loader runs, with its assets' paths; a signature that gives a tensor can be called like any
other."""
_RUN_BY_LOADERS = ("saved_model_main_op", "legacy_init_op")
"""Collections of TensorFlow 1 that name what a loader runs."""
_SWAPPED = "api_implements"
"""Of a function: TensorFlow calls it in the place of others that have the same value there."""


@dataclass(frozen=True)
class Reached:
    """Nodes of the graph itself by name, and functions by name."""

    nodes: frozenset[str]
    functions: frozenset[str]

    def holds(self, scope: str, node: Node) -> bool:
        return scope in self.functions if scope else node.name in self.nodes


class Calls:
    """An index of one graph. Nothing in the graph is believed: names may be missing, double or in circles."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._scopes = {GRAPH: {node.name: node for node in graph.graph_def.node}}
        self._arguments: dict[str, dict[str, int]] = {GRAPH: {}}
        self._functions = {function.signature.name: function for function in graph.graph_def.library.function}
        self._objects = graph.object_graph_def
        for function in graph.graph_def.library.function:
            self._scopes[function.signature.name] = {node.name: node for node in function.node_def}
            self._arguments[function.signature.name] = {a.name: i for i, a in enumerate(function.signature.input_arg)}
        self._saver = graph.saver_def
        self._called, self._loading = _runs(graph)
        self._assets = {_node_name(asset.tensor_info.name) for asset in graph.asset_file_def}
        self._saver_file = {_node_name(self._saver.filename_tensor_name)} - {""}
        self._users: dict[str, list[Node]] = defaultdict(list)
        for node in graph.graph_def.node:
            for name in {_node_name(input_name) for input_name in node.input}:
                self._users[name].append(node)
        self._surely: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
        self._callers: dict[str, list[tuple[str, Node]]] = defaultdict(list)
        for scope, node in self.nodes():
            for called in set(_functions_of(node)):
                self._callers[called].append((scope, node))

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every node with its scope."""
        for node in self._graph.graph_def.node:
            yield GRAPH, node
        for function in self._graph.graph_def.library.function:
            for node in function.node_def:
                yield function.signature.name, node

    def functions(self) -> set[str]:
        return set(self._scopes) - {GRAPH}

    def by_signatures(self) -> Reached:
        """What runs when a signature is called: no loader gives an asset its path then."""
        return self._reached(self._called)

    def by_loading(self) -> Reached:
        """What runs when the version is loaded, the restoring of its variables apart."""
        return self._reached(self._loading)

    def by_saving(self) -> Reached:
        """What runs when variables are saved, which no replica does."""
        return self._reached([self._saver.save_tensor_name])

    def by_restoring(self) -> Reached:
        return self._reached([self._saver.restore_op_name])

    def is_asset(self, scope: str, node: Node, place: int) -> bool:
        """Whether an input of a node is the path of a file below assets/, or an argument that is one in every call.

        Each place of the graph is walked through once, however many inputs lead there and however often it is asked.
        """
        return self._comes_from(scope, node, place, is_asset=True)

    def is_saver_file(self, scope: str, node: Node, place: int) -> bool:
        """Whether an input of a node is the path that a loader gives the saver: the version's own variables."""
        return self._comes_from(scope, node, place, is_asset=False)

    def _comes_from(self, scope: str, node: Node, place: int, *, is_asset: bool) -> bool:
        surely = self._surely[is_asset]
        waiting: list[_Place] = [(scope, node, place)]
        seen: set[tuple[str, str]] = set()
        for _ in range(_MOST_STEPS):
            if not waiting:
                surely |= seen
                return True
            where, reader, wanted = waiting.pop()
            if wanted is None or wanted >= len(reader.input):
                return False
            step = (where, reader.input[wanted])
            if step in seen or step in surely:
                continue
            seen.add(step)
            before = self._before(*step, is_asset=is_asset)
            if before is None:
                return False
            waiting += before
        return False

    def _before(self, where: str, tensor: str, *, is_asset: bool) -> list[_Place] | None:
        """The inputs that a tensor is made of, none for a path that a loader gives; None where they cannot be known."""
        name = _node_name(tensor)
        source = self._scopes[where].get(name)
        if source is not None and source.op in _PASSES_ON:
            return [(where, source, _output_of(tensor))]
        if where == GRAPH and name in (self._assets if is_asset else self._saver_file):
            return []
        if where == GRAPH and source is not None and source.op == _READS_VARIABLE:
            return [(where, source, 0)]
        if where == GRAPH and source is not None and source.op == _VARIABLE:
            return self._values_of(name)
        argument = self._arguments[where].get(name) if source is None else None
        if argument is None or not self._is_only_called(where, argument, is_asset=is_asset):
            return None
        return [(outer, call, _input_of(call, where, argument)) for outer, call in self._callers[where]]

    def _is_only_called(self, function: str, argument: int, *, is_asset: bool) -> bool:
        """Whether calls in the graph say all that an argument may be: tf.saved_model.load gives functions of objects
        what it captured, and their callers the rest; TensorFlow swaps functions that implement the same."""
        found = self._functions[function]
        if _SWAPPED in found.attr:
            return False
        bound = self._objects.concrete_functions
        if function not in bound:
            return True
        captured = bound[function].bound_inputs
        place = argument - (len(found.signature.input_arg) - len(captured))
        if not is_asset or not 0 <= place < len(captured) or not 0 <= captured[place] < len(self._objects.nodes):
            return False
        return self._objects.nodes[captured[place]].HasField("asset")

    def _values_of(self, variable: str) -> list[_Place]:
        """What the graph itself assigns to a variable; an unknown place where others could assign to it too."""
        users = self._users[variable]
        known = {_READS_VARIABLE, "AssignVariableOp", "VarIsInitializedOp"}
        if not any(user.op == "AssignVariableOp" for user in users) or any(user.op not in known for user in users):
            return [(GRAPH, Node(), None)]
        return [(GRAPH, user, 1) for user in users if user.op == "AssignVariableOp"]

    def _reached(self, tensors: Iterable[str]) -> Reached:
        nodes, functions = set(), set()
        waiting = [(GRAPH, _node_name(name)) for name in tensors]
        while waiting:
            scope, name = waiting.pop()
            node = self._scopes[scope].get(name)
            if node is None or (scope == GRAPH and name in nodes):
                continue
            if scope == GRAPH:
                nodes.add(name)
                waiting += [(GRAPH, _node_name(input_name)) for input_name in node.input]
            for called in _functions_of(node):
                if called in self._scopes and called not in functions and called != GRAPH:
                    functions.add(called)
                    waiting += [(called, inner) for inner in self._scopes[called]]
        return Reached(frozenset(nodes), frozenset(functions))


def text_of(attributes: Mapping[str, saved_model_pb2.AttrValue], name: str) -> str:
    """A text among a node's attributes; "" where there is none."""
    return attributes[name].s.decode(errors="replace") if name in attributes else ""


def _functions_of(node: Node) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for function in value.list.func:
            yield function.name


def _runs(graph: GraphProto) -> tuple[list[str], list[str]]:
    """The tensors and nodes that calls of signatures ask for, and those that loading the version does."""
    called: list[str] = []
    loading: list[str] = []
    for name, signature in graph.signature_def.items():
        wanted = [tensor.name for tensor in signature.outputs.values()]
        is_loaders = name in LOADERS_OWN and not any(":" in tensor for tensor in wanted)
        (loading if is_loaders else called).extend(wanted)
    for name in _RUN_BY_LOADERS:
        if name in graph.collection_def:
            loading += graph.collection_def[name].node_list.value
    return called, loading


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def _input_of(call: Node, function: str, argument: int) -> int | None:
    """Which input of a calling node becomes the function's argument; None where that is not known."""
    first = 0 if call.op == function else _ARGUMENTS_FROM.get(call.op)
    return None if first is None else first + argument


def _output_of(tensor: str) -> int:
    """Which output of its node: identity nodes give as many as they take."""
    last = tensor.rpartition(":")[2]
    return int(last) if ":" in tensor and last.isascii() and last.isdigit() and len(last) < 6 else 0
