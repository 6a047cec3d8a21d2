"""Tables in files: CSV, NDJSON and Parquet as rows under headers, whatever is done with them."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from common.errors import InvalidInput
from common.examples.cells import flattened
from common.storage import Place

CSV, NDJSON, PARQUET = "csv", "ndjson", "parquet"
KIND_OF_SUFFIX: Mapping[str, str] = {
    ".csv": CSV, ".tsv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON, ".parquet": PARQUET, ".pq": PARQUET,
}  # fmt: skip
_DELIMITERS = ",;\t|"
_PARQUET_ROWS = 5_000
_MAX_LINE_CHARACTERS = 16 * 1024 * 1024


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        values: {header: value}; CSV gives texts.
        number: of its line (CSV, NDJSON) or row (Parquet), from 1.
        has_decimal_commas: 0,5 is a number here, as in files whose cells are divided by semicolons.
    """

    values: Mapping[str, Any]
    number: int
    has_decimal_commas: bool = False


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file, by its name.

    Raises:
        InvalidInput: it cannot be read as what its name says; says where.
    """
    kind = KIND_OF_SUFFIX.get(path.suffix.lower())
    if kind is None:
        raise InvalidInput(f"{path.name} does not say what it is; known are {', '.join(KIND_OF_SUFFIX)}")
    if not path.is_file():
        raise InvalidInput(f"{path} cannot be read: there is no such file")
    readers = {CSV: _csv_rows, NDJSON: _ndjson_rows, PARQUET: _parquet_rows}
    return readers[kind](path)


@dataclass
class CsvTable:
    """An open CSV file after its header. `line` and `byte_count` say how far it was read."""

    headers: list[str]
    delimiter: str
    rows: Iterator[list[str]]
    _lines: "_CountedLines"
    _reader: Any

    @property
    def has_decimal_commas(self) -> bool:
        """Of a file whose cells are divided by semicolons: commas are for the numbers."""
        return self.delimiter == ";"

    @property
    def line(self) -> int:
        return int(self._reader.line_num)

    @property
    def byte_count(self) -> int:
        return self._lines.byte_count


def open_csv(file: BinaryIO, path: Path | Place) -> tuple[CsvTable, io.TextIOWrapper]:
    """The table and the text, which the caller detaches. The delimiter is , ; tab or |, whichever splits the header.

    Raises:
        InvalidInput: the file is empty, its header is no CSV, or two columns have one name.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        delimiter = delimiter_of(text.readline(_MAX_LINE_CHARACTERS))
        text.seek(0)
        lines = _CountedLines(text)
        reader = csv.reader(lines, delimiter=delimiter)
        headers = next(reader, None)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 near line 1: {error.reason}") from error
    except csv.Error as error:
        text.detach()
        raise InvalidInput(f"{path}, line 1: {error}") from error
    if headers is None:
        text.detach()
        raise InvalidInput(f"{path} is empty; a CSV file begins with a line of column names")
    twice = sorted(header for header, count in Counter(headers).items() if count > 1)
    if twice:
        text.detach()
        raise InvalidInput(f"{path} has the column {twice[0]!r} more than once; rename all but one")
    return CsvTable(headers, delimiter, _checked(reader, path), lines, reader), text


def delimiter_of(header_line: str) -> str:
    """The one that cuts the header into most names."""
    return max(_DELIMITERS, key=lambda mark: _name_count(header_line, mark))


def _name_count(header_line: str, mark: str) -> int:
    """0 where a name would be longer than csv takes."""
    try:
        return len(next(csv.reader([header_line], delimiter=mark), []))
    except csv.Error:
        return 0


def parquet_batches(path: Path | Place) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
    """(rows, number of the first from 0, rows in the file) at a time.

    Raises:
        InvalidInput: pyarrow is not installed, or the file is no Parquet.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InvalidInput(
            f"{path.name} needs pyarrow, which is not installed: pip install 'headrace[parquet]', or write it as CSV"
        ) from error
    try:
        file = parquet.ParquetFile(path.open() if isinstance(path, Place) else path)
        first = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
            rows = batch.to_pylist()
            yield rows, first, file.metadata.num_rows
            first += len(rows)
    except (ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is no Parquet file: {error}") from error
    except (OverflowError, ValueError) as error:  # such as a time after the year 9999
        raise InvalidInput(f"{path} holds what cannot be read: {error}") from error


class _CountedLines:
    """Lines of text and how many bytes they were; TextIOWrapper.tell() is off in a loop."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._line_count = 0
        self.byte_count = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_MAX_LINE_CHARACTERS + 1):
            self._line_count += 1
            if len(line) > _MAX_LINE_CHARACTERS:
                raise csv.Error(f"line {self._line_count} is longer than {_MAX_LINE_CHARACTERS} characters; is it CSV?")
            self.byte_count += len(line.encode())
            yield line


def _checked(reader: Any, path: Path | Place) -> Iterator[list[str]]:
    """The rows that are not blank; what is no CSV is an InvalidInput with its line."""
    while True:
        try:
            row = next(reader, None)
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path} is not UTF-8 near line {reader.line_num}: {error.reason}") from error
        except csv.Error as error:
            raise InvalidInput(f"{path}, line {reader.line_num}: {error}") from error
        if row is None:
            return
        if row:
            yield row


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        table, text = open_csv(file, path)
        try:
            for cells in table.rows:
                if len(cells) != len(table.headers):
                    raise InvalidInput(
                        f"{path}, line {table.line}: {len(cells)} values for {len(table.headers)} columns"
                    )
                yield Row(dict(zip(table.headers, cells, strict=True)), table.line, table.has_decimal_commas)
        finally:
            text.detach()


def _ndjson_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InvalidInput(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(values, dict):
                raise InvalidInput(f"{path}, line {number} is no JSON object: {line[:60]!r}")
            yield Row(flattened(values), number)


def _parquet_rows(path: Path) -> Iterator[Row]:
    for rows, first, _ in parquet_batches(path):
        for index, values in enumerate(rows, first + 1):
            yield Row(flattened(values), index)
