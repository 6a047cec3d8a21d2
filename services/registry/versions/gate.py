"""May the candidate replace production? A pure function of two metric sets and the definition's rule.

The rule is common/definition/gate.py's. Without max_regression nothing is compared, without bounds nothing is bounded.
"""

import math
from collections.abc import Mapping

from common.definition.gate import Gate
from common.registry.catalog import Decision, Verdict, VersionMetrics

# Metrics of one slice are sums in float64: two that are this close are the same.
_TOLERANCE = 1e-12


def judge(rule: Gate, *, metrics: VersionMetrics, has_parent: bool, held_out_count: int) -> Verdict:
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
        return Verdict(Decision.REJECT, tuple(faults), rule)
    return Verdict(
        Decision.CANARY if rule.canary else Decision.PROMOTE,
        tuple(passed) or ("the gate asks for nothing",),
        rule,
    )


def refuse_unusable(
    verdict: Verdict, *, unusable_count: int, example_count: int, max_share: float, reasons: Mapping[str, int]
) -> Verdict:
    """REJECT when more than max_share of the round's examples could not be used: a model of what was left over.

    Args:
        example_count: all examples of the round, the unusable ones included.
        reasons: {reason: count}; the most frequent stands in the sentence.
    """
    if unusable_count <= max_share * example_count:
        return verdict
    share = f"{unusable_count} of {example_count} examples ({unusable_count / example_count:.3%}) could not be used"
    most = max(reasons, key=lambda reason: (reasons[reason], reason), default="")
    why = f", most of them because: {most}" if most else ""
    fault = f"{share}, evaluation.max_unusable allows {max_share:.3%}{why}"
    before = verdict.reasons if verdict.decision is Decision.REJECT else ()
    return Verdict(Decision.REJECT, (*before, fault), verdict.rule)


def _compare(rule: Gate, candidate: float, parent: float) -> tuple[bool, str]:
    assert rule.max_regression is not None
    if not math.isfinite(parent):
        return False, f"the parent's {rule.metric} is {_shown(parent)}, nothing to compare with"
    worse_by = candidate - parent if rule.direction == "lower" else parent - candidate
    change = f"{abs(worse_by):.6g} {'worse' if worse_by > 0 else 'better'} than the parent's {parent:.6g}"
    allowed = f"{rule.max_regression:.6g} worse is allowed"
    fine = worse_by <= rule.max_regression + _TOLERANCE
    return fine, f"{rule.metric} {candidate:.6g} is {change}, {allowed}"


def _breaks_bounds(rule: Gate, value: float) -> bool:
    below = rule.min_value is not None and value < rule.min_value
    above = rule.max_value is not None and value > rule.max_value
    return below or above


def _bounds_sentence(rule: Gate, value: float) -> str:
    if rule.min_value is not None and value < rule.min_value:
        return f"{rule.metric} {value:.6g} is below the least allowed, {rule.min_value:.6g}"
    if rule.max_value is not None and value > rule.max_value:
        return f"{rule.metric} {value:.6g} is above the most allowed, {rule.max_value:.6g}"
    if rule.min_value is None and rule.max_value is None:
        return f"{rule.metric} is {value:.6g}"
    return f"{rule.metric} {value:.6g} is within its bounds"


def _metric(metrics: VersionMetrics, side: str, name: str) -> float:
    """NaN when it is missing, infinity for a whole number that is too large."""
    value = metrics.get(side, {}).get(name, math.nan)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: float) -> str:
    return "missing or not a number" if math.isnan(value) else "infinite"
