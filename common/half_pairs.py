"""Half a surrogate pair: JSON can name one by an escape, and no store, page or message can hold it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def is_text(value: object) -> TypeGuard[str]:
    """Whether UTF-8 can write it."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def half_pair_in(text: bytes, value: Any) -> str:
    """The path of half a pair in JSON that was read as `value`, as in "gate.metric"; empty without any.

    Costs only a search of the text where no escape could be half a pair. The value is no deeper than a JSON reader
    goes.
    """
    if not _ESCAPE.search(text):
        return ""
    return next((".".join(map(_shown, path)) for path, part in _texts(value, ()) if not is_text(part)), "")


def _texts(value: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], str]]:
    """Every text with its path; a key is where its value is."""
    if isinstance(value, str):
        yield path, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(key, str):
            yield (*path, key), key
        yield from _texts(item, (*path, key))


def _shown(part: object) -> str:
    return str(part).encode(errors="replace").decode()
