"""JSON objects that name a key twice: parsers differ in which value counts, so that one would be lost in silence."""

import json
from collections import Counter
from typing import Any

import orjson

from common.errors import InvalidInput


def may_repeat_a_key(text: bytes, value: object) -> bool:
    """False when the text, read as `value`, surely names no key of an object twice: written anew it has as many
    colons, and none comes from an escape."""
    if isinstance(value, dict) and text.count(b":") == len(value):
        return False
    try:
        return text.count(b":") != orjson.dumps(value).count(b":") or b"\\u003" in text
    except orjson.JSONEncodeError:
        return True


def refuse_repeated_keys(text: bytes, value: object, place: str) -> None:
    """Raises InvalidInput: an object of the JSON text, read as `value`, names a key twice."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise InvalidInput(f"{place} has the key {name[:100]!r} twice; leave one of them out")

    if not may_repeat_a_key(text, value):
        return
    try:
        json.loads(text, object_pairs_hook=check)
    except RecursionError as error:
        raise InvalidInput(f"{place} is nested too deeply to be read") from error
