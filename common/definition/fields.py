"""Reads mappings that people wrote: every key is checked, an unknown key is refused."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from operator import methodcaller
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from common.errors import InvalidInput
from common.suggestions import did_you_mean, refuse_unknown

Choice = TypeVar("Choice", bound=str)
T = TypeVar("T")
_MISSING = object()


@dataclass(frozen=True)
class KeyRead:
    """A key that a reader looked up: its section, its expected value in words, its default.

    Attributes:
        expected: empty where the reader took the value as it stands, or only looked whether it is there.
    """

    where: str
    key: str
    expected: str = ""
    is_required: bool = False
    default: object = None


_recorded: ContextVar[list[KeyRead] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[list[KeyRead]]:
    """Records every key that is looked up meanwhile; docs/generate makes the reference of model.yaml from it."""
    keys: list[KeyRead] = []
    token = _recorded.set(keys)
    try:
        yield keys
    finally:
        _recorded.reset(token)


@dataclass(frozen=True)
class Allowed:
    """Values of a dataclass's field that `Fields.made` reads: `shards: Annotated[int, Allowed(maximum=64)] = 1`. None:
    as the method that reads its type has it."""

    minimum: float | None = None
    maximum: int | None = None
    below: float | None = None
    may_be_empty: bool | None = None


def optional(section: object, where: str, read: "Callable[[Fields], T]") -> T | None:
    """What `read` makes of a section, of which it takes every key; None where the section is left out. Raises
    InvalidInput: as Fields does."""
    if section is None:
        return None
    fields = Fields(where, section)
    found = read(fields)
    fields.finish()
    return found


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

    def expect(self, keys: Sequence[str]) -> None:
        """Refuses other keys at once, before a missing key is looked up."""
        refuse_unknown(self.where, self._left, keys)

    def finish(self) -> None:
        if self._left:
            refuse_unknown(self.where, self._left, set(self._known) - self._left.keys())

    def has(self, key: str) -> bool:
        self._note(KeyRead(self.where, key))
        return self._left.get(key) is not None

    def peek(self, key: str) -> object:
        """The value, which stays to be read; None where there is none."""
        return self._left.get(key)

    def take(self, key: str, default: object = _MISSING, *, expected: str = "") -> Any:
        """The value as it stands; without a default the key is required. `expected` is not checked."""
        return self._take(key, expected, default)

    def _take(self, key: str, expected: str, default: object = _MISSING) -> Any:
        is_required = default is _MISSING
        self._note(KeyRead(self.where, key, expected, is_required, None if is_required else default))
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise InvalidInput(f"{self.where} needs {key}" + f": {expected}" * (expected not in ("", "text")))
        return value

    def _note(self, key: KeyRead) -> None:
        self._known.append(key.key)
        recorder = _recorded.get()
        if recorder is not None:
            recorder.append(key)

    def text(self, key: str, default: object = _MISSING) -> str:
        value = self._take(key, "text", default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text", value)
        return value

    def choice(self, key: str, choices: Sequence[Choice], default: object = _MISSING) -> Choice:
        expected = f"one of {', '.join(choices)}"
        value = self._take(key, expected, default)
        if value not in choices:
            raise InvalidInput(f"{self._wrong(key, expected, value).message}{did_you_mean([value], choices)}")
        return choices[choices.index(value)]

    def flag(self, key: str, default: object = _MISSING) -> bool:
        value = self._take(key, "true or false", default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def integer(self, key: str, default: object = _MISSING, *, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
        expected = f"an integer from {minimum}" + f" to {maximum}" * (maximum < 2**63 - 1)
        value = self._take(key, expected, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self._wrong(key, expected, value)
        return value

    def optional_text(self, key: str, default: str | None = None) -> str | None:
        """None where it is left out."""
        value = self._take(key, "text", default)
        return None if value is None else Fields(self.where, {key: value}).text(key)

    def optional_integer(
        self, key: str, default: int | None, *, minimum: int = 1, maximum: int = 2**63 - 1
    ) -> int | None:
        """None (null) switches the thing off."""
        value = self._take(key, f"an integer from {minimum}, or null", default)
        return (
            None if value is None else Fields(self.where, {key: value}).integer(key, minimum=minimum, maximum=maximum)
        )

    def number(
        self, key: str, default: object = _MISSING, *, minimum: float = -math.inf, below: float = math.inf
    ) -> float:
        bounds = f" from {minimum:g}" * (minimum > -math.inf) + f" below {below:g}" * (below < math.inf)
        value = self._take(key, f"a number{bounds}", default)
        if not is_number(value) or not minimum <= value < below:
            raise self._wrong(key, f"a number{bounds}", value)
        return float(value)

    def optional_number(self, key: str, default: float | None, *, minimum: float = -math.inf) -> float | None:
        """None (null) switches the thing off."""
        bounds = f" from {minimum:g}" * (minimum > -math.inf)
        value = self._take(key, f"a number{bounds}, or null", default)
        return None if value is None else Fields(self.where, {key: value}).number(key, minimum=minimum)

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self._take(key, "a list of numbers")
        if not isinstance(value, list | tuple) or not value or not all(is_number(item) for item in value):
            raise self._wrong(key, "a list of numbers", value)
        return tuple(float(item) for item in value)

    def integers(
        self, key: str, default: object = _MISSING, *, minimum: int = 1, maximum: int = 2**63 - 1
    ) -> tuple[int, ...]:
        expected = "a list of positive integers" if minimum == 1 else f"a list of integers from {minimum}"
        value = self._take(key, expected, default)
        whole = isinstance(value, list | tuple) and all(
            isinstance(item, int) and not isinstance(item, bool) and minimum <= item <= maximum for item in value
        )
        if not whole or not value:
            bound = f" up to {maximum}" if maximum < 2**63 - 1 else ""
            raise self._wrong(key, f"{expected}{bound}", value)
        return tuple(value)

    def texts(self, key: str, default: object = _MISSING, *, may_be_empty: bool = False) -> tuple[str, ...]:
        """`may_be_empty`: the empty text is one too."""
        value = self._take(key, "a list of texts", default)
        is_list = isinstance(value, list | tuple)
        if not is_list or not all(isinstance(item, str) and (item or may_be_empty) for item in value):
            raise self._wrong(key, "a list of texts", value)
        if len(set(value)) != len(value):
            raise self._wrong(key, "a list without repetitions", value)
        return tuple(value)

    def made(self, kind: Callable[..., T], **given: Any) -> T:
        """The dataclass. Each field that is not given is read under its name, by its type and with its default: bool,
        int, float, str, tuple[str, ...], a Literal, or Annotated with Allowed or a tuple of choices; with `| None` null
        switches the thing off."""
        return kind(**{name: read(self) for name, read in _readers(kind).items() if name not in given}, **given)

    def _wrong(self, key: str, expected: str, value: object) -> InvalidInput:
        return InvalidInput(f"{self.where}: {key} must be {expected}, got {value!r}")


@cache
def _readers(kind: Any) -> dict[str, Callable[[Fields], Any]]:
    """By field of a dataclass; a field whose type none of them reads has to be given."""
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: _reader(field, hints[field.name]) for field in dataclasses.fields(kind)}
    return {name: reader for name, reader in found.items() if reader is not None}


def _reader(field: "dataclasses.Field[Any]", hint: Any) -> Callable[[Fields], Any] | None:
    hint, mark = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, Allowed())
    default = () if field.default is dataclasses.MISSING else (field.default,)
    choices = mark if isinstance(mark, tuple) else get_args(hint) if get_origin(hint) is Literal else ()
    if choices:
        return methodcaller("choice", field.name, choices, *default)
    may_be_none = get_origin(hint) is UnionType
    kind = next(part for part in get_args(hint) if part is not NoneType) if may_be_none else hint
    if kind not in _GETTERS:
        return None
    bounds = {key: bound for key, bound in vars(mark).items() if bound is not None}
    return methodcaller("optional_" * may_be_none + _GETTERS[kind], field.name, *default, **bounds)


_GETTERS = {bool: "flag", int: "integer", float: "number", str: "text", tuple[str, ...]: "texts"}


def is_number(value: object) -> bool:
    """A finite number that float64 can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
