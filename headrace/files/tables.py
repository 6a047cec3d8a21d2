"""Tables in files: CSV, NDJSON, Parquet and Arrow as rows under headers, for any use."""

import codecs
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import orjson

from common.counted import counted
from common.errors import InvalidInput
from common.examples.cells import flattened
from common.examples.repeated_keys import refuse_repeated_keys
from common.storage import Place
from headrace.files.packed import foreign, opened, suffix_of, unknown_format

TableFormat = Literal["csv", "ndjson", "parquet"]
CSV: Final = "csv"
NDJSON: Final = "ndjson"
PARQUET: Final = "parquet"
KIND_OF_SUFFIX: Mapping[str, TableFormat] = {
    ".csv": CSV, ".tsv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON, ".json": NDJSON,
    ".parquet": PARQUET, ".pq": PARQUET, ".feather": PARQUET, ".arrow": PARQUET,
}  # fmt: skip
REPEATED = "has the names of the columns once more, as files that were put together have; take the line out"
_DELIMITERS = ",;\t|"
_PARQUET_ROWS = 5_000
_ARROW = b"ARROW1"
"""An Arrow file begins so (Arrow Columnar Format, IPC File Format); Feather is its other name."""
_MAX_LINE_CHARACTERS = 16 * 1024 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
"""The default bound of a request to ingest."""
_MAX_ARRAY_BYTES = 1 << 30
_ARRAY = re.compile(rb"\s*\[\s*(\{|$)")
_FOR_EXCEL = re.compile(r'"?sep=."?', re.IGNORECASE)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
    """The rows of a file, by its name. Raises InvalidInput: it cannot be read as what its name says; says where."""
    kind = KIND_OF_SUFFIX.get(suffix_of(path.name))
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder; name one of its files")
    if kind is None:
        raise unknown_format(path.name, KIND_OF_SUFFIX)
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
    """The table and the text, which the caller detaches. The delimiter is , ; tab or |, by the header; a blank behind
    each of the header's belongs to it, and to those of the rows. Raises InvalidInput: the file is empty, its header is
    no CSV, or two columns have one name."""
    beginning = file.read(len(codecs.BOM_UTF16_LE) + 4)
    file.seek(0)
    if kind := foreign(beginning):
        raise InvalidInput(f"{path} {kind}")
    text = io.TextIOWrapper(file, encoding="utf-16" if beginning.startswith(_UTF_16) else "utf-8-sig", newline="")
    try:
        header_line = text.readline(_MAX_LINE_CHARACTERS)
        if "\0" in header_line:
            text.detach()
            raise InvalidInput(f"{path} has zero bytes in its first line, as UTF-16 has; write it as UTF-8")
        if _FOR_EXCEL.fullmatch(header_line.strip()):
            text.detach()
            raise InvalidInput(f"{path} begins with {header_line.strip()}, which is for Excel alone; take the line out")
        delimiter = max(_DELIMITERS, key=lambda mark: _name_count(header_line, mark))
        others = header_line.split(delimiter)[1:]
        if header_line.startswith("#") and not others:
            text.detach()
            raise InvalidInput(f"{path} begins with the comment {header_line.strip()[:60]!r}; take the line out")
        text.seek(0)
        lines = _CountedLines(text)
        has_blanks = bool(others) and all(name.startswith(" ") for name in others)
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=has_blanks, strict=True)
        headers = next(reader, None)
    except UnicodeDecodeError as error:
        raise _not_utf_8(path, 1, error) from error
    except csv.Error as error:
        text.detach()
        raise InvalidInput(f"{path}, line 1: {error}") from error
    if headers is None:
        text.detach()
        raise InvalidInput(f"{path} is empty; a CSV file begins with a line of column names")
    named = max((place for place, header in enumerate(headers, 1) if header), default=0)
    headers = headers[:named] if 0 < named < len(headers) - 1 else headers  # spreadsheets write ;;; behind the last
    twice = sorted(header for header, count in Counter(headers).items() if count > 1)
    if twice:
        text.detach()
        raise InvalidInput(f"{path} has the column {twice[0]!r} more than once; rename all but one")
    return CsvTable(headers, delimiter, _checked(reader, lines, path, width=len(headers)), lines, reader), text


