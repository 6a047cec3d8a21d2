"""How a cell of a file, or a value of a table, becomes what a stream's schema asks for.

`headrace init` guesses a schema by these rules and `headrace ingest` reads by them, so a file fits its own schema.
"""

import base64
import datetime
import math
import re
import sys
import unicodedata
import uuid
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson

from common.errors import InvalidInput
from common.examples.values import EXACT_FLOATS, TRUTHS, shown
from common.schema import Feature, Schema

MISSING_WORDS = frozenset({
    "", "na", "n/a", "n.a.", "nan", "-nan", "nat", "null", "none", "nil", "?", "-", "--", ".", "\\n", "<na>", "#na",
    "#n/a", "#n/a n/a", "#null!", "#div/0!", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
})  # fmt: skip
"""In lower case: pandas's words, SAS's point, MySQL's \\N and Excel's errors. A number has no value where its cell is
one of them, a text where its cell is empty."""
_PANDAS_NOTHING = frozenset({"NAType", "NaTType"})
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_INT64 = range(-(2**63), 2**63)
_IN_64_BITS = "a whole number from -2^63 to 2^63-1"
_UNNAMED = re.compile(r"Unnamed: (\d+)")
"""What pandas calls a column without a header; `headrace init` would call it by its place, too."""
_LONGEST_NAME = 100
_UNITS = "[$€£¥₹%]|USD|EUR|GBP|JPY|CHF|CNY|INR"
_GAPS = " \u00a0\u2009\u202f'\u2019"
"""Between three digits each, as France, Sweden and Switzerland write thousands."""
_GROUPED = rf"\d{{1,3}}(,\d{{3}})+|\d{{1,3}}([{_GAPS}]\d{{3}})+|\d+"
_AMOUNT = re.compile(
    rf"(?P<minus>-?)(?P<before>{_UNITS})?\s?(?P<number>[+-]?({_GROUPED})(\.\d+)?)\s?(?P<after>{_UNITS})?"
)
_DECIMAL_COMMA = re.compile(rf"[+-]?(\d{{1,3}}([.{_GAPS}]\d{{3}})+|\d+),\d+")
_NO_DIGITS = str.maketrans("", "", f",{_GAPS}")
_IN_PARENTHESES = re.compile(r"\(([^-+()]+)\)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| ?UTC|[+-]\d\d(:?\d\d)?)?)?")


def column_name(header: str, index: int) -> str:
    """The header as a feature's name: what a name cannot hold becomes _; `column_3` where nothing is left.

    `index` counts from 0.
    """
    if _PLAIN_NAME.fullmatch(header):
        return header
    if unnamed := _UNNAMED.fullmatch(header):
        return f"column_{int(unnamed[1]) + 1}"
    letters = unicodedata.normalize("NFKD", header).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9]+", "_", letters).strip("_")[:_LONGEST_NAME]
    if not name:
        return f"column_{index + 1}"
    return f"_{name}" if name[0].isdigit() else name


def features_of(headers: Sequence[str], schema: Schema, place: str) -> list[Any]:
    """The schema's feature of each column, by its header, by an alias or by the name that is made of the header. Raises
    InvalidInput: a column is not in the schema, or two are the same feature."""
    columns = {feature.name: feature for feature in schema.columns}
    called = {name: feature for feature in schema.columns for name in (feature.name, *feature.aliases)}
    found = [called.get(header) or columns.get(column_name(header, index)) for index, header in enumerate(headers)]
    unknown = [header for header, feature in zip(headers, found, strict=True) if feature is None]
    if unknown:
        raise InvalidInput(
            f"{place} has columns that the schema does not know: {', '.join(unknown)}; it knows {', '.join(columns)}"
        )
    names = [feature.name for feature in found if feature]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"{place} has more than one column for {', '.join(twice)}; rename all but one")
    return found


def is_missing(feature: Feature, cell: str) -> bool:
    """Whether the cell says that there is no value. The empty text is a value of a string that is required."""
    if feature.dtype in ("string", "bytes") and feature.is_scalar:
        return cell == "" and not feature.required
    return cell.strip().lower() in MISSING_WORDS


def is_number(feature: Feature) -> bool:
    """Whether its cells are single numbers."""
    return feature.is_scalar and feature.dtype in ("float32", "int64")


def typed(feature: Feature, cell: str) -> Any:
    """The cell as the feature's type; features with a shape are JSON lists, bytes are base64. Raises ValueError: it is
    no such value; the text says what it is not."""
    text = cell.strip()
    if not feature.is_scalar:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ValueError(f"is not a JSON list of {feature.dtype}") from None
    if feature.dtype == "string":
        return cell
    if feature.dtype == "bytes":
        return {"b64": _base64(text)}
    if "_" in text:  # which Python takes between digits
        raise ValueError(f"is not a {feature.dtype}: expected a number without _")
    if feature.dtype == "float32":
        return _float(text)
    return _integer(text)


