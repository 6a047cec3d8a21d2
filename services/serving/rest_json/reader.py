"""JSON as TensorFlow Serving's parser (RapidJSON) takes it: the careful way, for documents that orjson refuses or that
name a key twice.

Beyond JSON it takes NaN, Inf and Infinity, a byte order mark, text after the document and bytes that are no UTF-8; of
a repeated key the first value counts. Its faults have RapidJSON's words and byte offsets.
"""

import codecs
import math
import re
from typing import Any, NoReturn

import orjson

from services.serving.wire.prediction import INVALID_ARGUMENT, RequestFailed

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]*)?")
_NOT_FINITE = re.compile(r"-?(?:NaN|Inf(?:inity)?)")
_NUMBERS = re.compile(r"[-+0-9.eE, \t\r\nNaInfity]*\]")
_TEXT = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_KEY = re.compile(rb'"[ \t\r\n]*:')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_WORDS: dict[str, tuple[str, Any]] = {"n": ("null", None), "t": ("true", True), "f": ("false", False)}
_CONTAINERS = frozenset({dict, list})
_INT_DIGITS = 20
_LOWEST_INT, _HIGHEST_INT = -(2**63), 2**64 - 1


def may_repeat_a_key(body: bytes, fields: dict[str, Any]) -> bool:
    """False when a body, read as `fields`, surely names every key once: it has no more colons than there are keys.

    Texts with colons in them take a second look, and the rare text with a quote before the colon takes a careful one.
    """
    colons = body.count(b":")
    if colons == len(fields):
        return False
    keys = _count_keys(fields)
    return keys not in (colons, len(_KEY.findall(body)))


def _count_keys(value: Any) -> int:
    """Keys of all objects in a value; it may overlook some in lists that mix objects with other values."""
    if value.__class__ is dict:
        return len(value) + sum(_count_keys(item) for item in value.values() if item.__class__ in _CONTAINERS)
    if value and value[0].__class__ in _CONTAINERS:
        return sum(_count_keys(item) for item in value if item.__class__ in _CONTAINERS)
    return 0


def loads(body: bytes) -> Any:
    """The document. Text that is no UTF-8 comes with Python's surrogate escapes.

    Raises:
        RequestFailed: it is none, in the words of TensorFlow Serving.
    """
    if not body:
        raise RequestFailed(INVALID_ARGUMENT, "JSON Parse error: The document is empty")
    reader = _Reader(body.decode("latin-1"))  # so that offsets count bytes
    start = reader.skip(len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0)
    if start == len(body):
        _fail("The document is empty.", start)
    try:
        return reader.value(start)[0]
    except RecursionError as error:
        raise RequestFailed(INVALID_ARGUMENT, "JSON Parse error: the document is nested too deeply") from error


def _fail(reason: str, offset: int) -> NoReturn:
    raise RequestFailed(INVALID_ARGUMENT, f"JSON Parse error: {reason} at offset: {offset}")


