"""Files of rows to predict: JSON, NDJSON, CSV, Parquet, Arrow, npy, TFRecord."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from common.errors import DataLoss, InvalidInput
from common.eventlog.tfrecord import cut
from common.examples.cells import column_name, fitted, flattened, is_missing, is_number, typed, with_point
from common.examples.naming import name_of_alias
from common.schema import Feature, Schema
from common.statistics.examples import as_values
from common.storage import place_of
from headrace.files.packed import opened, opened_records, suffix_of, unknown_format
from headrace.files.tables import CSV, KIND_OF_SUFFIX, PARQUET, Row, json_lines, parsed_json, records_of, rows_of

SUFFIXES = (*KIND_OF_SUFFIX, ".npy", ".tfrecord", ".tfrecords")
_INTEGERS = ("DT_INT", "DT_UINT")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Wanted:
    """What is read of a file.

    Attributes:
        types: {input: TensorFlow's type name}.
        schema: the stream's; with it values are read as `headrace ingest` reads them, and what is optional may be
            missing. None where only the signature is known.
        label: of the schema, to be read beside the inputs; "" for none.
        name_of: {alias: input or label}, besides those of the schema.
        yes_no: inputs that take words for 1 and 0.
    """

    types: Mapping[str, str]
    schema: Schema | None = None
    label: str = ""
    name_of: Mapping[str, str] = field(default_factory=dict)
    yes_no: frozenset[str] = frozenset()

    @property
    def aliases(self) -> Mapping[str, str]:
        return {**(name_of_alias(self.schema.columns) if self.schema else {}), **self.name_of}


@dataclass(frozen=True)
class Rows:
    """Attributes:
    rows: mappings by input, or bare values where the signature has one input.
    labels: one for each row, None where it has none; empty when no label was asked for or none is there.
    """

    rows: list[Any]
    labels: list[Any]


def read_rows(path: Path, wanted: Wanted) -> Rows:
    """The rows of a file; columns that are not wanted are left out. Raises InvalidInput: the file cannot be read as
    what its name says, or an input is missing; says where."""
    suffix = suffix_of(path.name)
    if not path.exists():
        raise InvalidInput(f"{path} cannot be read: No such file or directory")
    if suffix not in SUFFIXES:
        raise unknown_format(path.name, SUFFIXES)
    try:
        found = _rows_in(path, suffix, wanted)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason}") from error
    if not found:
        raise InvalidInput(f"{path} has no rows")
    rows, labels = [], []
    for where, row in found:
        if not isinstance(row, dict) or row.keys() == {"b64"}:
            rows.append(row)
            continue
        place = f"{path}, {where}"
        named = _named(flattened(row, wanted.types, place=place), wanted, place)
        rows.append({name: _input(name, named, wanted, place) for name in wanted.types})
        labels.append(_label(named, wanted))
    return Rows(rows, labels if any(label is not None for label in labels) else [])


def values_of_frame(frame: Any, wanted: Wanted) -> list[dict[str, Any]]:
    """A DataFrame's rows as inputs of a signature. Raises InvalidInput: an input has no column."""
    found = [_named(row, wanted, "the frame") for row in records_of(frame)]
    return [
        {name: _input(name, row, wanted, f"row {number}") for name in wanted.types}
        for number, row in enumerate(found, 1)
    ]


def _named(row: Mapping[str, Any], wanted: Wanted, place: str) -> dict[str, Any]:
    """By the names that are wanted: the header itself, one it is an alias of, or the name that `headrace init` makes
    of it."""
    known = {*wanted.types, *([wanted.label] if wanted.label else [])}
    named: dict[str, Any] = {}
    name_of = wanted.aliases
    for index, (header, value) in enumerate(row.items()):
        name = name_of.get(header) or (header if header in known else column_name(header, index))
        if name in known and name in named:
            raise InvalidInput(f"{place} has more than one column for {name}; rename all but one")
        named[name] = value
    return named


def _input(name: str, row: Mapping[str, Any], wanted: Wanted, place: str) -> Any:
    feature = next((f for f in wanted.schema.features if f.name == name), None) if wanted.schema else None
    value = row.get(name)
    if feature is not None:
        value = None if isinstance(value, str) and is_missing(feature, value) else value
        try:
            value = typed(feature, value) if isinstance(value, str) else fitted(feature, value)
        except ValueError as error:
            raise InvalidInput(f"{place}: {name} {str(value)[:60]!r} {error}") from None
        except RecursionError as error:
            raise InvalidInput(f"{place}: {name} is nested too deeply to be read") from error
        if value is None and not feature.required:
            return [] if feature.is_variable_length else _repeated(feature)
    elif isinstance(value, str) and name not in wanted.yes_no:
        value = _cell(value, wanted.types[name], f"{place}: {name}")
    if value is None:
        raise InvalidInput(
            f"{place} has no {name}: it has {', '.join(row)}; the signature has the inputs {', '.join(wanted.types)}"
        )
    return value


def _repeated(feature: Feature) -> Any:
    value: Any = feature.json_default
    for size in reversed(feature.shape):
        value = [value] * (size or 0)
    return value


def _label(row: Mapping[str, Any], wanted: Wanted) -> Any:
    """None where there is none, or none that can be read."""
    if not wanted.label or wanted.schema is None:
        return None
    feature, value = wanted.schema.feature(wanted.label), row.get(wanted.label)
    if value is None or (isinstance(value, str) and value.strip() == ""):
        return None
    try:
        value = typed(feature, value) if isinstance(value, str) else fitted(feature, value)
    except ValueError:
        return None
    if feature.dtype == "string":
        return feature.vocabulary.index(value) if value in feature.vocabulary else None
    return value if isinstance(value, int | float) else None


def _rows_in(path: Path, suffix: str, wanted: Wanted) -> list[tuple[str, Any]]:
    """(where it stands, row)."""
    kind = KIND_OF_SUFFIX.get(suffix)
    if kind in (CSV, PARQUET):
        word = "row" if kind == PARQUET else "line"
        return [(f"{word} {row.number}", _pointed(row, wanted)) for row in rows_of(path)]
    readers = {".json": _json, ".npy": _npy, ".tfrecord": _tfrecord, ".tfrecords": _tfrecord}
    return [(f"row {number}", row) for number, row in enumerate(readers.get(suffix, _ndjson)(path), 1)]


def _pointed(row: Row, wanted: Wanted) -> dict[str, Any]:
    """With decimal points, where the stream's schema says that it is a number."""
    numbers = {column.name for column in wanted.schema.columns if is_number(column)} if wanted.schema else set()
    if not row.has_decimal_commas or not numbers:
        return dict(row.values)
    return {
        header: with_point(cell) if {header, wanted.aliases.get(header), column_name(header, index)} & numbers else cell
        for index, (header, cell) in enumerate(row.values.items())
    }


def _json(path: Path) -> list[Any]:
    with opened(path) as file:
        text = file.read()
    try:
        document = parsed_json(text, str(path))
    except InvalidInput:
        if text.lstrip().startswith(b"{") and b"\n" in text.strip():  # an object a line
            return _ndjson(path)
        raise
    if isinstance(document, dict) and "instances" in document:
        document = document["instances"]
    return document if isinstance(document, list) else [document]


def _ndjson(path: Path) -> list[Any]:
    with opened(path) as file:
        return [parsed_json(line, f"{path}, line {number}") for line, number, _ in json_lines(file, path)]


def _npy(path: Path) -> list[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise InvalidInput(f"{path} is not an npy file of numbers: {error}") from error
    if array.ndim == 0:
        raise InvalidInput(f"{path} holds one number; its first dimension must be the rows")
    return list(array)


def _tfrecord(path: Path) -> list[Any]:
    """Each Example by feature: a list where there is not one value, {"b64"} where bytes are no text."""
    with opened_records(place_of(path)) as file:
        content = file.read()
    try:
        return [as_values(example) for example in cut(content)[0]]
    except (DataLoss, DecodeError) as error:
        raise InvalidInput(f"{path} is no file of tf.train.Examples: {error}") from error


def _cell(text: str, type_name: str, where: str) -> Any:
    if type_name == "DT_STRING":
        return text
    try:
        if text[:1] == "[":
            return orjson.loads(text)
        if type_name == "DT_BOOL":
            return _TRUTHS[text.strip().lower()]
        return int(text) if type_name.startswith(_INTEGERS) else float(text)
    except (ValueError, KeyError):
        raise InvalidInput(f"{where} is {text[:40]!r}, expected a value of {type_name}") from None
