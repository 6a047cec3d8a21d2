"""saved_model.pb without what differs from one export of the same graph to another: so equal programs have equal bytes.

TensorFlow numbers functions, what they capture, and calls whose gradients it knows, by what the process has traced
before, and writes functions in the order of a hash table. Here they are numbered and written in the order in which the
graph comes to them.
"""

import re
from collections.abc import Iterator, Mapping

from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_object_graph_pb2

_NUMBER = re.compile(r"_\d+$")
_CALL_NUMBER = re.compile(rb"^(.*)-\d+$")
_GRADIENT_OF_CALL, _NAME_OF_ARGUMENT = "_gradient_op_type", "_user_specified_name"


def canonicalise(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    graph, objects = meta_graph.graph_def, meta_graph.object_graph_def
    functions = {function.signature.name: function for function in graph.library.function}
    ordered = list(_in_order(graph, functions, objects))
    names = {name: f"{_NUMBER.sub('', name)}_{number}" for number, name in enumerate(ordered)}
    calls: dict[bytes, bytes] = {}
    for node in graph.node:
        _rename_node(node, names, calls)
    found = []
    for name in ordered:
        function = functions[name]
        function.signature.name = names[name]
        for node in function.node_def:
            _rename_node(node, names, calls)
        for attribute in function.attr.values():
            _rename_value(attribute, names)
        for argument in function.arg_attr.values():
            if (
                _NAME_OF_ARGUMENT in argument.attr and argument.attr[_NAME_OF_ARGUMENT].s.isdigit()
            ):  # of what is captured: a number of the process
                del argument.attr[_NAME_OF_ARGUMENT]
        found.append(function_pb2.FunctionDef.FromString(function.SerializeToString()))
    del graph.library.function[:]
    graph.library.function.extend(found)
    for gradient in graph.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    _rename_in_objects(objects, names)


def _in_order(
    graph: graph_pb2.GraphDef,
    functions: Mapping[str, function_pb2.FunctionDef],
    objects: saved_object_graph_pb2.SavedObjectGraph,
) -> Iterator[str]:
    """Each once: as the graph calls them, then as objects name them, then the others as they were made."""
    roots = [name for node in graph.node for name in _called(node)]
    for node in objects.nodes:
        roots += [*node.function.concrete_functions, node.bare_concrete_function.concrete_function_name]
    roots += sorted(functions, key=_made_as)
    seen, waiting = set[str](), roots[::-1]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in seen:
            seen.add(name)
            yield name
            called = [other for node in functions[name].node_def for other in _called(node)]
            waiting += called[::-1]


def _made_as(name: str) -> tuple[int, str]:
    number = _NUMBER.search(name)
    return (int(number[0][1:]) if number else -1, name)


def _called(node: node_def_pb2.NodeDef) -> Iterator[str]:
    yield node.op
    for key in sorted(node.attr):
        value = node.attr[key]
        yield from (function.name for function in (value.func, *value.list.func) if function.name)


def _rename_node(node: node_def_pb2.NodeDef, names: dict[str, str], calls: dict[bytes, bytes]) -> None:
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        _rename_value(value, names)
    if _GRADIENT_OF_CALL in node.attr:
        value = node.attr[_GRADIENT_OF_CALL]
        numbered = _CALL_NUMBER.match(value.s)
        if numbered:
            value.s = calls.setdefault(value.s, b"%s-%d" % (numbered[1], len(calls)))


def _rename_value(value: attr_value_pb2.AttrValue, names: dict[str, str]) -> None:
    for function in (value.func, *value.list.func) if value.WhichOneof("value") in ("func", "list") else ():
        if function.name:
            function.name = names.get(function.name, function.name)
    if value.WhichOneof("value") == "s" and (text := names.get(value.s.decode(errors="replace"))):
        value.s = text.encode()


def _rename_in_objects(objects: saved_object_graph_pb2.SavedObjectGraph, names: dict[str, str]) -> None:
    for node in objects.nodes:
        if node.WhichOneof("kind") == "function":
            node.function.concrete_functions[:] = [names.get(name, name) for name in node.function.concrete_functions]
        if node.WhichOneof("kind") == "bare_concrete_function":
            bare = node.bare_concrete_function
            bare.concrete_function_name = names.get(bare.concrete_function_name, bare.concrete_function_name)
    known = {
        names.get(name, name): function.SerializeToString() for name, function in objects.concrete_functions.items()
    }
    objects.concrete_functions.clear()
    for name, content in known.items():
        objects.concrete_functions[name].ParseFromString(content)
