"""What `transform` of a numeric feature may do to its columns, step by step: a closed list.

    speed: {type: numeric, of: velocity, transform: [square, sum, {power: 0.5}]}
    share: {type: numeric, of: counts, transform: [{maximum: 0}, l1_normalize, {take: [0, 2]}]}
    means: {type: numeric, of: readings, transform: [{reshape: [24, 60]}, mean]}        # 24 of 60 columns each
    both:  {type: numeric, of: amount, transform: [{concat: [[], [square]]}]}           # amount and its square

A step is a name, or a name with its number or numbers, or with steps. It takes the columns of an example as one row, or
after reshape each row of them by itself. services/trainer/features/steps.py computes each of them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from common.counted import counted
from common.definition.fields import is_number
from common.errors import InvalidInput
from common.suggestions import did_you_mean

MOST_STEPS, MOST_COLUMNS, MOST_DEPTH = 16, 65_536, 4
Shape = tuple[int, ...]


@dataclass(frozen=True)
class StepKind:
    """Attributes:
    takes: nothing, a number, [low, high], [threshold, above, below], a count of columns, a list (numbers of columns, a
        0 or 1 for each column, a shape, or a matrix, kept row by row), steps, or lists of steps.
    width: columns of a row before and what was given, to those after; steps that change more than a row have none.
    """

    takes: Literal[
        "nothing", "number", "bounds", "where", "count", "columns", "mask", "shape", "matrix", "steps", "branches"
    ] = "nothing"
    width: Callable[[int, tuple[float, ...]], int] = lambda width, given: width


@dataclass(frozen=True)
class Step:
    """`branches`: the steps of concat, a tuple for each part; of map one tuple."""

    name: str
    given: tuple[float, ...] = ()
    branches: tuple[tuple["Step", ...], ...] = ()

    def __str__(self) -> str:
        if self.branches:
            parts = (f"[{', '.join(map(str, steps))}]" for steps in self.branches)
            return f"{self.name} [{', '.join(parts)}]"
        return self.name if not self.given else f"{self.name} {list(self.given)}"


_SAME = StepKind()
_NUMBER = StepKind("number")
_REDUCED = StepKind(width=lambda width, given: 1)
STEPS: Mapping[str, StepKind] = {
    **dict.fromkeys(("abs", "sign", "negative", "square", "exp", "reciprocal", "floor", "ceil", "round"), _SAME),
    **dict.fromkeys(("cast_int", "sin", "cos", "tanh", "sigmoid", "relu"), _SAME),
    **dict.fromkeys(("add", "multiply", "power", "minimum", "maximum", "modulo", "greater", "equal"), _NUMBER),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "variance", "norm", "argmax", "count_nonzero"), _REDUCED),
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
    "reshape": StepKind("shape"),
    "transpose": _SAME,
    "concat": StepKind("branches"),
    "map": StepKind("steps"),
}


def read_steps(section: object, place: str, *, depth: int = 1) -> tuple[Step, ...]:
    """Raises InvalidInput: which step, what was expected."""
    if not isinstance(section, list | tuple) or not 0 < len(section) <= MOST_STEPS:
        raise InvalidInput(f"{place}: transform must be a list of 1 to {MOST_STEPS} steps, got {section!r}")
    if depth > MOST_DEPTH:
        raise InvalidInput(f"{place}: transform: steps hold steps at most {MOST_DEPTH} deep")
    return tuple(_step(entry, place, depth) for entry in section)


def columns_after(steps: tuple[Step, ...], width: int, place: str) -> int:
    """How many columns there are after the steps. Raises InvalidInput: a step does not fit the columns that it gets."""
    return math.prod(shape_after(steps, (width,), place))


def shape_after(steps: tuple[Step, ...], shape: Shape, place: str) -> Shape:
    """Of an example. Raises InvalidInput as `columns_after` does."""
    for step in steps:
        shape = _shape_after(step, shape, f"{place}: transform")
        if not 0 < math.prod(shape) <= MOST_COLUMNS:
            raise InvalidInput(
                f"{place}: transform: {step.name} leaves {counted(math.prod(shape), 'column')}, expected 1 to "
                f"{MOST_COLUMNS}"
            )
    return shape


def _shape_after(step: Step, shape: Shape, place: str) -> Shape:
    width = shape[-1]
    match step.name:
        case "reshape":
            wanted = tuple(map(int, step.given))
            if math.prod(wanted) != math.prod(shape):
                raise InvalidInput(f"{place}: reshape to {list(wanted)}, of {counted(math.prod(shape), 'column')}")
            return wanted
        case "transpose":
            if len(shape) < 2:
                raise InvalidInput(f"{place}: transpose needs rows; reshape makes them")
            return (*shape[:-2], width, shape[-2])
        case "map":
            if len(shape) < 2:
                raise InvalidInput(f"{place}: map needs rows; reshape makes them")
            return (shape[0], *shape_after(step.branches[0], shape[1:], place))
        case "concat":
            parts = [shape_after(steps, shape, place) for steps in step.branches]
            if len({part[:-1] for part in parts}) > 1:
                raise InvalidInput(f"{place}: concat joins rows, and its parts have shapes {list(map(list, parts))}")
            return (*parts[0][:-1], sum(part[-1] for part in parts))
    _check_fits(step, width, place)
    return (*shape[:-1], STEPS[step.name].width(width, step.given))


def _check_fits(step: Step, width: int, place: str) -> None:
    takes = STEPS[step.name].takes
    if takes == "columns" and max(step.given) >= width:
        raise InvalidInput(f"{place}: take {max(step.given):g}: there are columns 0 to {width - 1}")
    if takes == "mask" and len(step.given) != width:
        raise InvalidInput(
            f"{place}: mask has {counted(len(step.given), 'value')}, and the input {counted(width, 'column')}"
        )
    if takes == "matrix" and len(step.given) % width:
        raise InvalidInput(
            f"{place}: matmul has {counted(len(step.given), 'number')}, expected a row for each of "
            f"{counted(width, 'column')}"
        )


def _step(entry: object, place: str, depth: int) -> Step:
    name, given = entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        name, given = next(iter(entry.items()))
    if not isinstance(name, str) or name not in STEPS:
        hint = did_you_mean([name], STEPS) if isinstance(name, str) else ""
        raise InvalidInput(f"{place}: transform: there is no step {name!r}{hint}; there are {', '.join(STEPS)}")
    takes = STEPS[name].takes
    values = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    if takes == "steps":
        return Step(name, branches=(read_steps(given, f"{place}: {name}", depth=depth + 1),))
    if takes == "branches" and len(values) > 1 and all(isinstance(part, list | tuple) for part in values):
        parts = (read_steps(part, f"{place}: {name}", depth=depth + 1) if part else () for part in values)
        return Step(name, branches=tuple(parts))
    if takes == "matrix":
        values = _rows(values)
    numbers = tuple(float(value) for value in values if is_number(value))
    if len(numbers) != len(values) or not _fits(takes, numbers):
        expected = {
            "nothing": "nothing beside its name", "number": "one number", "bounds": "[low, high]",
            "where": "[threshold, above, below]", "count": "a number of columns from 1",
            "matrix": "a matrix, a list of numbers for each column", "columns": "numbers of columns from 0",
            "mask": "a 0 or 1 for each column", "shape": "a list of one to three sizes from 1",
            "branches": "two lists of steps or more, [] for the columns as they are",
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
        case "shape":
            return 1 <= len(numbers) <= 3 and all(number >= 1 and number == int(number) for number in numbers)
        case "branches":
            return False
        case "columns":
            return bool(numbers) and all(number >= 0 and number == int(number) for number in numbers)
        case _:
            return bool(numbers) and all(number in (0.0, 1.0) for number in numbers)
