"""JSON as the dataclasses that it was made of: tuples, enums, numbers as keys and nested dataclasses by their hints."""

import enum
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


def value_of(kind: type[T], mapping: Mapping[str, Any]) -> T:
    """A dataclass's value from a JSON object with the same field names; the inverse of asdict, after JSON.

    Keys that this release does not know are left out; lists that the object leaves out are empty. Raises TypeError,
    ValueError, AttributeError: the object is of another shape."""
    values = {}
    for name, read, empty in _fields(typing.cast(Any, kind)):
        if name in mapping:
            values[name] = mapping[name] if read is None else read(mapping[name])
        elif empty is not None:
            values[name] = empty
    return kind(**values)


@cache
def _fields(kind: Any) -> list[tuple[str, Callable[[Any], Any] | None, tuple[()] | None]]:
    """Of each field its name, how it is read, and what it is where it is left out; None: as it is, by its default."""
    hints = typing.get_type_hints(kind)
    named = [(field.name, hints[field.name]) for field in fields(kind)]
    return [(name, _reader(hint), () if typing.get_origin(hint) is tuple else None) for name, hint in named]


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        read = _reader(inner[0])
        return lambda items: tuple(items or () if read is None else map(read, items or ()))
    if origin is Mapping:
        key, read = (int if inner[0] is int else str), _reader(inner[1])  # JSON has no numbers as keys
        if key is str and read is None:
            return None
        return lambda items: {key(name): item if read is None else read(item) for name, item in items.items()}
    if origin in (typing.Union, types.UnionType):
        read = _reader(next(part for part in inner if part is not type(None)))
        return None if read is None else lambda value: None if value is None else read(value)
    if is_dataclass(hint):
        return partial(value_of, typing.cast(Any, hint))
    return hint if isinstance(hint, type) and issubclass(hint, enum.Enum) else None
