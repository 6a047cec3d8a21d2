"""Request bodies: unpacked within a bound and cut into events. Raises InvalidInput, with where and what.

An event that names a key twice is refused, for parsers differ in which value counts. That none does is known by
counting colons; only where that leaves a doubt is the body read again, by a parser that tells.
"""

import json
from collections import Counter
from typing import Any

import orjson

from common.errors import InvalidInput
from common.examples.repeated_keys import may_repeat_a_key
from services.ingest.codec.validation import BadLine, check_count

JSON, NDJSON, TFRECORD = "application/json", "application/x-ndjson", "application/x-tfrecord"
CONTENT_TYPES = (JSON, NDJSON, TFRECORD)


def events_of_json(body: bytes, *, most: int | None = None, member: str = "events") -> list[Any]:
    """The list under "events", or `member`; NaN, Infinity and huge integers in it come as Python floats and ints."""
    document = _parsed(body, "the body")
    if not isinstance(document, dict) or set(document) != {member} or not isinstance(document[member], list):
        raise InvalidInput(f'the body must be an object with one member, {{"{member}": [...]}}')
    events: list[Any] = document[member]
    check_count(len(events), most)
    if body.count(b":") == 1 + _key_count(events) or not may_repeat_a_key(body, document):
        return events
    marked = _with_repeats(body)
    if isinstance(marked, _Repeating):
        raise InvalidInput(f"the body has the key {marked.key!r} twice")
    return [_unless_repeating(event) for event in marked[member]]


def events_of_ndjson(body: bytes, *, most: int | None = None) -> list[Any]:
    """One event per line that is not blank; a BadLine for a line that is not JSON."""
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    check_count(len(lines), most)  # before the lines are read: a line that is no JSON takes ten times as long
    try:
        events = list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        return list(map(_line, lines))
    if body.count(b":") == _key_count(events) or not may_repeat_a_key(body, events):
        return events
    return list(map(_line, lines))


def event_of_json(text: bytes) -> object:
    """One event, or a BadLine."""
    return _line(text)


def _line(line: bytes) -> object:
    try:
        event = _parsed(line, "the line")
    except InvalidInput as error:
        return BadLine(line, error.message)
    return _unless_repeating(_with_repeats(line), line) if may_repeat_a_key(line, event) else event


def _parsed(text: bytes, place: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _parsed_leniently(text, place, str(error))


def _parsed_leniently(text: bytes, place: str, fault: str) -> Any:
    """Accepts syntax that only Python's parser knows, so that an error can name the event that holds it."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{place} is not valid UTF-8 at byte {error.start}") from error
    if not any(hint in decoded for hint in ("NaN", "Infinity", "\\ud", "\\uD", "infinity")) and "infinity" not in fault:
        raise InvalidInput(f"{place} is not JSON: {fault}")
    try:
        return json.loads(decoded)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{place} is not JSON: {fault}") from None


class _Repeating(dict[str, Any]):
    """An object that names `key` twice."""

    key = ""


def _key_count(events: list[Any]) -> int:
    """Of the events themselves; -1 when one is no object."""
    return sum(map(len, events)) if set(map(type, events)) <= {dict} else -1


def _with_repeats(text: bytes) -> Any:
    """The document, with a _Repeating for each object that names a key twice."""

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        repeating = _Repeating(found)
        [(repeating.key, _)] = Counter(name for name, _ in pairs).most_common(1)
        return repeating

    try:
        return json.loads(text, object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body cannot be read to its end: {error}") from error


def _unless_repeating(event: object, text: bytes = b"") -> object:
    """The event, or a BadLine where an object in it names a key twice; `text`: as it came, where that is known."""
    left = [event]
    while left:
        value = left.pop()
        if isinstance(value, _Repeating):
            return BadLine(text or json.dumps(event).encode(), f"the key {value.key!r} is there twice")
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
    return event
