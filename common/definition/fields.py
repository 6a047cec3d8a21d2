"""Reads mappings that people wrote: every key is checked, a key that nobody asked for is refused."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import InvalidInput

_MISSING = object()


class Fields:
    """One mapping of a definition. Each getter takes a key out; `finish` refuses what is left.

    Every method raises InvalidInput with the place (`where`), the key and what was expected.
    """

    def __init__(self, where: str, mapping: object) -> None:
        if not isinstance(mapping, Mapping):
            raise InvalidInput(f"{where} must be a mapping, got {mapping!r}")
        self.where = where
        self._left = dict(mapping)
        self._known: list[str] = []

    def finish(self) -> None:
        unknown = sorted(str(key) for key in self._left)
        if unknown:
            raise InvalidInput(f"{self.where} has unknown keys {unknown}; known: {sorted(set(self._known))}")

    def has(self, key: str) -> bool:
        self._known.append(key)
        return self._left.get(key) is not None

    def take(self, key: str, default: object = _MISSING) -> Any:
        """The value as it stands; without a default the key is required."""
        self._known.append(key)
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise InvalidInput(f"{self.where} needs {key}")
        return value

    def text(self, key: str, default: object = _MISSING) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text", value)
        return value

    def choice(self, key: str, choices: Sequence[str], default: object = _MISSING) -> str:
        value = self.take(key, default)
        if value not in choices:
            raise self._wrong(key, f"one of {', '.join(choices)}", value)
        return str(value)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def integer(self, key: str, default: object = _MISSING, *, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self._wrong(key, f"an integer from {minimum} to {maximum}", value)
        return value

    def optional_integer(self, key: str, default: int | None) -> int | None:
        """None (null) switches the thing off."""
        value = self.take(key, default)
        return None if value is None else Fields(self.where, {key: value}).integer(key)

    def number(
        self, key: str, default: object = _MISSING, *, minimum: float = -math.inf, below: float = math.inf
    ) -> float:
        value = self.take(key, default)
        if not is_number(value) or not minimum <= value < below:
            bounds = f" from {minimum:g}" * (minimum > -math.inf) + f" below {below:g}" * (below < math.inf)
            raise self._wrong(key, f"a number{bounds}", value)
        return float(value)

    def optional_number(self, key: str, default: float | None, *, minimum: float = -math.inf) -> float | None:
        """None (null) switches the thing off."""
        value = self.take(key, default)
        return None if value is None else Fields(self.where, {key: value}).number(key, minimum=minimum)

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.take(key)
        if not isinstance(value, list | tuple) or not value or not all(is_number(item) for item in value):
            raise self._wrong(key, "a list of numbers", value)
        return tuple(float(item) for item in value)

    def integers(self, key: str, default: object = _MISSING) -> tuple[int, ...]:
        value = self.take(key, default)
        whole = isinstance(value, list | tuple) and all(
            isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in value
        )
        if not whole or not value:
            raise self._wrong(key, "a list of positive integers", value)
        return tuple(value)

    def texts(self, key: str, default: object = _MISSING, *, may_be_empty: bool = False) -> tuple[str, ...]:
        """`may_be_empty`: the empty text is one too."""
        value = self.take(key, default)
        is_list = isinstance(value, list | tuple)
        if not is_list or not all(isinstance(item, str) and (item or may_be_empty) for item in value):
            raise self._wrong(key, "a list of texts", value)
        if len(set(value)) != len(value):
            raise self._wrong(key, "a list without repetitions", value)
        return tuple(value)

    def _wrong(self, key: str, expected: str, value: object) -> InvalidInput:
        return InvalidInput(f"{self.where}: {key} must be {expected}, got {value!r}")


def is_number(value: object) -> bool:
    """A finite one that float64 can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
