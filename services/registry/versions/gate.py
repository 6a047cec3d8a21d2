"""May the candidate replace production? A pure function of two metric sets and the definition's rules.

The rules are common/definition/gate.py's. Without max_regression nothing is compared, without bounds nothing is
bounded. Every rule must hold; a rule of every value of a slice is as many rules as there are values.

With `confidence` a rule holds where the whole interval does, is broken where none of it does, and in between there is
not enough evidence. Nor is there where a slice has too few examples, or none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from common.counted import counted
from common.definition.gate import SHOWN_CONFIDENCE, Gate, Rule
from common.registry.catalog import Decision, FileEntry, JsonMap, Verdict, VersionMetrics
from common.registry.round_words import JUDGED_ON
from common.registry.scored_outside import is_required, unscored_in_words

Outcome = Literal["passed", "failed", "not_enough_evidence"]
# Metrics of one slice are sums in float64: two that are this close are the same.
_TOLERANCE = 1e-12
_NOTHING: JsonMap = {}


@dataclass(frozen=True)
class _Figures:
    """The numbers that a rule is judged by.

    Attributes:
        name: of the metric, with the slice in words.
        where: of the slice; empty for all held-out examples.
        metrics: {"candidate": {...}, "parent": {...}}.
        intervals: {metric: {"candidate": [low, high], "difference": [low, high]}}.
        undefined: {metric: why it has no value on these examples}.
    """

    name: str
    where: Mapping[str, str]
    count: int
    metrics: VersionMetrics
    intervals: JsonMap
    undefined: JsonMap

    def shown(self, rule: Rule, value: float) -> str:
        """Why a value is no number, as the rest of a sentence."""
        if not math.isnan(value):
            return "infinite"
        why = self.undefined.get(rule.metric) or ("" if self.count else "no event is held out")
        return f"not defined: {why}" if why else "missing or not a number"


@dataclass
class _Findings:
    """The sentences about a rule, by outcome."""

    sentences: dict[Outcome, list[str]] = field(
        default_factory=lambda: {"passed": [], "failed": [], "not_enough_evidence": []}
    )

    def add(self, outcome: Outcome, sentence: str) -> None:
        self.sentences[outcome].append(sentence)

    @property
    def outcome(self) -> Outcome:
        if self.sentences["failed"]:
            return "failed"
        return "not_enough_evidence" if self.sentences["not_enough_evidence"] else "passed"


def judge(
    rule: Gate, *, metrics: VersionMetrics, has_parent: bool, held_out_count: int, evaluation: JsonMap = _NOTHING
) -> Verdict:
    """PROMOTE (CANARY where the gate says so) or REJECT, with the reasons as sentences with numbers.

    Args:
        metrics: {"candidate": {...}, "parent": {...}}, both measured on the same held-out slice.
        has_parent: the first version of a model has none, and nothing is compared.
        held_out_count: examples that the round held out, where the evaluation does not say on how many was judged.
        evaluation: the slices, intervals and window of these metrics, as VersionDraft.evaluation says.
    """
    held_out_count = evaluation.get("window", {}).get("examples", held_out_count)
    few: list[str] = []
    if held_out_count < rule.min_examples:
        few.append(f"{held_out_count} held-out examples are too few to judge by, the gate needs {rule.min_examples}")
    findings: list[_Findings] = []
    outcomes: list[dict[str, Any]] = []
    for metric_rule in rule.all_rules:
        for figures in _figures(metric_rule, metrics, evaluation, held_out_count):
            found = _judge_rule(metric_rule, figures, has_parent=has_parent, is_by_interval=rule.confidence is not None)
            findings.append(found)
            outcomes.append(_outcome_of(metric_rule, figures, found))
    verdict = _verdict(rule, few, findings, tuple(outcomes))
    size = _size(rule, evaluation)
    return replace(verdict, reasons=(*verdict.reasons, size)) if size else verdict


def _verdict(rule: Gate, few: Sequence[str], findings: Sequence[_Findings], outcomes: tuple[JsonMap, ...]) -> Verdict:
    failed = (*few, *(sentence for found in findings for sentence in found.sentences["failed"]))
    if failed:
        return Verdict(Decision.REJECT, failed, rule, outcomes)
    passed_decision = Decision.CANARY if rule.canary else Decision.PROMOTE
    unclear = [sentence for found in findings for sentence in found.sentences["not_enough_evidence"]]
    if unclear:
        chosen = {"reject": Decision.REJECT, "canary": Decision.CANARY}.get(rule.on_not_enough_evidence)
        reason = f"not enough evidence, and on_not_enough_evidence is {rule.on_not_enough_evidence}"
        return Verdict(chosen or passed_decision, (*unclear, reason), rule, outcomes)
    passed = tuple(sentence for found in findings for sentence in found.sentences["passed"])
    return Verdict(passed_decision, passed or ("the gate asks for nothing",), rule, outcomes)


def refuse_unusable(
    verdict: Verdict, *, unusable_count: int, example_count: int, max_share: float, reasons: Mapping[str, int]
) -> Verdict:
    """REJECT when more than max_share of the round's examples could not be used: a model of what was left over.

    Args:
        example_count: all examples of the round, unusable examples included.
        reasons: {reason: count}; the most frequent stands in the sentence.
    """
    if unusable_count <= max_share * example_count:
        return verdict
    share = f"{unusable_count} of {example_count} examples ({unusable_count / example_count:.3%}) could not be used"
    most = max(reasons, key=lambda reason: (reasons[reason], reason), default="")
    why = f", most of them because: {most}" if most else ""
    return _refused(verdict, f"{share}, evaluation.max_unusable allows {max_share:.3%}{why}")


def refuse_large(verdict: Verdict, files: Sequence[FileEntry]) -> Verdict:
    """REJECT when the part of the version that a replica loads is larger than the gate allows."""
    most = verdict.rule.max_state_bytes
    size = sum(file.size_bytes for file in files if file.path.startswith("saved_model/"))
    if most is None or size <= most:
        return verdict
    return _refused(verdict, f"the files of its SavedModel have {size:,} bytes, gate.max_state_bytes allows {most:,}")


def refuse_slow(verdict: Verdict, environment: JsonMap) -> Verdict:
    """REJECT when the round's trial of the export, as a replica loads it, answered more slowly than the gate allows, or
    was not measured."""
    most, latency = verdict.rule.max_p99_ms, environment.get("program", {}).get("latency")
    if most is None or (latency and latency["p99_ms"] <= most):
        return verdict
    allowed = f"gate.max_p99_ms allows {most:g}"
    if not latency:
        return _refused(verdict, f"{allowed}, and no trial has measured how fast its export answers")
    took = f"{latency['p99_ms']:.3g} ms or less in 99 of 100 of {latency['calls']} calls"
    return _refused(verdict, f"its export answers a row in {took}, {allowed}")


def refuse_skewed(verdict: Verdict, environment: JsonMap) -> Verdict:
    """REJECT when replicas answered requests further from what the parent answers as trained than the gate allows.
    Without a request to compare the verdict says so."""
    most, skew = verdict.rule.max_skew, environment.get("skew", {})
    if most is None:
        return verdict
    if not skew.get("requests"):
        nothing = "no request to the parent lies in the request log with its inputs, so no skew was looked for"
        return replace(verdict, reasons=(*verdict.reasons, nothing))
    if skew["largest"] <= most:
        return verdict
    return _refused(
        verdict,
        f"replicas answered as version {skew['version']} up to {skew['largest']:.6g} from what it answers as trained "
        f"(output {skew['output']}, {counted(skew['requests'], 'request')}), gate.max_skew allows {most:g}",
    )


def refuse_unscored(verdict: Verdict, environment: JsonMap) -> Verdict:
    """REJECT when the trainer requires metrics that were taken outside of the author's code, and the gate judges by
    others; else the verdict says which these are."""
    words = tuple(unscored_in_words(environment))
    if not words or not is_required(environment):
        return replace(verdict, reasons=(*verdict.reasons, *words))
    return _refused(verdict, f"{'; '.join(words)}; TRAINER_SCORE_OUTSIDE is required")


def _refused(verdict: Verdict, fault: str) -> Verdict:
    before = verdict.reasons if verdict.decision is Decision.REJECT else ()
    return replace(verdict, decision=Decision.REJECT, reasons=(*before, fault))


def _size(rule: Gate, evaluation: JsonMap) -> str:
    """The number of judged examples, and, where no rule needs confidence, the intervals of the changes."""
    window = evaluation.get("window", {})
    if not window:
        return ""
    earlier = f", {window['earlier']:,} of them from earlier rounds" if window["earlier"] else ""
    earlier = ", those of the definition" if window.get("own_set") else earlier
    size = f"{JUDGED_ON} {window['examples']:,} held-out examples{earlier}"
    if rule.confidence is not None:
        return size
    found: JsonMap = evaluation.get("intervals", {})
    metrics = [metric_rule.metric for metric_rule in rule.all_rules if not metric_rule.slice]
    changes = {metric: found.get(metric, {}).get("difference") for metric in metrics}
    sure = [f"{name} changed by {_range(*bounds)}" for name, bounds in changes.items() if bounds]
    return f"{size}, with {SHOWN_CONFIDENCE:.0%} confidence {' and '.join(sure)}" if sure else size


def _figures(rule: Rule, metrics: VersionMetrics, evaluation: JsonMap, held_out_count: int) -> Iterator[_Figures]:
    """Figures of all examples, or of each slice that the rule means; a named slice that is missing has no examples.

    Where the rule means every value of a feature, slices with too few examples do not count.
    """
    if not rule.slice:
        of_all = (evaluation.get("intervals", {}), evaluation.get("undefined", {}))
        yield _Figures(rule.metric, {}, held_out_count, metrics, *of_all)
        return
    found = [slice_ for slice_ in evaluation.get("slices", ()) if slice_["where"] and _is_meant(rule, slice_["where"])]
    if None in rule.slice.values():
        found = [slice_ for slice_ in found if slice_["count"] >= rule.min_examples]
    for slice_ in found:
        where = slice_["where"]
        name = f"{rule.metric} where {_in_words(where)}"
        yield _Figures(
            name, where, slice_["count"], slice_["metrics"], slice_.get("intervals", {}), slice_.get("undefined", {})
        )  # fmt: skip
    if not found:
        meant = {name: value for name, value in rule.slice.items() if value is not None}
        words = _in_words(meant) if meant else f"by {' and '.join(rule.slice)}"
        yield _Figures(f"{rule.metric} {f'where {words}' if meant else words}", meant, 0, {}, {}, {})


def _is_meant(rule: Rule, where: Mapping[str, str]) -> bool:
    return set(where) == set(rule.slice) and all(value in (None, where[name]) for name, value in rule.slice.items())


def _in_words(where: Mapping[str, str]) -> str:
    return " and ".join(f"{name} is {value}" for name, value in where.items())


def _judge_rule(rule: Rule, figures: _Figures, *, has_parent: bool, is_by_interval: bool) -> _Findings:
    findings = _Findings()
    if rule.slice and not figures.count:
        few = f"no slice has {counted(rule.min_examples, 'example')}" if rule.min_examples and not figures.where else ""
        findings.add("not_enough_evidence", f"{figures.name}: {few or 'no held-out example is of this slice'}")
        return findings
    if figures.count < rule.min_examples:
        few = f"{figures.name}: {figures.count} held-out examples, the rule needs {rule.min_examples}"
        findings.add("not_enough_evidence", few)
        return findings
    candidate = _metric(figures.metrics, "candidate", rule.metric)
    if not math.isfinite(candidate):
        outcome: Outcome = "not_enough_evidence" if rule.slice else "failed"
        findings.add(outcome, f"the candidate's {figures.name} is {figures.shown(rule, candidate)}")
        return findings
    parent = _metric(figures.metrics, "parent", rule.metric)
    compares = has_parent and rule.max_regression is not None
    if is_by_interval:
        _judge_interval(findings, rule, figures, candidate, parent if compares else None)
        return findings
    findings.add("failed" if rule.broken_bound(candidate) else "passed", _bounds_sentence(rule, figures, candidate))
    if compares:
        fine, sentence = _compare(rule, figures, candidate, parent)
        findings.add("passed" if fine else "failed", sentence)
    return findings


def _judge_interval(findings: _Findings, rule: Rule, figures: _Figures, candidate: float, parent: float | None) -> None:
    """`parent` is None where nothing is compared."""
    found = figures.intervals.get(rule.metric, {})
    own, difference = found.get("candidate"), found.get("difference")
    for bound, is_least in ((rule.min_value, True), (rule.max_value, False)):
        if bound is not None:
            _judge_bound(findings, figures, candidate, own, bound, is_least=is_least)
    if parent is not None:
        _judge_difference(findings, rule, figures, (candidate, parent), difference)
    if not any(findings.sentences.values()):
        findings.add("passed", f"{figures.name} is {candidate:.6g}")


def _judge_bound(
    findings: _Findings,
    figures: _Figures,
    candidate: float,
    interval: Sequence[float] | None,
    bound: float,
    *,
    is_least: bool,
) -> None:
    limit = f"{'the least' if is_least else 'the most'} allowed, {bound:.6g}"
    if interval is None:
        findings.add("not_enough_evidence", f"{figures.name} {candidate:.6g} has no interval to compare with {limit}")
        return
    low, high = interval
    text = f"{figures.name} {candidate:.6g} lies in {_range(low, high)}"
    holds = low >= bound - _TOLERANCE if is_least else high <= bound + _TOLERANCE
    breaks = high < bound - _TOLERANCE if is_least else low > bound + _TOLERANCE
    if holds:
        findings.add("passed", f"{text}, {'above' if is_least else 'below'} {limit}")
    elif breaks:
        findings.add("failed", f"{text}, {'below' if is_least else 'above'} {limit}")
    else:
        findings.add("not_enough_evidence", f"{text}, on both sides of {limit}")


def _judge_difference(
    findings: _Findings, rule: Rule, figures: _Figures, values: tuple[float, float], interval: Sequence[float] | None
) -> None:
    assert rule.max_regression is not None
    candidate, parent = values
    if not math.isfinite(parent):
        findings.add("failed", f"the parent's {figures.name} is {figures.shown(rule, parent)}, nothing to compare with")
        return
    allowed = f"{rule.max_regression:.6g} worse is allowed"
    if interval is None:
        findings.add("not_enough_evidence", f"{figures.name} {candidate:.6g} has no interval of its change, {allowed}")
        return
    low, high = interval
    best, worst = (low, high) if rule.direction == "lower" else (-high, -low)
    text = f"{figures.name} {candidate:.6g} is the parent's {parent:.6g} changed by {_range(low, high)}, {allowed}"
    if worst <= rule.max_regression + _TOLERANCE:
        findings.add("passed", text)
    elif best > rule.max_regression + _TOLERANCE:
        findings.add("failed", text)
    else:
        findings.add("not_enough_evidence", f"{text}: it may be that, and it may be more")


def _outcome_of(rule: Rule, figures: _Figures, findings: _Findings) -> dict[str, Any]:
    """JSON-ready, without NaN."""
    values = {side: _metric(figures.metrics, side, rule.metric) for side in ("candidate", "parent")}
    found = figures.intervals.get(rule.metric, {})
    return {
        "metric": rule.metric,
        "slice": dict(figures.where),
        "count": figures.count,
        "outcome": findings.outcome,
        **{side: value for side, value in values.items() if math.isfinite(value)},
        **{f"{name}_interval": list(bounds) for name, bounds in found.items()},
        "sentence": "; ".join(findings.sentences[findings.outcome]),
    }


def _range(low: float, high: float) -> str:
    return f"[{low:.6g}, {high:.6g}]"


def _compare(rule: Rule, figures: _Figures, candidate: float, parent: float) -> tuple[bool, str]:
    assert rule.max_regression is not None
    if not math.isfinite(parent):
        return False, f"the parent's {figures.name} is {figures.shown(rule, parent)}, nothing to compare with"
    worse_by = candidate - parent if rule.direction == "lower" else parent - candidate
    change = f"{abs(worse_by):.6g} {'worse' if worse_by > 0 else 'better'} than the parent's {parent:.6g}"
    allowed = f"{rule.max_regression:.6g} worse is allowed"
    fine = worse_by <= rule.max_regression + _TOLERANCE
    return fine, f"{figures.name} {candidate:.6g} is {change}, {allowed}"


def _bounds_sentence(rule: Rule, figures: _Figures, value: float) -> str:
    if broken := rule.broken_bound(value):
        return f"{figures.name} {value:.6g} is {broken}"
    if rule.min_value is None and rule.max_value is None:
        return f"{figures.name} is {value:.6g}"
    bounds = (("at least", rule.min_value), ("at most", rule.max_value))
    allowed = " and ".join(f"{word} {bound:.6g}" for word, bound in bounds if bound is not None)
    return f"{figures.name} {value:.6g} is within its bounds, {allowed}"


def _metric(metrics: VersionMetrics, side: str, name: str) -> float:
    """NaN when it is missing or null, infinity for a whole number that is too large."""
    value: float | None = metrics.get(side, {}).get(name)
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.inf