def fitted(feature: Feature, value: Any) -> Any:
    """A value of JSON, Parquet or a DataFrame as the feature's type where it means the same; as it is where not.

    true is 1, 2.0 is 2 for an int64, 7 and 7.0 are "7" for a string, a date is epoch seconds, a duration its seconds,
    NaN is no value (None). Raises ValueError: a string's bytes are no text; the rest of a sentence that begins with the
    feature's name."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or type(value).__name__ in _PANDAS_NOTHING:
        return None
    if isinstance(value, float | Decimal) and math.isnan(value):
        return None
    if isinstance(value, list | tuple):
        return [fitted(feature, item) for item in value]
    if feature.dtype == "bytes":
        return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"holds bytes that are not UTF-8 ({error.reason} at byte {error.start}): write it as UTF-8, or make "
                f"the feature bytes in the stream"
            ) from None
    return _as_text(value) if feature.dtype == "string" else _as_number(feature, value)


def _as_text(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # as pandas has whole numbers where some are missing
        value = int(value)
    if isinstance(value, int | float | Decimal | uuid.UUID | datetime.timedelta):
        return str(value)
    if not isinstance(value, str | Mapping):
        raise ValueError(f"is of type {type(value).__name__}, expected a text")
    return value


def _as_number(feature: Feature, value: Any) -> Any:
    if isinstance(value, datetime.date):
        return epoch_seconds(value)
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, Decimal):
        value = int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, int) and value not in _INT64:  # which JSON's writer takes for a whole number no more
        if feature.dtype == "int64":
            raise ValueError(f"is {shown(value)}, expected {_IN_64_BITS}")
        return float(value) if abs(value) <= sys.float_info.max else math.copysign(math.inf, value)
    if isinstance(value, str) and feature.is_scalar:
        if is_missing(feature, value) and not feature.required:
            return None
        try:
            return typed(feature, value)
        except ValueError:
            return value
    if feature.dtype == "int64" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def amount(text: str) -> tuple[float, str] | None:
    """(12345.5, "$") of $12,345.50 and $12 345.50, (12.0, "%") of 12 %, (-1234.0, "") of (1,234), an accountant's
    negative number, (-5.0, "") of a typographic minus before 5; None for another text."""
    plain = text.strip().replace("\u2212", "-")
    found = _AMOUNT.fullmatch(_IN_PARENTHESES.sub(r"-\1", plain))
    if found is None or (found["before"] and found["after"]) or (found["minus"] and found["number"][0] in "+-"):
        return None
    unit, digits = found["before"] or found["after"] or "", found["number"].translate(_NO_DIGITS)
    is_marked = unit or digits != found["number"] or plain != text.strip() or plain[0] == "("
    if re.match(r"[+-]?0\d", digits) or not is_marked:
        return None
    return float(f"{found['minus']}{digits}"), unit


def with_point(cell: str) -> str:
    """1.234,5 and 1 234,5 as 1234.5, of a table whose cells are not divided by commas; another text as it is."""
    text = cell.strip().replace("\u2212", "-")
    if not _DECIMAL_COMMA.fullmatch(text):
        return cell
    whole, _, fraction = text.rpartition(",")
    return f"{whole.replace('.', '').translate(_NO_DIGITS)}.{fraction}"


def flattened(event: Mapping[str, Any], known: Container[str] = (), *, place: str = "the event") -> dict[str, Any]:
    """{"user": {"id": 1}} as {"user.id": 1}. What is `known` by its name, and bytes as {"b64": ...}, stay whole. Raises
    InvalidInput: `place` holds two values under one name, or is nested too deeply."""
    try:
        pairs = list(_leaves(event, "", known))
    except RecursionError as error:
        raise InvalidInput(f"{place} is nested too deeply to be read") from error
    flat = dict(pairs)
    if len(flat) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidInput(f"{place} has {name!r} twice, once within an object; rename one of them")
    return flat


def _leaves(event: Mapping[str, Any], prefix: str, known: Container[str]) -> Iterator[tuple[str, Any]]:
    for key, value in event.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and (prefix or name not in known) and value.keys() != {"b64"}:
            yield from _leaves(value, f"{name}.", known)
        else:
            yield name, value


def parse_date(text: str) -> datetime.datetime | None:
    """An ISO date or time; without a zone it is UTC. None when it is none."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return datetime.datetime.fromisoformat(text.replace(" UTC", "Z").replace("UTC", "Z"))
    except ValueError:
        return None


def epoch_seconds(moment: datetime.date) -> int:
    """Whole seconds since 1970, UTC; a date is its midnight, a time without a zone is UTC."""
    if not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    return math.floor(moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp())


def _base64(text: str) -> str:
    try:
        base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError("is not base64, which bytes are in a text file") from None
    return text


def _float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        if text.lower() in TRUTHS:
            return float(TRUTHS[text.lower()])
        if found := amount(text):
            return found[0]
        raise ValueError("is not a float32: expected a number like 2.5") from None
    if math.isinf(number):
        raise ValueError("is not a float32: expected a finite number")
    return number


def _integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        return _other_integer(text)
    if number not in _INT64:
        raise ValueError(f"is not a int64: expected {_IN_64_BITS}")
    return number


def _other_integer(text: str) -> int:
    """Yes and no, a date, an amount, a whole number with a point."""
    if text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    moment = parse_date(text)
    if moment is not None:
        return epoch_seconds(moment)
    try:
        found = amount(text)
        number = found[0] if found else float(text)
    except ValueError:
        raise ValueError("is not a int64: expected a whole number, yes or no, or a date like 2026-01-31") from None
    if not number.is_integer():
        raise ValueError("is not a int64: expected a whole number; make the feature float32 in the stream if it is one")
    if abs(number) >= EXACT_FLOATS:
        raise ValueError("is not a int64: expected a number of this size in digits alone, else some are lost")
    return int(number)
