"""JSON answers of the registry as the dataclasses of common/registry/catalog.py."""

from collections.abc import Mapping
from typing import Any, TypeVar

from common.errors import Unavailable
from common.json_values import value_of

T = TypeVar("T")


def list_of(document: Any, name: str, path: str) -> list[Any]:
    """A list, bare or under its name, of what the registry answered to `path`. Raises Unavailable."""
    items = document.get(name) if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise Unavailable(f"the registry's answer to {path} has no list of {name}")
    return items


def build(kind: type[T], mapping: Any) -> T:
    """As common.json_values reads it. Raises Unavailable: another release or another program answers there."""
    if not isinstance(mapping, Mapping):
        raise Unavailable(f"the answer is not a {kind.__name__}: {str(mapping)[:80]}")
    try:
        return value_of(kind, mapping)
    except TypeError as error:
        raise Unavailable(f"the answer is not a whole {kind.__name__}: {error}") from error
