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
_READS_VARIABLE = "ReadVariableOp"
_MOST_STEPS = 1_000_000


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
        for function in graph.graph_def.library.function:
            self._scopes[function.signature.name] = {node.name: node for node in function.node_def}
            self._arguments[function.signature.name] = {a.name: i for i, a in enumerate(function.signature.input_arg)}
        self._saver = graph.saver_def
        self._run = [tensor.name for signature in graph.signature_def.values() for tensor in signature.outputs.values()]
        self._assets = {_node_name(asset.tensor_info.name) for asset in graph.asset_file_def}
        self._users: dict[str, list[Node]] = defaultdict(list)
        for node in graph.graph_def.node:
            for name in {_node_name(one) for one in node.input}:
                self._users[name].append(node)
        self._surely_assets: set[tuple[str, str]] = set()
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
        """What runs when a signature is called or the version is loaded, its variables' saver apart."""
        return self._reached(self._run)

    def by_saver(self) -> Reached:
        """What runs when variables are saved or restored."""
        return self._reached([self._saver.save_tensor_name, self._saver.restore_op_name])

    def is_asset(self, scope: str, node: Node, place: int) -> bool:
        """Whether an input of a node is the path of a file below assets/, or an argument that is one in every call.

        Each place of the graph is walked through once, however many inputs lead there and however often it is asked.
        """
        waiting: list[tuple[str, Node, int | None]] = [(scope, node, place)]
        seen: set[tuple[str, str]] = set()

        def is_new(where: str, what: str) -> bool:
            step = (where, what)
            known = step in seen or step in self._surely_assets
            seen.add(step)
            return not known

        for _ in range(_MOST_STEPS):
            if not waiting:
                self._surely_assets |= seen
                return True
            where, reader, wanted = waiting.pop()
            if wanted is None or wanted >= len(reader.input):
                return False
            source = _node_name(reader.input[wanted])
            before = self._scopes[where].get(source)
            if before is not None and before.op in _PASSES_ON:
                output = _output_of(reader.input[wanted])
                if is_new(where, f"{source}:{output}"):
                    waiting.append((where, before, output))
            elif where == GRAPH and source in self._assets:
                continue
            elif where == GRAPH and before is not None and before.op == _READS_VARIABLE:
                variable = _node_name(next(iter(before.input), ""))
                if is_new(_READS_VARIABLE, variable):
                    waiting += self._values_of(variable)
            elif before is not None or source not in self._arguments[where]:
                return False
            elif is_new(where, source):
                argument = self._arguments[where][source]
                waiting += [(outer, call, _input_of(call, where, argument)) for outer, call in self._callers[where]]
        return False

    def _values_of(self, variable: str) -> list[tuple[str, Node, int | None]]:
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
                waiting += [(GRAPH, _node_name(one)) for one in node.input]
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
        for one in value.list.func:
            yield one.name


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
