"""What the values of each column are: counted once over the whole file."""

import datetime
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from common.errors import InvalidInput
from common.examples.cells import MISSING_WORDS, amount, column_name, epoch_seconds, parse_date, with_point
from common.examples.values import EXACT_FLOATS, TRUTHS
from headrace.files.tables import Row

MOST_DISTINCT = 100_000
"""Values that are counted each; with more, a column has `many`."""
_CHUNK_ROWS = 10_000
_NUMBERS = ("whole", "number")
_STRAY_SHARE = 0.1
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,99})")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_SIGN = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""A letter of Thai, Lao, Japanese or Chinese, which are written without spaces between words."""
_FLOAT32_MAX = 3.4e38
_FLOAT32_WHOLE = 2**24
_INT64_MAX = 2**63


@dataclass
class Column:
    """One column.

    Attributes:
        kinds: how many rows hold what: truth, whole (1,234 too), integral (2.0), number, date, text, bytes, list,
            nested, empty, marker (a word such as NA).
        values: how often each value occurs, as long as they are at most MOST_DISTINCT.
        minimum, maximum, total, squares: over numbers and dates (epoch seconds), elements of lists too.
        lengths, elements: of lists: how long they are, and the kinds of what is in them.
        row_lengths, is_flat: of lists in lists: how long they are; whether a list holds single values.
        longest_text: in characters.
        pieces: how many words the texts have together; of scripts that write without spaces, `signs`, each letter.
        units: of amounts such as $12 and 5 %; numbers in several units are texts.
    """

    header: str
    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    many: bool = False
    minimum: float = math.inf
    maximum: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    lengths: set[int] = field(default_factory=set)
    elements: set[str] = field(default_factory=set)
    row_lengths: set[int] = field(default_factory=set)
    is_flat: bool = False
    longest_text: int = 0
    pieces: int = 0
    signs: int = 0
    units: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return sum(self.kinds.values())

    @property
    def distinct(self) -> int:
        """How many values there are, nothing not among them."""
        return len(self.values) - ("" in self.values)

    @property
    def kind(self) -> str:
        """truth, whole, number, date, text, bytes, list or empty: what every value can be read as."""
        found = {kind for kind, count in self.kinds.items() if count}
        if "nested" in found or (self.is_flat and self.row_lengths) or ("list" in found and found - {"list", "empty"}):
            return "nested"
        if "list" in found:
            return "list"
        if "bytes" in found:
            return "bytes"
        present = found - {"empty", "marker"}
        if not present:
            return "text" if "marker" in found else "empty"
        if present == {"truth"}:
            return "truth"
        if len(self.units) > 1:
            return "text"
        if present == {"truth", "whole"} and self.minimum >= 0 and self.maximum <= 1:
            return "truth"
        if self.is_whole and ("integral" not in present or self.is_code):
            return "whole"
        if present <= {"whole", "integral", "number"}:
            return "number"
        return "date" if present == {"date"} else "text"

    @property
    def is_whole(self) -> bool:
        """Whether every value is a whole number, 2.0 too."""
        present = {kind for kind, count in self.kinds.items() if count} - {"empty", "marker"}
        return bool(present) and present <= {"whole", "integral"} and len(self.units) < 2

    @property
    def is_code(self) -> bool:
        """Whether a float32 would not tell its whole numbers apart."""
        return max(abs(self.minimum), abs(self.maximum)) > _FLOAT32_WHOLE

    @property
    def missing(self) -> int:
        """How many rows have no value; in a column of text NA is a word."""
        return self.kinds["empty"] + (0 if self.kind == "text" else self.kinds["marker"])

    @property
    def words_a_text(self) -> float:
        """On average, as `pieces` counts them."""
        return self.pieces / max(1, self.kinds["text"])

    @property
    def strays(self) -> list[str]:
        """The few texts of a column whose other values are all numbers, or all dates."""
        texts, present = self.kinds["text"], self.rows - self.kinds["empty"] - self.kinds["marker"]
        alike = max(self.kinds["date"], sum(self.kinds[kind] for kind in ("whole", "integral", "number")))
        few = 0 < texts < _STRAY_SHARE * present and alike == present - texts
        return sorted(value for value in self.values if kind_of(value)[0] == "text") if few else []

    @property
    def mean(self) -> float:
        present = self.rows - self.missing
        return self.total / present if present else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        present = self.rows - self.missing
        return math.sqrt(max(self.squares / present - self.mean**2, 0.0)) if present else 0.0

    def words(self) -> list[str]:
        """The cells that occur, most frequent first, without what is missing."""
        absent = ("empty",) if self.kind == "text" else ("empty", "marker")
        ordered = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))
        return [cell for cell, _ in ordered if kind_of(cell)[0] not in absent]

    def add(self, counts: Counter[str]) -> None:
        for cell, count in counts.items():
            kind, number = kind_of(cell)
            self.kinds[kind] += count
            if number is not None:
                self.minimum, self.maximum = min(self.minimum, number), max(self.maximum, number)
                self.total += number * count
                self.squares += number * number * count
                self.units |= {found[1] for found in [amount(cell)] if found and found[1]}
            elif kind == "text":
                self.longest_text = max(self.longest_text, len(cell))
                signs = len(_SIGN.findall(cell))
                self.signs += signs * count
                self.pieces += (signs + len(_SIGN.sub(" ", cell).split())) * count
        if not self.many:
            self.values.update(counts)
            self.many = len(self.values) > MOST_DISTINCT
        if self.many:
            self.values.clear()

    def add_list(self, items: list[Any]) -> None:
        self.kinds["list"] += 1
        self.lengths.add(len(items))
        rows = [item for item in items if isinstance(item, list | tuple)]
        self.row_lengths.update(map(len, rows))
        self.is_flat |= len(rows) < len(items)
        for item in itertools.chain.from_iterable(rows) if rows else items:
            if item is None or isinstance(item, list | tuple | dict):
                self.elements.add("nested")
                continue
            kind, number = ("text", None) if isinstance(item, str) else kind_of(cell_of(item))
            self.elements.add(kind)
            if number is not None:
                self.minimum, self.maximum = min(self.minimum, number), max(self.maximum, number)


