"""Live quality as it travels: what a trainer has measured of labelled predictions, and where in the log it stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonMap = Mapping[str, Any]
ADVANCE, PROMOTE, BACK, HOLD = "advance", "promote", "back", "hold"
"""A judge's decisions on a canary."""
PASSED = "passed"
"""Its verdict where the canary was promoted."""


@dataclass(frozen=True)
class Evidence:
    """Of one model. A registry takes it where its `revision` follows the stored one, so that of several trainers one
    counts each label.

    Attributes:
        revision: that this follows; 0 before the first.
        state: all that a trainer needs to go on (services/trainer/live).
        counts: labels and predictions by what became of them.
        versions: {version: {"tracks": [...], "judge": {...}, "canary": {...}}}; what stands of a judge or canary stays
        where it is left out.
        back_from: the version that the judge takes out of production; 0: none.
        reason: of that, with its numbers.
        canary: {"version", "stage", "decision": advance, promote, back or hold, "reason"}; {}: it stays as it is.
    """

    revision: int
    state: JsonMap = field(default_factory=dict)
    counts: JsonMap = field(default_factory=dict)
    versions: Mapping[int, JsonMap] = field(default_factory=dict)
    back_from: int = 0
    reason: str = ""
    canary: JsonMap = field(default_factory=dict)
