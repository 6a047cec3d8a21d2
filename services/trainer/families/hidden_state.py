"""What a module keeps, draws from or sets where no checkpoint has it: found when it is loaded, built and traced.

A round is stopped, taken up by another process and trained again to the same bits, and every replica answers alike. So
what a step reads and changes is in variables that Keras knows of, and an answer changes nothing.

A process that goes on to another round has the values of Python from before (globals, closures, attributes of the
module's objects, generators), where a new process has those of a fresh import. As long as a round leaves them as they
were when the model was built, the two are the same.
"""

import hashlib
import random
import re
import traceback
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import count
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.saved_model.operations import reason_of
from services.trainer.families.reasons import DefinitionFailedError, layer_of, with_place
from services.trainer.keras_internals import layers_of

_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)
_MOST_VALUES = 20_000
_SHOWN_CHARS = 80
Made = Sequence["weakref.ref[tf.Variable]"]
_OF_A_DUMP = ("DebugIdentityV2", "DebugNumericSummaryV2")
"""TensorFlow puts them beside each operation while a dump is made (summaries/debugger.py)."""
_ASSIGNS = re.compile(
    r"Assign\w*VariableOp|Resource(Scatter|Apply|SparseApply|StridedSliceAssign|CountUpTo)\w*|Rng(ReadAndSkip|Skip)"
)
_FILLS = re.compile(r"LookupTable(Insert|Remove|Import)\w*")
_SETTINGS: Sequence[tuple[str, Callable[[], Any], Callable[[Any], None], str]] = (
    (
        "Keras's dtype policy",
        lambda: keras.config.dtype_policy().name,
        keras.config.set_dtype_policy,
        "say training.mixed_precision in model.yaml, or give layers a dtype",
    ),
    ("Keras's floatx", keras.config.floatx, keras.config.set_floatx, "give layers and inputs a dtype"),
    (
        "tf.config.run_functions_eagerly",
        tf.config.functions_run_eagerly,
        tf.config.run_functions_eagerly,
        "say training.execution: eager in model.yaml",
    ),
    ("eager execution", tf.executing_eagerly, lambda _: tf.compat.v1.enable_eager_execution(), "leave it on"),
)


@contextmanager
def no_setting_changed(path: str) -> Iterator[None]:
    """Raises DefinitionFailedError where the code within sets something of the whole process; it is set back."""
    before = [read() for _, read, _, _ in _SETTINGS]
    try:
        yield
    finally:  # also where something raised: that may have come of it
        found = []
        for (name, read, write, instead), value in zip(_SETTINGS, before, strict=True):
            if (now := read()) != value:
                write(value)
                found.append(f"{name} to {now}, which other models of the process would have too; {instead}")
        if found:
            raise DefinitionFailedError(f"{path}: it sets {found[0]}")


@contextmanager
def variables_made() -> Iterator[list["weakref.ref[tf.Variable]"]]:
    """TensorFlow's variables that are made within; one of Keras's has one of them."""
    made: list[weakref.ref[tf.Variable]] = []

    def noted(make: Callable[..., tf.Variable], **given: Any) -> tf.Variable:
        variable = make(**given)
        made.append(weakref.ref(variable))
        return variable

    with tf.variable_creator_scope(noted):
        yield made


def unknown_to_keras(
    made: Iterable["weakref.ref[tf.Variable]"], network: keras.Model, optimizers: Iterable[keras.optimizers.Optimizer]
) -> Made:
    """Those that no checkpoint would have, were they used."""
    known = [*network.variables, *(variable for metric in network.metrics for variable in metric.variables)]
    for optimizer in optimizers:
        known += [*optimizer.variables, *getattr(optimizer, "inner_optimizer", optimizer).variables]
    ids = {id(variable.value) for variable in known}
    return tuple(reference for reference in made if id(reference()) not in ids)


def nothing_to_train(unknown: Made) -> DefinitionFailedError:
    """For a model without trainable variables that Keras knows of."""
    made = next((variable for reference in unknown if (variable := reference()) is not None), None)
    why = f"; it made {_described(made)}" if made is not None else ""
    return DefinitionFailedError(f"the model has nothing to train: no trainable variables{why}")


