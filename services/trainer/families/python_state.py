"""What a module's Python holds beside variables: globals, closures, attributes of its objects, generators.

A process that goes on to another round has the values of before, where a new process has those of a fresh import. As
long as a round leaves them as they were when the model was built, the two are the same.
"""

import hashlib
import random
import types
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from itertools import count
from typing import Any

import keras
import numpy as np

from services.trainer.keras_internals import layers_of

_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)
_MOST_VALUES = 20_000
_SHOWN_CHARS = 80


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