def columns_of(rows: Iterable[Row]) -> list[Column]:
    """The columns of a table, in the order in which they first occur. Raises InvalidInput: there are no rows, or two
    columns would have the same name."""
    columns: dict[str, Column] = {}
    count = 0
    for chunk in _chunks(rows):
        headers = dict.fromkeys(header for row in chunk for header in row)
        for header in headers:
            if header not in columns:
                columns[header] = Column(header, column_name(header, len(columns)))
                columns[header].kinds["empty"] += count
        for header, column in columns.items():
            _count(column, [row.get(header) for row in chunk])
        count += len(chunk)
    if not columns:
        raise InvalidInput("the file has no rows to learn from")
    if count == 1:
        raise InvalidInput(
            "the file has one row, and there is nothing to compare it with; JSON that holds columns, or rows within an "
            "object, is written as one object a line: to_json(orient='records', lines=True) of pandas"
        )
    names = Counter(column.name for column in columns.values())
    for name, times in names.items():
        if times > 1:
            same = " and ".join(repr(column.header) for column in columns.values() if column.name == name)
            raise InvalidInput(f"the columns {same} would both be called {name}; rename one of them in the file")
    return list(columns.values())


def check_header(columns: Sequence[Column], file: str) -> None:
    """Raises InvalidInput: what should be the names of the columns are values of them, so that a row would be lost."""
    if all(_is_value(column) for column in columns) and any(column.kind in _NUMBERS for column in columns):
        names = ", ".join(column.header for column in columns[:4])
        raise InvalidInput(f"the first line of {file} holds values ({names}); put a line of column names above it")


def _is_value(column: Column) -> bool:
    if column.kind in _NUMBERS:
        return kind_of(column.header)[0] in ("whole", "integral", "number")
    return bool(column.header) and column.header in column.values


def kind_of(text: str) -> tuple[str, float | None]:
    """(kind, its number) of a cell, an amount's without its unit; see Column.kinds."""
    text = text.strip()
    if not text:
        return "empty", None
    if _WHOLE.fullmatch(text):
        is_number = -_INT64_MAX <= int(text) < _INT64_MAX  # else a code: a float would lose its last digits
        return ("whole", float(text)) if is_number else ("text", None)
    if text.lower() in MISSING_WORDS:
        return "marker", None
    if text.lower() in TRUTHS:
        return "truth", float(TRUTHS[text.lower()])
    if _NUMBER.fullmatch(text) and not _LEADING_ZERO.match(text) and abs(float(text)) < _FLOAT32_MAX:
        number = float(text)
        return ("integral" if number.is_integer() and abs(number) < EXACT_FLOATS else "number"), number
    if found := amount(text):
        return ("number" if found[1] or "." in text else "whole"), found[0]
    moment = parse_date(text)
    return ("date", float(epoch_seconds(moment))) if moment else ("text", None)


def cell_of(value: Any) -> str:
    """A value of JSON or Parquet as the cell that CSV would have."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return str(value.total_seconds())
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _chunks(rows: Iterable[Row]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        pointed = (
            {name: with_point(cell) for name, cell in row.values.items()} if row.has_decimal_commas else row.values
        )
        chunk.append(dict(pointed))
        if len(chunk) == _CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _count(column: Column, values: list[Any]) -> None:
    cells: list[str] = []
    for value in values:
        items = _list_in(value)
        if items is not None:
            column.add_list(items)
        elif _is_bytes(value):
            column.kinds["bytes"] += 1
        elif isinstance(value, dict):
            column.kinds["nested"] += 1
        elif isinstance(value, float) and math.isinf(value):  # which ingest refuses
            column.kinds["number"] += 1
        else:
            cells.append(value if isinstance(value, str) else cell_of(value))
    column.add(Counter(cells))


def _is_bytes(value: Any) -> bool:
    """Bytes that are no text, also as {"b64": ...}."""
    if not isinstance(value, bytes):
        return isinstance(value, dict) and value.keys() == {"b64"}
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def _list_in(value: Any) -> list[Any] | None:
    """A list, or the text of a JSON list."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or value[:1] != "[":
        return None
    try:
        items = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return items if isinstance(items, list) else None