class _Reader:
    """Every method takes the offset where its part begins, and returns what it read and the offset after it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        """The offset of what follows white space."""
        return _SPACE.match(self._text, at).end()  # type: ignore[union-attr]  # it matches nothing, too

    def _at(self, at: int) -> str:
        return self._text[at : at + 1]

    def value(self, at: int) -> tuple[Any, int]:
        first = self._at(at)
        if first == "{":
            return self._object(at)
        if first == "[":
            return self._list(at)
        if first == '"':
            return self._string(at)
        if first in _WORDS and first:
            word, value = _WORDS[first]
            return value, self._word(word, at)
        return self._number(at)

    def _word(self, word: str, at: int) -> int:
        for letter in word:
            if self._at(at) != letter:
                _fail("Invalid value.", at)
            at += 1
        return at

    def _number(self, at: int) -> tuple[float, int]:
        found = _NUMBER.match(self._text, at)
        if found is None:
            return self._not_finite(at)
        fraction, exponent = found.groups()
        if fraction == ".":
            _fail("Miss fraction part in number.", found.end(1))
        if exponent and not exponent[-1].isdigit():
            _fail("Miss exponent in number.", found.end())
        text = found.group()
        if not fraction and not exponent and len(text) <= _INT_DIGITS:
            number = int(text)
            if _LOWEST_INT <= number <= _HIGHEST_INT:
                return number, found.end()
        decimal = float(text)
        if math.isinf(decimal):
            _fail("Number too big to be stored in double.", at)
        return decimal, found.end()

    def _not_finite(self, at: int) -> tuple[float, int]:
        sign, at = (-1.0, at + 1) if self._at(at) == "-" else (1.0, at)
        if self._at(at) == "N":
            return math.nan, self._word("NaN", at)
        if self._at(at) != "I":
            _fail("Invalid value.", at)
        end = self._word("Inf", at)
        return sign * math.inf, self._word("inity", end) if self._at(end) == "i" else end

    def _list(self, at: int) -> tuple[list[Any], int]:
        numbers = self._numbers(at)
        if numbers is not None:
            return numbers
        values: list[Any] = []
        at = self.skip(at + 1)
        if self._at(at) == "]":
            return values, at + 1
        while True:
            value, at = self.value(at)
            values.append(value)
            at = self.skip(at)
            if self._at(at) == "]":
                return values, at + 1
            if self._at(at) != ",":
                _fail("Missing a comma or ] after an array element.", at)
            at = self.skip(at + 1)

    def _numbers(self, at: int) -> tuple[list[Any], int] | None:
        """A list of nothing but numbers, by orjson; None when it is another list, or a faulty one."""
        found = _NUMBERS.match(self._text, at + 1)
        if found is None:
            return None
        text = self._text[at : found.end()]
        try:
            values: list[Any] = orjson.loads(_NOT_FINITE.sub("null", text))
        except orjson.JSONDecodeError:
            return None
        if None in values:
            words = iter(_NOT_FINITE.findall(text))
            values = [float(next(words)) if value is None else value for value in values]
        return values, found.end()

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        fields: dict[str, Any] = {}
        at = self.skip(at + 1)
        if self._at(at) == "}":
            return fields, at + 1
        while True:
            if self._at(at) != '"':
                _fail("Missing a name for object member.", at)
            name, at = self._string(at)
            at = self.skip(at)
            if self._at(at) != ":":
                _fail("Missing a colon after a name of object member.", at)
            value, at = self.value(self.skip(at + 1))
            fields.setdefault(name, value)
            at = self.skip(at)
            if self._at(at) == "}":
                return fields, at + 1
            if self._at(at) != ",":
                _fail("Missing a comma or } after an object member.", at)
            at = self.skip(at + 1)

    def _string(self, at: int) -> tuple[str, int]:
        parts: list[bytes] = []
        at += 1
        while True:
            end = _TEXT.match(self._text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
            parts.append(self._text[at:end].encode("latin-1"))
            last = self._at(end)
            if last == '"':
                return b"".join(parts).decode(errors="surrogateescape"), end + 1
            if last in ("", "\0"):
                _fail("Missing a closing quotation mark in string.", end)
            if last != "\\":
                _fail("Invalid escape character in string.", end)
            character, at = self._escape(end)
            parts.append(character.encode(errors="surrogatepass"))

    def _escape(self, at: int) -> tuple[str, int]:
        letter = self._at(at + 1)
        if letter in _ESCAPES:
            return _ESCAPES[letter], at + 2
        if letter != "u":
            _fail("Invalid escape character in string.", at)
        code = self._hex(at + 2, at)
        if not 0xD800 <= code <= 0xDBFF:
            return chr(code), at + 6
        low = self._hex(at + 8, at) if self._text[at + 6 : at + 8] == "\\u" else 0
        if not 0xDC00 <= low <= 0xDFFF:
            _fail("The surrogate pair in string is invalid.", at)
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), at + 12

    def _hex(self, at: int, escape_at: int) -> int:
        found = _HEX.match(self._text, at)
        if found is None:
            _fail("Incorrect hex digit after \\u escape in string.", escape_at)
        return int(found.group(), 16)
