"""What Keras has by name: optimizers, schedules, losses, metrics, initializers, regularizers, activations,
augmentations.

keras_names.json is written from Keras's own signatures (`make docs`); nothing here imports Keras. A definition names
one of a kind with its options; an option that Keras's signature does not have is refused.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.definition.fields import Fields
from common.errors import InvalidInput

Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None


@dataclass(frozen=True)
class Option:
    """`kind`: number, integer, flag, text, numbers, integers, texts or range, which is a number or [low, high].
    `choices`: of a text; empty for any."""

    kind: str
    default: Value = None
    is_required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class KerasName:
    """`keras_name`: of the class or function in its package of Keras."""

    keras_name: str
    options: Mapping[str, Option]


@dataclass(frozen=True)
class Named:
    """One of a kind as a definition names it, with the options that it gives; the others are Keras's defaults."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name alone where it has no options."""
        return f"{self.name} {json.dumps(self.options, sort_keys=True)}" if self.options else self.name


_TABLE: Mapping[str, Any] = json.loads(Path(__file__).with_name("keras_names.json").read_text())


def _kind(kind: str) -> Mapping[str, KerasName]:
    return {
        name: KerasName(entry["keras"], {option: _option(row) for option, row in entry["options"].items()})
        for name, entry in _TABLE[kind].items()
    }


def _option(row: Mapping[str, Any]) -> Option:
    default = row.get("default")
    return Option(
        row["type"],
        tuple(default) if isinstance(default, list) else default,
        row.get("is_required", False),
        tuple(row.get("choices", ())),
    )


OPTIMIZERS = _kind("optimizers")
SCHEDULES = _kind("schedules")
LOSSES = _kind("losses")
METRICS = _kind("metrics")
INITIALIZERS = _kind("initializers")
REGULARIZERS = _kind("regularizers")
ACTIVATIONS = _kind("activations")
AUGMENTATIONS = _kind("augmentations")
RELU, GLOROT_UNIFORM = Named("relu"), Named("glorot_uniform")


def read_options(fields: Fields, named: KerasName, *, without: Collection[str] = ()) -> dict[str, Value]:
    """Takes the options out of `fields` that are given; null is Keras's default. The caller says `fields.finish()`.

    Args:
        without: options that are not for the definition to say here.

    Raises:
        InvalidInput: an option has another type, or a required option is missing.
    """
    given: dict[str, Value] = {}
    for key, option in named.options.items():
        if key in without:
            continue
        if fields.has(key) or option.is_required:
            given[key] = _value(fields, key, option)
        else:
            fields.take(key, option.default)
    return given


def read_named(
    fields: Fields, key: str, kind: Mapping[str, KerasName], default: Named, *, without: Collection[str] = ()
) -> Named:
    """A name, or a mapping of `name` and options: `activation: relu`, `activation: {name: elu, alpha: 0.5}`.

    Args:
        without: names of the kind that do not fit here.
    """
    names = tuple(name for name in kind if name not in without)
    if not isinstance(fields.peek(key), Mapping):
        name = fields.choice(key, names, default.name)
        inner = Fields(key, {})
    else:
        inner = Fields(key, fields.take(key))
        name = inner.choice("name", names)
    named = Named(name, read_options(inner, kind[name]))
    inner.finish()
    return named


def _value(fields: Fields, key: str, option: Option) -> Value:
    if option.choices:
        return fields.choice(key, option.choices)
    readers: Mapping[str, Callable[[str], Value]] = {
        "number": fields.number,
        "integer": lambda key: fields.integer(key, minimum=-(2**31), maximum=2**31 - 1),
        "flag": fields.flag,
        "text": fields.text,
        "numbers": fields.numbers,
        "integers": lambda key: fields.integers(key, minimum=0),
        "texts": fields.texts,
        "range": lambda key: _range(fields, key),
    }
    return readers[option.kind](key)


def _range(fields: Fields, key: str) -> Value:
    if not isinstance(fields.peek(key), list | tuple):
        return fields.number(key)
    bounds = fields.numbers(key)
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise InvalidInput(f"{fields.where}: {key} must be a number or [low, high], got {list(bounds)}")
    return bounds
