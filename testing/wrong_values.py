"""Documents with a value of a wrong type at any of their keys, made from documents that are right."""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from common.errors import HeadraceError

JSON_VALUES: tuple[object, ...] = (
    None, True, -1, 1.5, 2**63, "", "x", "\ud800", [], ["x"], [None], {}, {"x": []},
)  # fmt: skip
"""Of every type that JSON has, the empty and the nested too."""
YAML_VALUES: tuple[object, ...] = (
    *JSON_VALUES, math.nan, math.inf, datetime.date(2026, 1, 1), b"x", {"x"}, {1: 2, "x": 3}, {None: 1},
)  # fmt: skip
"""What YAML's readers make beyond those: dates, bytes, sets, and keys that are no text."""


def wrong(document: object, values: tuple[object, ...], *, every: int = 1) -> Iterator[tuple[str, object]]:
    """(place, document) with one value replaced, at every place in turn, the whole document first.

    `every`: a place gets one of this number of values; its name decides which. Many keys are read alike, and together
    they get all.
    """
    for value in values:
        yield f"{value!r}", value
    for path in _places(document):
        place = ".".join(map(str, path))
        for value in values[len(place) % every :: every]:
            yield f"{place} = {value!r}", _with(document, path, value)


def refusal_of(read: Callable[[], object], place: str) -> str:
    """The sentence of one of the six errors; empty where it was taken. Raises AssertionError at anything else."""
    try:
        read()
    except HeadraceError as error:
        return error.message or "nothing"
    except Exception as error:
        raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
    return ""


def _places(document: object) -> Iterator[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, Mapping):
        inner = list(document.items())
    if isinstance(document, list):
        inner = list(enumerate(document))
    for key, value in inner:
        yield (key,)
        yield from ((key, *rest) for rest in _places(value))


def _with(document: Any, path: tuple[Any, ...], value: object) -> Any:
    copy = dict(document) if isinstance(document, Mapping) else list(document)
    copy[path[0]] = value if len(path) == 1 else _with(document[path[0]], path[1:], value)
    return copy
