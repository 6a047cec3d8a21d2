"""JSON as the dataclasses that it was made of: tuples, enums, numbers as keys and nested dataclasses by their hints."""

import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def value_of(kind: type[T], mapping: Mapping[str, Any]) -> T:
    """A dataclass's value from a JSON object with the same field names; the inverse of asdict, after JSON.

    Keys that this release does not know are left out; lists that the object leaves out are empty.

    Raises:
        TypeError, ValueError, AttributeError: the object is of another shape.
    """
    values: dict[str, Any] = {}
    for name, hint in _hints(typing.cast(Any, kind)).items():
        if name in mapping:
            values[name] = _value(hint, mapping[name])
        elif typing.get_origin(hint) is tuple:
            values[name] = ()
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value or ())
    if origin is Mapping:
        of_key, of_item = typing.get_args(hint)
        # JSON has no numbers as keys.
        return {int(key) if of_key is int else key: _value(of_item, item) for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(hint) if part is not type(None))
        return None if value is None else _value(inner, value)
    if is_dataclass(hint):
        return value_of(typing.cast(Any, hint), value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    return value