@contextmanager
def only_known_state(
    path: str | None,
    unknown: Made,
    seeds: Iterable[tf.Variable] = (),
    *,
    is_answer: bool = False,
    makes_layers: bool = False,
) -> Iterator[list[Any]]:
    """Looks at what the code within adds to the graph that is being made; eager execution is not looked at.

    Gives a list that takes what the code returns: a draw that nothing uses is none.

    Args:
        path: the module's; None for an estimator, which is not looked at either.
        unknown: variables that may not be used.
        seeds: of Keras's seed generators. An answer may go on in their numbers where it uses none of them: Keras's
            recurrent layers draw their dropout first, and then look whether they are trained.
        is_answer: variables may not be changed.
        makes_layers: within, so that Keras draws their seeds from Python's generator.

    Raises:
        DefinitionFailedError: it does what no checkpoint, rebuild or replica could repeat.
    """
    results: list[Any] = []
    if path is None or tf.executing_eagerly():
        yield results
        return
    graph, before = tf.compat.v1.get_default_graph(), generators(makes_layers=makes_layers)
    first = len(graph.get_operations())
    yield results
    if generators(makes_layers=makes_layers) != before:
        raise DefinitionFailedError(
            f"{path}: the model draws from numpy's or Python's generator in a call, which is drawn once for a graph; "
            f"use keras.random with a keras.random.SeedGenerator of the layer. A layer that a call makes draws so too; "
            f"make layers in __init__ or build"
        )
    _check_variables(path, graph, unknown)
    doing = "answers (training is false)" if is_answer else "trains"
    ends = {tensor.op for tensor in keras.tree.flatten(results) if isinstance(tensor, tf.Tensor)}
    handles = {id(seed.handle) for seed in seeds}
    drawn_from = {inner.name for outer, inner in graph.captures if id(outer) in handles}
    for operation in graph.get_operations()[first:]:
        for node in _nodes(graph, operation):
            fault = _fault_of(node, is_answer=is_answer)
            if fault and _is_used(operation, ends, drawn_from):
                layer = layer_of(operation.name)
                sentence = f"{path}: when the model {doing}, {f'layer {layer}' if layer else 'it'} {fault}"
                raise DefinitionFailedError(with_place(sentence, "".join(traceback.format_list(operation.traceback))))


def generators(*, makes_layers: bool) -> tuple[Any, ...]:
    """Where numpy's and Python's own are; without Python's where Keras draws the seeds of layers from it."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return (np.asarray(keys).tobytes(), *rest, None if makes_layers else random.getstate())


def _check_variables(path: str, graph: Any, unknown: Made) -> None:
    used = {id(outer) for outer, _ in graph.captures}
    for reference in unknown:
        variable = reference()
        if variable is not None and id(variable.handle) in used:
            raise DefinitionFailedError(f"{path}: the model uses {_described(variable)}")


def _described(variable: tf.Variable) -> str:
    name, kind, shape = variable.name.partition(":")[0], variable.dtype.name, tuple(variable.shape)
    return (
        f"the variable {name} ({kind} {shape}), which belongs to no layer that Keras knows of, so it would be neither "
        f"trained nor kept. Make it with self.add_weight, or keras.Variable, in a layer or in the model that "
        f"build_model returns; layers are attributes of these, or in lists or dicts that are"
    )


def _nodes(graph: Any, operation: tf.Operation) -> Iterator[Any]:
    """Its node, and those of functions that it calls."""
    waiting, seen = [operation.node_def] if operation.type != "Const" else [], set[str]()
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attr.values():
            for name in {attribute.func.name, *(called.name for called in attribute.list.func)} - seen:
                seen.add(name)
                if name and (function := graph._get_function(name)) is not None:
                    waiting += function.cached_definition.node_def


def _fault_of(node: Any, *, is_answer: bool) -> str:
    if node.op in _OF_A_DUMP:
        return ""
    if reason := reason_of(node.op):
        return f"runs {node.op}, which {reason}"
    if "seed2" in node.attr and not node.op.startswith("CudnnRNN"):
        return (
            f"draws with {node.op}, whose place in its numbers is lost when a round is stopped; use keras.random with "
            f"a keras.random.SeedGenerator of the layer, or keras.layers.Dropout"
        )
    if _FILLS.fullmatch(node.op):
        return f"changes a table ({node.op}), which no checkpoint has; use variables"
    if is_answer and _ASSIGNS.fullmatch(node.op):
        return (
            f"changes a variable ({node.op}), and every replica has its own; change it, and draw, only where "
            f"`training` is true, and leave out stateful=True"
        )
    return ""


def _is_used(operation: tf.Operation, ends: set[tf.Operation], drawn_from: set[str]) -> bool:
    """Whether it changes something, or what changes something or is returned depends on it. A seed that goes on changes
    nothing: of that one, whether the numbers are used.

    Args:
        drawn_from: the names of the tensors that lead to the seeds.
    """
    waiting, seen = [operation], {operation}
    if _goes_on(operation, drawn_from):
        reads = [read for read in operation.inputs[0].consumers() if read.type == "ReadVariableOp"]
        waiting = [user for read in reads for user in read.outputs[0].consumers()]
    while waiting:
        consumer = waiting.pop()
        if _goes_on(consumer, drawn_from):
            continue
        if consumer in ends or (consumer.op_def.is_stateful and "seed2" not in consumer.node_def.attr):
            return True
        following = {user for output in consumer.outputs for user in output.consumers()} - seen
        seen |= following
        waiting += following
    return False


def _goes_on(operation: tf.Operation, drawn_from: set[str]) -> bool:
    return bool(_ASSIGNS.fullmatch(operation.type)) and operation.inputs[0].name in drawn_from


@cache
def _of_keras() -> frozenset[str]:
    """Attributes that Keras keeps for itself: they change with every call, and no result follows from them."""
    made = (keras.layers.Layer(), keras.Model(), keras.metrics.Mean())
    return frozenset(name for object_made in made for name in vars(object_made))


def values_of(modules: Mapping[str, types.ModuleType], network: keras.Model | None) -> dict[str, str] | None:
    """By place, for example `model.calls` or `model.build_model.closure.seen`; None: there are too many to tell.

    Args:
        modules: the definition's files.
        network: its layers' attributes count where a class of the definition has them.
    """
    found = dict[str, str]()
    for path, text in _Walk({loaded.__name__ for loaded in modules.values()}).all(modules, network):
        found[path] = text
        if len(found) > _MOST_VALUES:
            return None
    return found


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`model.calls was 3 and is 4`; empty where there is none."""
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path, "not there"), after.get(path, "not there")
        if was != now:
            return f"{path} was {_shown(was)} and is {_shown(now)}"
    return ""


