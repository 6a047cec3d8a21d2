"""JSON answers of the registry as the dataclasses of common/registry/catalog.py."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from common.errors import Unavailable

T = TypeVar("T")


def list_of(document: Any, name: str, path: str) -> list[Any]:
    """A list, bare or under its name, of what the registry answered to `path`. Raises Unavailable."""
    items = document.get(name) if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise Unavailable(f"the registry's answer to {path} has no list of {name}")
    return items


def build(kind: type[T], mapping: Any) -> T:
    """A dataclass from a JSON object with the same field names, nested ones too.

    Keys that this release does not know are left out; lists that the service left out are empty.

    Raises:
        Unavailable: the answer is of another shape, so another release or another program answers there.
    """
    if not isinstance(mapping, Mapping):
        raise Unavailable(f"the answer is not a {kind.__name__}: {str(mapping)[:80]}")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # T is a dataclass by contract
        if field.name in mapping:
            values[field.name] = _value(hints[field.name], mapping[field.name])
        elif typing.get_origin(hints[field.name]) is tuple:
            values[field.name] = ()
    try:
        return kind(**values)
    except TypeError as error:
        raise Unavailable(f"the answer is not a whole {kind.__name__}: {error}") from error


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value or ())
    if origin is Mapping and typing.get_args(hint)[0] is int:
        # JSON has no numbers as keys.
        return {int(key): item for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(hint) if part is not type(None))
        return None if value is None else _value(inner, value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    return value
