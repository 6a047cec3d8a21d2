"""Request bodies: unpacked within a bound and cut into events. Raises InvalidInput, with where and what."""

import json
from typing import Any

import orjson

from common.errors import InvalidInput
from services.ingest.codec.validation import BadLine

JSON, NDJSON, TFRECORD = "application/json", "application/x-ndjson", "application/x-tfrecord"
CONTENT_TYPES = (JSON, NDJSON, TFRECORD)


def events_of_json(body: bytes) -> list[Any]:
    """The list under "events"; NaN, Infinity and huge integers in it come as Python floats and ints."""
    document = _parsed(body, "the body")
    if not isinstance(document, dict) or set(document) != {"events"} or not isinstance(document["events"], list):
        raise InvalidInput('the body must be an object with one member, {"events": [...]}')
    return document["events"]


def events_of_ndjson(body: bytes) -> list[Any]:
    """One event per line that is not blank; a BadLine for one that is not JSON."""
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    try:
        return list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        return [_line(number, line) for number, line in enumerate(lines)]


def event_of_json(text: bytes) -> object:
    """One event, or a BadLine."""
    return _line(0, text)


def _line(index: int, line: bytes) -> object:
    try:
        return _parsed(line, f"event {index}")
    except InvalidInput as error:
        return BadLine(line, error.message)


def _parsed(text: bytes, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _parsed_leniently(text, what, str(error))


def _parsed_leniently(text: bytes, what: str, fault: str) -> Any:
    """Lets through what is syntax to Python's parser only, so that the one event that holds it can be named."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{what} is not valid UTF-8 at byte {error.start}") from error
    if not any(hint in decoded for hint in ("NaN", "Infinity", "\\ud", "\\uD", "infinity")) and "infinity" not in fault:
        raise InvalidInput(f"{what} is not JSON: {fault}")
    try:
        return json.loads(decoded)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{what} is not JSON: {fault}") from None