def wrong_width(cells: Sequence[str], headers: Sequence[object]) -> str:
    """What is wrong with a row that has not a cell for each column."""
    found = f"{counted(len(cells), 'value')} for {counted(len(headers), 'column')}"
    return found if len(headers) > 1 else f"{found}; the first line has the names of all columns, and no title"


def _name_count(header_line: str, mark: str) -> int:
    """0 where a name would be longer than csv takes."""
    try:
        return len(next(csv.reader([header_line], delimiter=mark), []))
    except csv.Error:
        return 0


def parquet_batches(path: Path | Place) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
    """(rows, number of the first from 0, rows in the file) at a time, of a Parquet or an Arrow file (Feather). Raises
    InvalidInput: pyarrow is not installed, or the file is neither."""
    try:
        from pyarrow import ArrowException, ipc, parquet
    except ImportError as error:
        raise InvalidInput(
            f"{path.name} needs pyarrow, which is not installed: pip install 'headrace[parquet]', or write it as CSV"
        ) from error
    try:
        with path.open() if isinstance(path, Place) else path.open("rb") as file:
            is_arrow = file.read(len(_ARROW)) == _ARROW
            file.seek(0)
            if is_arrow:
                of_arrow = ipc.open_file(file)
                total = sum(of_arrow.get_batch(number).num_rows for number in range(of_arrow.num_record_batches))
                batches = map(of_arrow.get_batch, range(of_arrow.num_record_batches))
            else:
                of_parquet = parquet.ParquetFile(file)
                total, batches = of_parquet.metadata.num_rows, of_parquet.iter_batches(batch_size=_PARQUET_ROWS)
            first = 0
            for batch in batches:
                for start in range(0, batch.num_rows, _PARQUET_ROWS):
                    rows = batch.slice(start, _PARQUET_ROWS).to_pylist(maps_as_pydicts="strict")
                    yield rows, first, total
                    first += len(rows)
    except (ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is no Parquet or Arrow file: {error}") from error
    except (OverflowError, ValueError, KeyError) as error:  # such as a time after the year 9999, a key twice in a map
        raise InvalidInput(f"{path} holds what cannot be read: {error}") from error


class _CountedLines:
    """Lines of text, those of the last row, and how many bytes they were; TextIOWrapper.tell() is off in a loop."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._line_count = 0
        self.byte_count = 0
        self.of_row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_MAX_LINE_CHARACTERS + 1):
            self._line_count += 1
            if len(line) > _MAX_LINE_CHARACTERS:
                raise csv.Error(f"line {self._line_count} is longer than {_MAX_LINE_CHARACTERS} characters; is it CSV?")
            self.byte_count += len(line.encode())
            self.of_row.append(line)
            yield line


def _checked(reader: Any, lines: _CountedLines, path: Path | Place, *, width: int) -> Iterator[list[str]]:
    """The rows that are not blank; what is no CSV is an InvalidInput with its line.

    Args:
        width: how many columns there are; cells beyond them are left out where they are empty.
    """
    while True:
        line = reader.line_num + 1
        lines.of_row.clear()
        try:
            row = next(reader, None)
        except UnicodeDecodeError as error:
            raise _not_utf_8(path, reader.line_num, error) from error
        except csv.Error as error:
            raise InvalidInput(f"{path}, {_fault_of(error, line, len(lines.of_row))}") from error
        if row is None:
            return
        if width < len(row) and not any(row[width:]):
            row = row[:width]
        if row:
            yield row


def _fault_of(error: csv.Error, line: int, line_count: int) -> str:
    """A stray quote makes one row of several lines."""
    if line_count < 2:
        return f"line {line}: {error}; quotes within a quoted cell are doubled"
    return (
        f"line {line}: a quote opens a cell that goes on over {line_count} lines and is not closed as it should be "
        f"({error}); quotes within a quoted cell are doubled"
    )


def _not_utf_8(path: Path | Place, line: int, error: UnicodeDecodeError) -> InvalidInput:
    return InvalidInput(
        f"{path} is not UTF-8 {_first_fault(path) or f'near line {line}'}: {error.reason}; write it as UTF-8, such as "
        f"with `iconv -f WINDOWS-1252 -t UTF-8`"
    )


def _first_fault(path: Path | Place) -> str:
    """Text is decoded many lines at a time: where the first byte is that is no UTF-8; "" for none."""
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                shown = line[max(0, error.start - 20) : error.end + 20].decode(errors="replace").strip()
                return f"in line {number} ({shown!r})"
    return ""


def records_of(frame: Any) -> list[dict[str, Any]]:
    """A DataFrame's rows by their columns' names. Raises InvalidInput: two columns have one name."""
    names = list(map(str, frame.columns))
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidInput(f"the frame has the column {twice[0]!r} more than once; rename all but one")
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def json_lines(file: BinaryIO, path: Path | Place) -> Iterator[tuple[bytes, int, int]]:
    """(line, its number, bytes up to its end) of what is not blank; of a JSON array of objects, each of them. Raises
    InvalidInput: a line is longer than 16 MiB, or the array is none or larger than 1 GiB."""
    offset = number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
        offset += len(line)
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
            if kind := foreign(line):
                raise InvalidInput(f"{path} {kind}")
            if _ARRAY.match(line):
                yield from _array_items(line + file.read(_MAX_ARRAY_BYTES), path)
                return
        if len(line) > _MAX_LINE_BYTES:
            raise InvalidInput(f"{path}, line {number} is longer than {_MAX_LINE_BYTES} bytes; is it NDJSON?")
        if line.strip():
            yield line if line.endswith(b"\n") else line + b"\n", number, offset


def _array_items(text: bytes, path: Path | Place) -> Iterator[tuple[bytes, int, int]]:
    if len(text) > _MAX_ARRAY_BYTES:
        raise InvalidInput(f"{path} is one JSON array of more than 1 GiB; write one object a line")
    items = parsed_json(text, f"{path}, which begins as a JSON array,")
    for number, item in enumerate(items, 1):
        yield orjson.dumps(item) + b"\n", number, len(text) * number // len(items)


def parsed_json(text: bytes, place: str, *, keeps_odd_numbers: bool = False) -> Any:
    """What the text says. NaN, which Python's json writes and JSON does not have, is null: there is no value.

    Args:
        keeps_odd_numbers: NaN, Infinity and -Infinity are these numbers, as in requests of TensorFlow Serving.

    Raises:
        InvalidInput: it is no JSON, or an object in it names a key twice.
    """
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in text and not keeps_odd_numbers:
            raise InvalidInput(f"{place} is not JSON: {error}") from error
        try:
            found = json.loads(text, parse_float=_finite, parse_constant=float if keeps_odd_numbers else _constant)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{place} is not JSON: {error}") from error
    refuse_repeated_keys(text, found, place)
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large for a number")
    return number


def _constant(name: str) -> None:
    if name != "NaN":
        raise ValueError(f"{name} is no number of JSON")


def _csv_rows(path: Path) -> Iterator[Row]:
    with opened(path) as file:
        table, text = open_csv(file, path)
        try:
            for cells in table.rows:
                if len(cells) != len(table.headers):
                    raise InvalidInput(f"{path}, line {table.line}: {wrong_width(cells, table.headers)}")
                if cells == table.headers:
                    raise InvalidInput(f"{path}, line {table.line} {REPEATED}")
                yield Row(dict(zip(table.headers, cells, strict=True)), table.line, table.has_decimal_commas)
        finally:
            text.detach()


def _ndjson_rows(path: Path) -> Iterator[Row]:
    with opened(path) as file:
        for line, number, _ in json_lines(file, path):
            try:
                values = parsed_json(line, f"{path}, line {number}")
            except InvalidInput as error:
                if number > 1 or not line.lstrip().startswith(b"{"):
                    raise
                raise InvalidInput(
                    f"{error.message}; rows are objects, each on a line or all in one JSON array"
                ) from error
            if not isinstance(values, dict):
                raise InvalidInput(f"{path}, line {number} is no JSON object: {line[:60]!r}")
            yield Row(flattened(values, place=f"{path}, line {number}"), number)


def _parquet_rows(path: Path) -> Iterator[Row]:
    for rows, first, _ in parquet_batches(path):
        for index, values in enumerate(rows, first + 1):
            yield Row(flattened(values, place=f"{path}, row {index}"), index)