class _Walk:
    def __init__(self, own: Collection[str]) -> None:
        """`own`: full names of the definition's modules."""
        self._own, self._seen = own, dict[int, Any]()

    def all(self, modules: Mapping[str, types.ModuleType], network: keras.Model | None) -> Iterator[tuple[str, str]]:
        for name, module in modules.items():
            yield from self._members(name, vars(module))
        for layer in layers_of(network, include_self=True) if network is not None else ():
            yield from self._visit(layer.name, layer)

    def _is_own(self, module: object) -> bool:
        return module in self._own

    def _members(self, path: str, members: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
        for name, value in list(members.items()):
            if not (isinstance(name, str) and name.startswith("__")):
                yield from self._visit(f"{path}.{name}", value)

    def _visit(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, _PLAIN):
            yield path, repr(value)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value  # which keeps the id from being another's
        if (text := _text_of(value)) is not None:
            yield path, text
        elif isinstance(value, Mapping):
            yield path, f"of {len(value)}"
            yield from self._members(path, value)
        elif isinstance(value, list | tuple | set | frozenset):
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            yield path, f"of {len(items)}"
            yield from self._members(path, dict(enumerate(items)))
        else:
            yield from self._members(path, self._inside(value))

    def _inside(self, value: Any) -> dict[str, Any]:
        """What may change within a function, a class or an object of the module's own."""
        if isinstance(value, partial):
            return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
        if isinstance(value, types.MethodType):
            return {"self": value.__self__}
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, type):
            return dict(vars(value)) if self._is_own(value.__module__) else {}
        attributes = getattr(value, "__dict__", {})
        if not self._is_own(type(value).__module__):
            return {
                name: attribute for name, attribute in attributes.items() if isinstance(attribute, types.FunctionType)
            }
        of_keras = _of_keras() if isinstance(value, keras.layers.Layer | keras.metrics.Metric) else frozenset[str]()
        return {name: attribute for name, attribute in attributes.items() if name not in of_keras}

    def _of_function(self, function: types.FunctionType) -> dict[str, Any]:
        if not self._is_own(function.__module__):
            return {}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = dict[str, Any]()
        for name, cell in cells:
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # nothing is in it yet
                continue
        return {"closure": closure, "defaults": function.__defaults__, "attributes": vars(function)}


def _text_of(value: Any) -> str | None:
    """Of what has a state in itself; None for all else."""
    if isinstance(value, np.ndarray):
        return _digest(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    if isinstance(value, bytearray):
        return _digest(bytes(value))
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()).encode())
    if isinstance(value, np.random.RandomState):
        return _digest(repr(value.get_state(legacy=False)).encode())
    if isinstance(value, np.random.Generator):
        return _digest(repr(value.bit_generator.state).encode())
    return repr(value) if isinstance(value, count) else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
