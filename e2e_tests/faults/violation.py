"""What a rule of the judge returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """`at` is when it happened, 0.0 where it has no time of its own."""

    rule: int
    text: str
    at: float = 0.0
