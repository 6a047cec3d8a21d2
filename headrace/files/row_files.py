"""Files of rows to predict: JSON, NDJSON, CSV, npy."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from common.errors import InvalidInput

SUFFIXES = (".json", ".ndjson", ".jsonl", ".csv", ".npy")
_INTEGERS = ("DT_INT", "DT_UINT")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read_rows(path: Path, input_types: Mapping[str, str]) -> list[Any]:
    """The rows of a file: mappings by input, or bare values where the signature has one input.

    Args:
        input_types: {input: TensorFlow's type name}; CSV cells are read as these.

    Raises:
        InvalidInput: the file cannot be read as what its name says; says where.
    """
    readers = {".json": _json, ".ndjson": _ndjson, ".jsonl": _ndjson, ".npy": _npy}
    suffix = path.suffix.lower()
    if not path.exists():
        raise InvalidInput(f"{path} cannot be read: No such file or directory")
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{path.name} does not say what it is; known are {', '.join(SUFFIXES)}")
    try:
        rows = _csv(path, input_types) if suffix == ".csv" else readers[suffix](path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason}") from error
    if not rows:
        raise InvalidInput(f"{path} has no rows")
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict) and row.keys() != input_types.keys() and row.keys() != {"b64"}:
            raise InvalidInput(
                f"{path}, row {number} has the keys {', '.join(row)}; the signature has the inputs "
                f"{', '.join(input_types)}"
            )
    return rows


def _json(path: Path) -> list[Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if isinstance(document, dict) and "instances" in document:
        document = document["instances"]
    return document if isinstance(document, list) else [document]


def _ndjson(path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"{path}, line {number} is not JSON: {error}") from error
    return rows


def _npy(path: Path) -> list[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InvalidInput(f"{path} is not an npy file of numbers: {error}") from error
    if array.ndim == 0:
        raise InvalidInput(f"{path} holds one number; its first dimension must be the rows")
    return list(array)


def _csv(path: Path, input_types: Mapping[str, str]) -> list[Any]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is None:
            raise InvalidInput(f"{path} is empty; a CSV file begins with a line of column names")
        if sorted(header) != sorted(input_types):
            raise InvalidInput(
                f"{path} has the columns {', '.join(header)}; the signature has the inputs {', '.join(input_types)}"
            )
        rows = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"{path}, line {reader.line_num}: {len(cells)} values for {len(header)} columns")
            where = f"{path}, line {reader.line_num}"
            rows.append({
                name: _cell(cell, input_types[name], f"{where}: {name}")
                for name, cell in zip(header, cells, strict=True)
            })  # fmt: skip
        return rows


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
