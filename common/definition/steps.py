"""What `transform` of a numeric feature may do to its columns, step by step: a closed list.

    speed: {type: numeric, of: velocity, transform: [square, sum, {power: 0.5}]}
    share: {type: numeric, of: counts, transform: [{maximum: 0}, l1_normalize, {take: [0, 2]}]}

A step is a name, or a name with its number or numbers. services/trainer/features/steps.py computes each of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from common.counted import counted
from common.definition.fields import is_number
from common.errors import InvalidInput
from common.suggestions import did_you_mean

MOST_STEPS, MOST_COLUMNS = 16, 65_536


@dataclass(frozen=True)
class StepKind:
    """Attributes:
    takes: nothing, a number, [low, high], [threshold, above, below], a count of columns, or a list: numbers of columns,
        a 0 or 1 for each column, or a matrix, kept row by row.
    width: columns before and what was given, to columns after.
    """

    takes: Literal["nothing", "number", "bounds", "where", "count", "columns", "mask", "matrix"] = "nothing"
    width: Callable[[int, tuple[float, ...]], int] = lambda width, given: width


@dataclass(frozen=True)
class Step:
    name: str
    given: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.name if not self.given else f"{self.name} {list(self.given)}"


_SAME = StepKind()
_NUMBER = StepKind("number")
_ONE = StepKind(width=lambda width, given: 1)
STEPS: Mapping[str, StepKind] = {
    **dict.fromkeys(("abs", "sign", "negative", "square", "exp", "reciprocal", "floor", "ceil", "round"), _SAME),
    **dict.fromkeys(("cast_int", "sin", "cos", "tanh", "sigmoid", "relu"), _SAME),
    **dict.fromkeys(("add", "multiply", "power", "minimum", "maximum", "modulo", "greater", "equal"), _NUMBER),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "variance", "norm", "argmax", "count_nonzero"), _ONE),
    **dict.fromkeys(("l1_normalize", "l2_normalize", "softmax", "cumsum", "reverse", "sort"), _SAME),
    "clip": StepKind("bounds"),
    "take": StepKind("columns", lambda width, given: len(given)),
    "mask": StepKind("mask"),
    "where": StepKind("where"),
    "unique": _SAME,
    "resample": StepKind("count", lambda width, given: int(given[0])),
    "matmul": StepKind("matrix", lambda width, given: len(given) // width),
    "difference": StepKind(width=lambda width, given: width - 1),
    "pair_products": StepKind(width=lambda width, given: width * (width - 1) // 2),
}


def read_steps(section: object, place: str) -> tuple[Step, ...]:
    """Raises InvalidInput: which step, what was expected."""
    if not isinstance(section, list | tuple) or not 0 < len(section) <= MOST_STEPS:
        raise InvalidInput(f"{place}: transform must be a list of 1 to {MOST_STEPS} steps, got {section!r}")
    return tuple(_step(entry, place) for entry in section)


def columns_after(steps: tuple[Step, ...], width: int, place: str) -> int:
    """How many columns there are after the steps.

    Raises:
        InvalidInput: a step does not fit the columns that it gets.
    """
    for step in steps:
        kind = STEPS[step.name]
        if kind.takes == "columns" and max(step.given) >= width:
            raise InvalidInput(f"{place}: transform: take {max(step.given):g}: there are columns 0 to {width - 1}")
        if kind.takes == "mask" and len(step.given) != width:
            raise InvalidInput(
                f"{place}: transform: mask has {counted(len(step.given), 'value')}, and the input "
                f"{counted(width, 'column')}"
            )
        if kind.takes == "matrix" and len(step.given) % width:
            raise InvalidInput(
                f"{place}: transform: matmul has {counted(len(step.given), 'number')}, expected a row for each of "
                f"{counted(width, 'column')}"
            )
        width = kind.width(width, step.given)
        if not 0 < width <= MOST_COLUMNS:
            raise InvalidInput(
                f"{place}: transform: {step.name} leaves {counted(width, 'column')}, expected 1 to {MOST_COLUMNS}"
            )
    return width


def _step(entry: object, place: str) -> Step:
    name, given = entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        name, given = next(iter(entry.items()))
    if not isinstance(name, str) or name not in STEPS:
        hint = did_you_mean([name], STEPS) if isinstance(name, str) else ""
        raise InvalidInput(f"{place}: transform: there is no step {name!r}{hint}; there are {', '.join(STEPS)}")
    takes = STEPS[name].takes
    values = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    if takes == "matrix":
        values = _rows(values)
    numbers = tuple(float(value) for value in values if is_number(value))
    if len(numbers) != len(values) or not _fits(takes, numbers):
        expected = {
            "nothing": "nothing beside its name", "number": "one number", "bounds": "[low, high]",
            "where": "[threshold, above, below]", "count": "a number of columns from 1",
            "matrix": "a matrix, a list of numbers for each column", "columns": "numbers of columns from 0",
            "mask": "a 0 or 1 for each column",
        }[takes]  # fmt: skip
        raise InvalidInput(f"{place}: transform: {name} takes {expected}, got {given!r}")
    if name == "modulo" and not numbers[0]:
        raise InvalidInput(f"{place}: transform: modulo 0 has no meaning")
    return Step(name, numbers)


def _rows(rows: list[object]) -> list[object]:
    """Of a matrix, row by row; nothing where it is none."""
    lists = [row for row in rows if isinstance(row, list | tuple)]
    is_matrix = len(lists) == len(rows) and len({len(row) for row in lists}) == 1
    return [value for row in lists for value in row] if is_matrix else []


def _fits(takes: str, numbers: tuple[float, ...]) -> bool:
    match takes:
        case "nothing":
            return not numbers
        case "number":
            return len(numbers) == 1
        case "bounds":
            return len(numbers) == 2 and numbers[0] < numbers[1]
        case "where":
            return len(numbers) == 3
        case "count":
            return len(numbers) == 1 and numbers[0] >= 1 and numbers[0] == int(numbers[0])
        case "matrix":
            return bool(numbers)
        case "columns":
            return bool(numbers) and all(one >= 0 and one == int(one) for one in numbers)
        case _:
            return bool(numbers) and all(one in (0.0, 1.0) for one in numbers)
