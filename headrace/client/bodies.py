"""What requests and answers are made of: a name in a path, JSON, the dataclasses of common/registry/catalog.py."""

import base64
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from common.errors import InvalidInput, Unavailable
from common.json_values import value_of

JSON = {"Content-Type": "application/json"}
T = TypeVar("T")


def segment(name: str) -> str:
    return quote(name, safe="")


def encode(document: Any) -> bytes:
    try:
        return orjson.dumps(document, default=plain, option=orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidInput(f"the request cannot be written as JSON: {error}") from error


def plain(value: Any) -> Any:
    """What JSON writers do not take as it is: arrays, numpy's scalars, bytes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


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
