"""Which examples of a batch are at fault, by halving it: a batch without them is fine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Fault = str
"""Why a set of examples cannot be trained on, in words; empty when it can."""


@dataclass(frozen=True)
class Culprits:
    """`reasons` by row, in order; `are_all` when the search was given up: more are at fault than the limit."""

    reasons: dict[int, Fault]
    are_all: bool = False


def find(rows: Sequence[int], fault_of: Callable[[Sequence[int]], Fault], *, limit: int) -> Culprits:
    """The rows without which the rest is fine.

    Where two halves are fine and only their union is not, the union is at fault as a whole. Equal inputs give equal
    answers, so a round that is resumed or rebuilt sets the same examples aside.

    Args:
        fault_of: tries some of the rows, changes nothing.
        limit: more culprits than this: not the examples are at fault, the search ends.
    """
    reasons: dict[int, Fault] = {}
    remaining = list(rows)
    while remaining and (fault := fault_of(remaining)):
        found = _halved(remaining, fault, fault_of, limit - len(reasons))
        reasons |= found
        if len(reasons) > limit:
            return Culprits(dict.fromkeys(rows, fault), are_all=True)
        remaining = [row for row in remaining if row not in reasons]
    return Culprits(dict(sorted(reasons.items())))


def _halved(
    rows: Sequence[int], fault: Fault, fault_of: Callable[[Sequence[int]], Fault], limit: int
) -> dict[int, Fault]:
    if len(rows) == 1:
        return {rows[0]: fault}
    found: dict[int, Fault] = {}
    middle = len(rows) // 2
    for half in (rows[:middle], rows[middle:]):
        half_fault = fault_of(half)
        if half_fault:
            found |= _halved(half, half_fault, fault_of, limit - len(found))
        if len(found) > limit:
            return found
    return found or dict.fromkeys(rows, f"only together with others: {fault}")
