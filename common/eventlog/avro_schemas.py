"""Avro schemas as fastavro reads by them, without those by which a few bytes take all memory, or minutes."""

from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from fastavro import _read_py

from common.errors import InvalidInput

_MOST_DECIMAL_BYTES = 256


def parsed(schema: Any) -> tuple[Any, Any]:
    """The schema, and what reads by it: the fast reader ends the process at some thousand records in records. Raises
    InvalidInput: it is none, or ten bytes could be any number of values by it."""
    _bound_decimals()
    try:
        found = fastavro.parse_schema(schema)
        reader = _read_py if _holds_itself(found) else fastavro
        is_endless = _repeats_nothing(found, {})
    except Exception as error:  # fastavro has a dozen
        raise InvalidInput(f"the Avro schema cannot be used: {error}") from error
    if is_endless:
        raise InvalidInput(
            "the Avro schema cannot be used: it has an array of items that take no bytes, so ten bytes may be any "
            "number of them; leave that field out"
        )
    return found, reader


def _bound_decimals() -> None:
    for module in (fastavro.read, _read_py):
        for name in ("bytes-decimal", "fixed-decimal"):
            if not isinstance(module.LOGICAL_READERS[name], _Decimals):
                module.LOGICAL_READERS[name] = _Decimals(module.LOGICAL_READERS[name])


def _holds_itself(schema: Any, above: frozenset[str] = frozenset()) -> bool:
    """Whether a record of this parsed Avro schema may hold another of its kind, and so down to any depth."""
    if isinstance(schema, str):
        return schema in above
    if isinstance(schema, list):
        return any(_holds_itself(branch, above) for branch in schema)
    if "fields" in schema:
        return any(_holds_itself(field["type"], above | {schema["name"]}) for field in schema["fields"])
    return _holds_itself(schema.get("items") or schema.get("values") or schema["type"], above)


def _repeats_nothing(schema: Any, named: dict[str, Any]) -> bool:
    """Whether a parsed Avro schema has an array of items that take no bytes. named: gets the types that were seen."""
    if isinstance(schema, list):
        found = [_repeats_nothing(part, named) for part in schema]  # all of them: each may name types
        return any(found)
    if isinstance(schema, str):
        return False
    if "name" in schema:
        named[schema["name"]] = schema
    below = [field["type"] for field in schema.get("fields", ())]
    below += [schema[key] for key in ("items", "values") if key in schema]
    if isinstance(schema["type"], dict | list):
        below.append(schema["type"])
    found = [_repeats_nothing(part, named) for part in below]
    return any(found) or ("items" in schema and _takes_nothing(schema["items"], named))


def _takes_nothing(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return False
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_nothing(named[schema], named))
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _takes_nothing(kind, named)
    if "fields" in schema:
        return all(_takes_nothing(field["type"], named) for field in schema["fields"])
    return kind == "null" or (kind == "fixed" and not schema["size"])


class _Decimals:
    """fastavro's reader of a decimal, without lengths that would take minutes (256 bytes are 616 digits)."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read

    def __call__(self, data: bytes, *schemas: Any) -> Any:
        if len(data) > _MOST_DECIMAL_BYTES:
            raise ValueError(f"a decimal of {len(data)} bytes, expected at most {_MOST_DECIMAL_BYTES}")
        return self._read(data, *schemas)
