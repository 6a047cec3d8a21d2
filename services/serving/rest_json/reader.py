"""JSON as TensorFlow Serving takes it: the careful way, for documents that orjson refuses or that name a key twice.

Python's own parser, which takes NaN and Infinity, with what RapidJSON takes beyond: Inf, -NaN, a byte order mark, text
after the document and bytes that are no UTF-8; of a repeated key the first value counts. Faults name their byte offset.
"""

import codecs
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from services.serving.wire.prediction import RequestFailed, invalid

_SPACE = " \t\r\n"
_KEY = re.compile(rb'"[ \t\r\n]*:')
_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<word>-NaN|-?Inf(?!inity))')
_PYTHONS = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}
_SURROGATES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_CONTAINERS = frozenset({dict, list})
_LOWEST_INT, _HIGHEST_INT, _INT_DIGITS = -(2**63), 2**64 - 1, 20
_SHOWN_DIGITS = 30


def may_repeat_a_key(body: bytes | bytearray, fields: dict[str, Any]) -> bool:
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
    keys, uncounted = 0, [value]
    while uncounted:  # Not a function that calls itself: bodies may be nested deeper than Python's calls.
        value = uncounted.pop()
        if value.__class__ is dict:
            keys += len(value)
            uncounted.extend(item for item in value.values() if item.__class__ in _CONTAINERS)
        elif value and value[0].__class__ in _CONTAINERS:
            uncounted.extend(item for item in value if item.__class__ in _CONTAINERS)
    return keys


def loads(body: bytes | bytearray) -> Any:
    """The document. Text that is no UTF-8 comes with Python's surrogate escapes. Raises RequestFailed: it is none."""
    text = body.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
    if not text.strip(_SPACE):
        raise _fault("The document is empty")
    try:
        return _read_or_mend(text)
    except json.JSONDecodeError as error:
        before = len(body) - len(text.encode(errors="surrogateescape"))
        offset = before + len(text[: error.pos].encode(errors="surrogateescape"))
        raise _fault(f"{error.msg.removesuffix(' at')} at offset: {offset}") from error
    except RecursionError as error:
        raise _fault("the document is nested too deeply") from error


def _read_or_mend(text: str) -> Any:
    """As _read; also what names a number that is not finite in a way that Python does not know."""
    try:
        return _read(text)
    except json.JSONDecodeError:
        mended = _WORDS.sub(lambda found: _PYTHONS.get(found.group(), found.group()), text)
        if mended == text:
            raise
        with suppress(json.JSONDecodeError):
            return _read(mended)
        raise  # The first fault has the offset in what was sent.


def _read(text: str) -> Any:
    for found in _SURROGATES.finditer(text):
        if found["half"]:
            raise json.JSONDecodeError("Half of a surrogate pair", text, found.start())
    start = len(text) - len(text.lstrip(_SPACE))
    return _DECODER.raw_decode(text, start)[0]


def _first_wins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        fields.setdefault(name, value)
    return fields


def _integer(digits: str) -> float:
    """An int where it has 64 bits, else a float."""
    if len(digits) <= _INT_DIGITS:
        number = int(digits)
        if _LOWEST_INT <= number <= _HIGHEST_INT:
            return number
    return _decimal(digits)


def _decimal(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _fault(f"Number too big to be stored in double: {text[:_SHOWN_DIGITS]}")
    return number


def _fault(reason: str) -> RequestFailed:
    return invalid(f"JSON Parse error: {reason}")


_DECODER = json.JSONDecoder(object_pairs_hook=_first_wins, parse_int=_integer, parse_float=_decimal)
