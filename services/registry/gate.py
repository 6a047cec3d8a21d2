"""May the candidate replace production? A pure function of two metric sets and the definition's rule.

The rule:

    {"metric": "auc",            # compared on the same held-out slice; needed by the next three
     "max_regression": 0.005,    # how much worse than the parent's the candidate's metric may be
     "min_value": 0.5, "max_value": 1.0,    # bounds of the candidate's metric, inclusive
     "direction": "higher",      # or "lower", or lower_is_better: true | false; default by the metric's name
     "min_examples": 100,        # held-out examples below which nothing can be judged
     "canary": false,            # a version that passes becomes canary first
     "on_reject": "retry"}       # or "skip"; the planner acts on it

A key that is null counts as left out. Without max_regression nothing is compared, without bounds nothing is bounded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidInput
from common.registry.catalog import Decision, JsonMap, Verdict

_NUMBERS = ("max_regression", "min_value", "max_value")
_KEYS = frozenset({"metric", *_NUMBERS, "direction", "lower_is_better", "min_examples", "canary", "on_reject"})
_LOWER_IS_BETTER = ("loss", "error", "rmse", "mse", "mae", "mape", "crossentropy", "cross_entropy")
# Metrics of one slice are sums in float64: two that are this close are the same.
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class GateRule:
    """The rule, checked. `raw` is what was given, kept with the verdict."""

    raw: JsonMap
    metric: str
    max_regression: float | None
    min_value: float | None
    max_value: float | None
    lower_is_better: bool
    min_examples: int
    canary: bool


def parse_rule(rule: JsonMap) -> GateRule:
    """Raises InvalidInput for an unknown key or a value of the wrong type."""
    unknown = sorted(set(rule) - _KEYS)
    if unknown:
        raise InvalidInput(f"the gate has unknown keys {', '.join(unknown)}; known: {', '.join(sorted(_KEYS))}")
    given = {key: value for key, value in rule.items() if value is not None}
    numbers = {key: _number(key, given.get(key)) for key in _NUMBERS}
    metric = given.get("metric", "")
    if not isinstance(metric, str) or (not metric and any(value is not None for value in numbers.values())):
        raise InvalidInput(f"the gate's metric must be a name, got {given.get('metric')!r}")
    if numbers["max_regression"] is not None and numbers["max_regression"] < 0:
        raise InvalidInput(f"the gate's max_regression must not be negative, got {numbers['max_regression']}")
    if given.get("on_reject", "retry") not in ("retry", "skip"):
        raise InvalidInput(f"the gate's on_reject must be retry or skip, got {given['on_reject']!r}")
    return GateRule(
        raw=dict(rule),
        metric=metric,
        max_regression=numbers["max_regression"],
        min_value=numbers["min_value"],
        max_value=numbers["max_value"],
        lower_is_better=_lower_is_better(given, metric),
        min_examples=_count("min_examples", given.get("min_examples", 0)),
        canary=_flag("canary", given.get("canary", False)),
    )


def judge(rule: GateRule, *, metrics: JsonMap, has_parent: bool, held_out_count: int) -> Verdict:
    """PROMOTE (CANARY where the rule says so) or REJECT, with the reasons as sentences with numbers.

    Args:
        metrics: {"candidate": {...}, "parent": {...}}, both measured on the same held-out slice.
        has_parent: the first version of a model has none, and nothing is compared.
        held_out_count: examples in that slice.
    """
    faults: list[str] = []
    passed: list[str] = []
    if held_out_count < rule.min_examples:
        faults.append(f"{held_out_count} held-out examples are too few to judge by, the gate needs {rule.min_examples}")
    if rule.metric:
        candidate = _metric(metrics, "candidate", rule.metric)
        if math.isfinite(candidate):
            (faults if _breaks_bounds(rule, candidate) else passed).append(_bounds_sentence(rule, candidate))
        else:
            faults.append(f"the candidate's {rule.metric} is {_shown(candidate)}")
        if has_parent and rule.max_regression is not None and math.isfinite(candidate):
            fine, sentence = _compare(rule, candidate, _metric(metrics, "parent", rule.metric))
            (passed if fine else faults).append(sentence)
    if faults:
        return Verdict(Decision.REJECT, tuple(faults), rule.raw)
    return Verdict(
        Decision.CANARY if rule.canary else Decision.PROMOTE,
        tuple(passed) or ("the gate asks for nothing",),
        rule.raw,
    )


def _compare(rule: GateRule, candidate: float, parent: float) -> tuple[bool, str]:
    assert rule.max_regression is not None
    if not math.isfinite(parent):
        return False, f"the parent's {rule.metric} is {_shown(parent)}, nothing to compare with"
    worse_by = candidate - parent if rule.lower_is_better else parent - candidate
    change = f"{abs(worse_by):.6g} {'worse' if worse_by > 0 else 'better'} than the parent's {parent:.6g}"
    allowed = f"{rule.max_regression:.6g} worse is allowed"
    fine = worse_by <= rule.max_regression + _TOLERANCE
    return fine, f"{rule.metric} {candidate:.6g} is {change}, {allowed}"


def _breaks_bounds(rule: GateRule, value: float) -> bool:
    below = rule.min_value is not None and value < rule.min_value
    above = rule.max_value is not None and value > rule.max_value
    return below or above


def _bounds_sentence(rule: GateRule, value: float) -> str:
    if rule.min_value is not None and value < rule.min_value:
        return f"{rule.metric} {value:.6g} is below the least allowed, {rule.min_value:.6g}"
    if rule.max_value is not None and value > rule.max_value:
        return f"{rule.metric} {value:.6g} is above the most allowed, {rule.max_value:.6g}"
    if rule.min_value is None and rule.max_value is None:
        return f"{rule.metric} is {value:.6g}"
    return f"{rule.metric} {value:.6g} is within its bounds"


def _metric(metrics: JsonMap, side: str, name: str) -> float:
    """NaN when it is missing or no number."""
    values = metrics.get(side)
    return _as_float(values.get(name) if isinstance(values, Mapping) else None)


def _as_float(value: object) -> float:
    """NaN for what is no number, infinity for a whole number that is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: float) -> str:
    return "missing or not a number" if math.isnan(value) else "infinite"


def _lower_is_better(given: Mapping[str, Any], metric: str) -> bool:
    if "direction" in given and "lower_is_better" in given:
        raise InvalidInput("the gate has both direction and lower_is_better; one is enough")
    if "lower_is_better" in given:
        return _flag("lower_is_better", given["lower_is_better"])
    direction = given.get("direction")
    if direction not in (None, "higher", "lower"):
        raise InvalidInput(f"the gate's direction must be higher or lower, got {direction!r}")
    return metric.endswith(_LOWER_IS_BETTER) if direction is None else bool(direction == "lower")


def _number(key: str, value: object) -> float | None:
    if value is None:
        return None
    number = _as_float(value)
    if not math.isfinite(number):
        raise InvalidInput(f"the gate's {key} must be a finite number, got {str(value)[:50]}")
    return number


def _count(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"the gate's {key} must be a whole number, got {value!r}")
    return value


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"the gate's {key} must be true or false, got {value!r}")
    return value
