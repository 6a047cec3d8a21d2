"""Rows of the tables as the catalog's values, whose fields are called as the columns are."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def read_row(columns: Mapping[Any, Any], made: Callable[..., Value], **others: Any) -> Value:
    """A dataclass's value: fields are read from the columns of their names, a field `x` from the JSON of `x_json`.

    Args:
        columns: a row's `_mapping`, or more names beside it.
        others: fields that are read otherwise; those that no column has keep their defaults.
    """
    found = {}
    for name in {field.name for field in fields(cast(Any, made))} - others.keys():
        if name in columns:
            found[name] = columns[name]
        elif f"{name}_json" in columns:
            found[name] = json.loads(columns[f"{name}_json"])
    return made(**found, **others)
