"""Rows of JSON that leave inputs out: the schema's defaults go into the gaps, lists that may be filled up get the same
length, and lists of lists become the two lists that a signature takes. Used only for versions that came with a schema
(common/definition/inputs.py).
"""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from common.schema import PADDING
from services.serving.rest_json.values import is_base64
from services.serving.wire.prediction import check_filled, invalid
from services.serving.wire.replica_state import Signature, TensorSpec
from services.serving.wire.tensors import MAX_EXPANDED_BYTES

_Row = dict[str, Any]
_POINTER_BYTES = 8
"""Of a value in a list."""
_MOST_TIMES = 4
"""Lists that are filled up may be so many times as large as they came, where they are large."""


def filled_rows(
    instances: Sequence[Any], signature: Signature
) -> tuple[list[Any], Mapping[str, TensorSpec], dict[str, int]]:
    """The rows with their gaps filled, the inputs that they hold then, and how many rows of an input were filled.

    A key that is null counts as left out, as at ingest. An input that no row has stays left out, for the runner to fill
    in; only where nothing would be left it is filled in here. What is no row is left as it is. Raises RequestFailed: a
    list holds the padding."""
    rows = [in_two_lists(row, signature) if isinstance(row, dict) and not is_base64(row) else row for row in instances]
    named = [row for row in rows if isinstance(row, dict)]
    specs = dict(signature.inputs)
    defaulted: dict[str, int] = {}
    absent: list[str] = []
    for name, default in signature.optional.items():
        gaps = [row for row in named if row.get(name) is None]
        if len(gaps) == len(rows):
            absent.append(name)
            continue
        if gaps:
            _fill(gaps, name, default, signature)
            defaulted[name] = len(gaps)
    if absent and len(absent) == len(specs):
        name = absent.pop(0)
        _fill(named, name, signature.optional[name], signature)
        defaulted[name] = len(named)
    for name in absent:
        del specs[name]
        for row in named:
            row.pop(name, None)
    for name, padding in signature.padding.items():
        if name in specs:
            _even_out(named, name, padding, (specs[name].shape or ())[2:])
    return rows, specs, defaulted


def in_two_lists(row: Mapping[str, Any], signature: Signature) -> _Row:
    """The row with each list of lists as its values and, where they are an input, its row lengths. Raises
    RequestFailed: a row is no list."""
    laid = dict(row)
    for name, lengths in signature.nested.items():
        lists = row.get(name)
        if not isinstance(lists, list) or not any(isinstance(row, list) for row in lists):
            continue
        if not all(isinstance(row, list) for row in lists):
            raise invalid(f'input "{name}" is a list of lists, and a row of it is no list')
        laid[name] = [value for row in lists for value in row]
        if lengths in signature.inputs:
            laid[lengths] = list(map(len, lists))
    return laid


def even_columns(inputs: Mapping[str, Any], signature: Signature) -> Mapping[str, Any]:
    """Inputs by column, the lists of each that may be filled up at the length of its longest. Raises RequestFailed: a
    list holds the padding."""
    even = dict(inputs)
    for name, padding in signature.padding.items():
        column = inputs.get(name)
        if isinstance(column, list) and len({len(row) if isinstance(row, list) else -1 for row in column}) > 1:
            rows = [{name: value} for value in column]
            _even_out(rows, name, padding, (signature.inputs[name].shape or ())[2:])
            even[name] = [row[name] for row in rows]
    return even


def columns_in_two_lists(inputs: Mapping[str, Any], signature: Signature) -> Mapping[str, Any]:
    """The same for inputs by column: their rows are filled up to the longest where that is allowed. Raises
    RequestFailed: a row of a list of lists is no list."""
    laid = dict(inputs)
    for name, lengths in signature.nested.items():
        column = inputs.get(name)
        if not isinstance(column, list) or not any(isinstance(step, list) for row in column for step in _listed(row)):
            continue
        rows = [in_two_lists({name: row}, signature) for row in column]
        for part in (name, lengths):
            if part in signature.inputs:
                for row in rows:
                    row.setdefault(part, [])
                if part in signature.padding:
                    _even_out(rows, part, signature.padding[part], ())
                laid[part] = [row[part] for row in rows]
    return laid


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _fill(rows: Sequence[_Row], name: str, default: Any, signature: Signature) -> None:
    value: Any = default
    sizes = (signature.inputs[name].shape or ())[1:]
    whole = len(rows) * math.prod(max(size, 1) for size in sizes) * _POINTER_BYTES
    check_filled(name, whole, most=MAX_EXPANDED_BYTES)
    for size in reversed(sizes):
        value = [] if size < 0 else [value] * size
    for row in rows:
        row[name] = value


def _refuse_padding(rows: Sequence[_Row], name: str, padding: Any) -> None:
    shown = "U+FFFF" if isinstance(padding, str) else str(padding)
    if not isinstance(padding, str | int):  # NaN: JSON has none
        return
    encoded = {"b64": b64encode(padding.encode()).decode()} if isinstance(padding, str) else None
    for number, row in enumerate(rows):
        values = _leaves(row.get(name))
        if padding in values or (encoded and encoded in values):
            raise invalid(f'input "{name}", row {number}: {shown} fills lists up, and is no value of one')


def _leaves(value: Any) -> list[Any]:
    """The elements of a list, or of each of its steps; empty for another value."""
    steps = value if isinstance(value, list) else []
    return [leaf for step in steps for leaf in (step if isinstance(step, list) else [step])]


def _even_out(rows: Sequence[_Row], name: str, padding: Any, step_sizes: Sequence[int]) -> None:
    """Lists of one input get the length of the longest. `step_sizes`: of one step, () where it is one value. Raises
    RequestFailed: a list holds the padding."""
    lists = [row[name] for row in rows if isinstance(row.get(name), list)]
    if padding in PADDING.values():
        _refuse_padding(rows, name, padding)
    padding = math.nan if padding is None else padding
    for size in reversed(step_sizes):
        padding = [padding] * size
    longest = max(map(len, lists), default=0)
    if any(len(values) != longest for values in lists):
        step_bytes = math.prod(step_sizes) * _POINTER_BYTES
        given, whole = sum(map(len, lists)) * step_bytes, len(lists) * longest * step_bytes
        check_filled(name, whole, most=max(MAX_EXPANDED_BYTES, _MOST_TIMES * given))
        for row in rows:
            if isinstance(row.get(name), list):
                row[name] = row[name] + [padding] * (longest - len(row[name]))
