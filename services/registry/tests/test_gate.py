"""The gate is a pure function; these are its laws."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.definition.gate import Gate, read_gate
from common.errors import InvalidInput
from common.registry.catalog import Decision, Verdict, VersionMetrics
from services.registry.catalog import Catalog
from services.registry.store.documents import check_documents
from services.registry.tests.building import GATE, publish
from services.registry.versions.gate import judge
from testing.rows import each_row

VALUES = st.floats(-1e6, 1e6)
MARGINS = st.floats(0, 1e3)
NO_NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, None, 10**400])


def _judge(
    rule: Mapping[str, Any], candidate: float | None, parent: float | None = None, *, held_out_count: int = 100
) -> Verdict:
    gate = read_gate({"max_regression": None} | dict(rule))
    sides = {"candidate": candidate, "parent": parent}
    metrics: VersionMetrics = {side: {gate.metric: value} for side, value in sides.items() if value is not None}
    return judge(gate, metrics=metrics, has_parent=parent is not None, held_out_count=held_out_count)


@pytest.mark.covers("met-classification")
@given(VALUES, VALUES, MARGINS)
def test_a_candidate_passes_exactly_when_it_is_not_worse_than_allowed(
    candidate: float, parent: float, margin: float
) -> None:
    assume(abs(parent - candidate - margin) > 1e-9 and abs(candidate - parent - margin) > 1e-9)
    higher = _judge({"metric": "auc", "max_regression": margin}, candidate, parent)
    assert (higher.decision is Decision.PROMOTE) == (parent - candidate <= margin)
    lower = _judge({"metric": "log_loss", "max_regression": margin}, candidate, parent)
    assert (lower.decision is Decision.PROMOTE) == (candidate - parent <= margin)


@pytest.mark.covers("met-classification")
@given(VALUES, VALUES, VALUES)
def test_bounds_hold_with_and_without_a_parent(value: float, least: float, most: float) -> None:
    least, most = sorted((least, most))
    rule = {"metric": "auc", "min_value": least, "max_value": most}
    for parent in (None, value):
        assert (_judge(rule, value, parent).decision is Decision.PROMOTE) == (least <= value <= most)


@given(NO_NUMBERS, VALUES)
def test_a_metric_without_a_number_is_rejected_on_either_side(bad: float | None, good: float) -> None:
    rule = {"metric": "auc", "max_regression": 1e9}
    assert _judge(rule, bad, good).decision is Decision.REJECT
    if bad is not None:
        assert _judge(rule, good, bad).decision is Decision.REJECT
    assert judge(read_gate(rule), metrics={}, has_parent=False, held_out_count=9).decision is Decision.REJECT


@given(VALUES, VALUES, MARGINS, st.booleans(), st.integers(0, 200))
def test_every_verdict_gives_reasons_and_keeps_the_rule(
    candidate: float, parent: float, margin: float, canary: bool, held_out_count: int
) -> None:
    rule = {"metric": "auc", "max_regression": margin, "canary": canary, "min_examples": 100}
    verdict = _judge(rule, candidate, parent, held_out_count=held_out_count)
    assert verdict.reasons
    assert verdict.rule == read_gate(rule)
    passed = Decision.CANARY if canary else Decision.PROMOTE
    assert verdict.decision in (passed, Decision.REJECT)
    if held_out_count < 100:
        assert verdict.decision is Decision.REJECT


def test_reasons_are_sentences_with_numbers() -> None:
    rule = {"metric": "auc", "max_regression": 0.005, "min_value": 0.5, "min_examples": 50}
    assert _judge(rule, 0.4, 0.71, held_out_count=7).reasons == (
        "7 held-out examples are too few to judge by, the gate needs 50",
        "auc 0.4 is below the least allowed, 0.5",
        "auc 0.4 is 0.31 worse than the parent's 0.71, 0.005 worse is allowed",
    )
    assert _judge(rule, 0.72, 0.71).reasons == (
        "auc 0.72 is within its bounds, at least 0.5",
        "auc 0.72 is 0.01 better than the parent's 0.71, 0.005 worse is allowed",
    )
    assert _judge(rule, math.nan).reasons == ("the candidate's auc is missing or not a number",)


def test_a_metric_without_a_value_says_why() -> None:
    undefined = {"auc": "all 40 held-out events have the label 1"}
    evaluation: dict[str, Any] = {
        "undefined": undefined,
        "slices": [{"by": ["c"], "where": {"c": "AA"}, "count": 4, "metrics": {}, "undefined": undefined}],
    }
    whole: dict[str, Any] = {"metric": "auc", "min_value": 0.5}
    verdict = judge(
        read_gate({"rules": [whole | {"slice": {"c": "AA"}}, whole]}),
        metrics={"candidate": {}, "parent": {}}, evaluation=evaluation, has_parent=False, held_out_count=40,
    )  # fmt: skip
    assert [one["sentence"] for one in verdict.outcomes] == [
        "the candidate's auc where c is AA is not defined: all 40 held-out events have the label 1",
        "the candidate's auc is not defined: all 40 held-out events have the label 1",
    ]
    compared = judge(
        read_gate({"metric": "auc", "max_regression": 0.1}),
        metrics={"candidate": {"auc": 0.7}, "parent": {}}, evaluation=evaluation, has_parent=True, held_out_count=40,
    )  # fmt: skip
    assert compared.reasons[-1].startswith("the parent's auc is not defined: all 40 held-out events have")
    none = judge(read_gate({"metric": "auc"}), metrics={}, has_parent=False, held_out_count=0)
    assert none.reasons == ("the candidate's auc is not defined: no event is held out",)


def test_a_verdict_names_the_examples_that_judged_and_the_interval_of_the_change() -> None:
    evaluation: dict[str, Any] = {
        "window": {"examples": 2000, "earlier": 1950, "unusable": 0, "ranges": []},
        "intervals": {"auc": {"candidate": [0.7, 0.74], "difference": [-0.01, 0.03]}},
    }
    check_documents(evaluation=evaluation)
    sides = {"candidate": {"auc": 0.72}, "parent": {"auc": 0.71}}

    def reasons(held_out_count: int, **more: Any) -> tuple[str, ...]:
        gate = read_gate({"metric": "auc", "max_regression": 0.05, **more})
        return judge(
            gate, metrics=sides, has_parent=True, held_out_count=held_out_count, evaluation=evaluation
        ).reasons  # fmt: skip

    size = "judged on 2,000 held-out examples, 1,950 of them from earlier rounds"
    assert reasons(50)[-1] == f"{size}, with 95% confidence auc changed by [-0.01, 0.03]"
    by_interval = reasons(50, confidence=0.9)
    assert by_interval[-1] == size
    assert "changed by [-0.01, 0.03]" in by_interval[0]
    assert "too few" not in " ".join(reasons(50, min_examples=2000))
    assert reasons(5000, min_examples=2001)[0].startswith("2000 held-out examples are too few")
    with pytest.raises(InvalidInput, match=r"window\.examples"):
        check_documents(evaluation={"window": {**evaluation["window"], "examples": "3"}})


def test_the_exact_margin_passes_in_spite_of_rounding_and_a_direction_may_be_given() -> None:
    for metric, margin, candidate, parent in (("auc", 0.1, 0.7, 0.8), ("auc", 0.0, 0.7, 0.7), ("rmse", 0.0, 0.2, 0.1)):
        rule = {"metric": metric, "max_regression": margin, "direction": "higher"}
        assert _judge(rule, candidate, parent).decision is Decision.PROMOTE
    assert _judge({"metric": "rmse", "max_regression": 0.0}, 0.2, 0.2).decision is Decision.PROMOTE


def test_without_a_metric_only_the_number_of_examples_counts() -> None:
    gate = Gate(min_examples=5)
    assert judge(gate, metrics={}, has_parent=True, held_out_count=5).decision is Decision.PROMOTE
    assert judge(gate, metrics={}, has_parent=True, held_out_count=4).decision is Decision.REJECT


SLICES: dict[str, Any] = {
    "slices": [
        {"by": ["carrier"], "where": {"carrier": "AA"}, "count": 90,
         "metrics": {"candidate": {"auc": 0.55}, "parent": {"auc": 0.7}}},
        {"by": ["carrier"], "where": {"carrier": "UA"}, "count": 60,
         "metrics": {"candidate": {"auc": 0.8}, "parent": {"auc": 0.7}}},
        {"by": ["carrier"], "where": {"carrier": "B6"}, "count": 3, "metrics": {"candidate": {}, "parent": {}}},
        {"by": ["carrier", "dest"], "where": {"carrier": "UA", "dest": "JFK"}, "count": 55,
         "metrics": {"candidate": {"auc": 0.2}, "parent": {"auc": 0.7}}},
        {"by": ["carrier"], "where": None, "value_count": 4, "count": 9, "metrics": {"candidate": {"auc": 0.1}}},
    ]
}  # fmt: skip
BOTH: VersionMetrics = {"candidate": {"auc": 0.72, "accuracy": 0.6}, "parent": {"auc": 0.7, "accuracy": 0.9}}


def _judge_rules(*rules: Mapping[str, Any], details: Mapping[str, Any] = SLICES, **more: Any) -> Verdict:
    gate = read_gate({"rules": list(rules), **more})
    return judge(gate, metrics=BOTH, has_parent=True, held_out_count=162, evaluation=details)


def test_every_rule_must_hold_and_a_broken_rule_is_named() -> None:
    verdict = _judge_rules({"metric": "auc", "max_regression": 0.005}, {"metric": "accuracy", "max_regression": 0.1})
    assert verdict.decision is Decision.REJECT
    assert verdict.reasons == ("accuracy 0.6 is 0.3 worse than the parent's 0.9, 0.1 worse is allowed",)
    assert [(one["metric"], one["outcome"]) for one in verdict.outcomes] == [("auc", "passed"), ("accuracy", "failed")]
    assert (verdict.outcomes[0]["candidate"], verdict.outcomes[0]["parent"]) == (0.72, 0.7)


@pytest.mark.covers("eco-tfma")
def test_a_rule_of_a_slice_is_judged_on_that_slice_alone() -> None:
    passed = _judge_rules({"metric": "auc", "slice": {"carrier": "UA"}, "max_regression": 0.0, "min_value": 0.6})
    assert passed.decision is Decision.PROMOTE
    verdict = _judge_rules({"metric": "auc", "slice": {"carrier": "AA"}, "max_regression": 0.1})
    assert verdict.decision is Decision.REJECT
    assert verdict.reasons == (
        "auc where carrier is AA 0.55 is 0.15 worse than the parent's 0.7, 0.1 worse is allowed",
    )


@pytest.mark.covers("eco-tfma")
def test_a_rule_of_every_value_names_the_value_that_breaks_it() -> None:
    verdict = _judge_rules({"metric": "auc", "slice": "carrier", "max_regression": 0.1, "min_examples": 50})
    assert [(one["slice"], one["outcome"]) for one in verdict.outcomes] == [
        ({"carrier": "AA"}, "failed"), ({"carrier": "UA"}, "passed"),
    ]  # fmt: skip
    assert "carrier is AA" in verdict.reasons[0]


@pytest.mark.covers("eco-tfma")
@each_row(
    ("of", "sentence"),
    [
        ({"slice": {"carrier": "ZZ"}}, "auc where carrier is ZZ: no held-out example is of this slice"),
        ({"slice": {"carrier": "AA"}, "min_examples": 100}, "auc where carrier is AA: 90 held-out examples"),
        ({"slice": {"carrier": "B6"}}, "the candidate's auc where carrier is B6 is missing or not a number"),
        ({"slice": "carrier", "min_examples": 1000}, "auc by carrier: no slice has 1,000 examples"),
    ],
)
def test_a_slice_without_examples_is_not_enough_evidence(of: Mapping[str, Any], sentence: str) -> None:
    rule = {"metric": "auc", "min_value": 0.5, **of}
    for chosen, decision in (("reject", Decision.REJECT), ("promote", Decision.PROMOTE), ("canary", Decision.CANARY)):
        verdict = _judge_rules(rule, on_not_enough_evidence=chosen)
        assert verdict.decision is decision
        assert verdict.reasons[0].startswith(sentence)
        assert verdict.outcomes[0]["outcome"] == "not_enough_evidence"
    assert _judge_rules(rule).decision is Decision.REJECT


@each_row(
    ("difference", "outcome", "decision"),
    [
        ([-0.004, 0.01], "passed", Decision.PROMOTE),
        ([-0.02, 0.001], "not_enough_evidence", Decision.CANARY),
        ([-0.03, -0.01], "failed", Decision.REJECT),
        (None, "not_enough_evidence", Decision.CANARY),
    ],
)
def test_with_confidence_the_whole_interval_decides(
    difference: list[float] | None, outcome: str, decision: Decision
) -> None:
    found = {"candidate": [0.7, 0.74]} | ({"difference": difference} if difference else {})
    verdict = _judge_rules(
        {"metric": "auc", "max_regression": 0.005},
        details={"intervals": {"auc": found}},
        confidence=0.95,
        on_not_enough_evidence="canary",
    )
    assert (verdict.decision, verdict.outcomes[0]["outcome"]) == (decision, outcome)
    assert verdict.outcomes[0].get("difference_interval") == difference


@each_row(
    ("bounds", "outcome"),
    [
        ({"min_value": 0.69}, "passed"),
        ({"min_value": 0.72}, "not_enough_evidence"),
        ({"min_value": 0.75}, "failed"),
        ({"max_value": 0.75}, "passed"),
        ({"max_value": 0.69}, "failed"),
    ],
)
def test_with_confidence_bounds_are_held_against_the_interval(bounds: Mapping[str, float], outcome: str) -> None:
    details = {"intervals": {"auc": {"candidate": [0.7, 0.74]}}}
    verdict = _judge_rules({"metric": "auc", **bounds}, details=details, confidence=0.95)
    assert verdict.outcomes[0]["outcome"] == outcome
    assert (verdict.decision is Decision.PROMOTE) == (outcome == "passed")


def test_a_version_is_rejected_that_is_larger_than_the_gate_allows(catalog: Catalog) -> None:
    contents = {"saved_model/variables/state": b"x" * 5000, "checkpoint/large": b"x" * 9000}
    size = sum(file.size_bytes for file in publish(catalog, contents=contents).files if file.path[:6] == "saved_")
    fits, large = (
        publish(catalog, contents=contents, gate=replace(GATE, max_state_bytes=most)) for most in (size, size - 1)
    )
    assert fits.verdict.decision is Decision.PROMOTE
    assert large.verdict.decision is Decision.REJECT
    assert large.verdict.reasons[-1] == (
        f"the files of its SavedModel have {size:,} bytes, gate.max_state_bytes allows {size - 1:,}"
    )


def _slow(p99_ms: float) -> Mapping[str, Any]:
    return {"program": {"latency": {"p99_ms": p99_ms, "calls": 500}}}


def _skewed(largest: float, requests: int) -> Mapping[str, Any]:
    return {"skew": {"version": 1, "output": "p", "largest": largest, "requests": requests}}


@pytest.mark.parametrize(
    ("limit", "environment", "decision", "words"),
    [
        ({"max_p99_ms": 20.0}, _slow(20.0), Decision.PROMOTE, ""),
        ({"max_p99_ms": 20.0}, _slow(20.1), Decision.REJECT,
         "a row in 20.1 ms or less in 99 of 100 of 500 calls, gate.max_p99_ms allows 20"),
        ({"max_p99_ms": 20.0}, {"program": {}}, Decision.REJECT,
         "gate.max_p99_ms allows 20, and no trial has measured how fast its export answers"),
        ({"max_skew": 0.01}, _skewed(0.01, 9), Decision.PROMOTE, ""),
        ({"max_skew": 0.01}, _skewed(0.011, 9), Decision.REJECT,
         "as version 1 up to 0.011 from what it answers as trained (output p, 9 requests), gate.max_skew allows 0.01"),
        ({"max_skew": 0.01}, _skewed(0.0, 0), Decision.PROMOTE,
         "no request to the parent lies in the request log with its inputs, so no skew was looked for"),
    ],
)  # fmt: skip
def test_a_version_is_rejected_that_answers_more_slowly_or_otherwise_than_the_gate_allows(
    catalog: Catalog, limit: Any, environment: Mapping[str, Any], decision: Decision, words: str
) -> None:
    version = publish(catalog, gate=replace(GATE, **limit), environment=environment)
    assert version.verdict.decision is decision
    assert version.verdict.reasons[-1].endswith(words)


@pytest.mark.covers("met-classification")
@pytest.mark.parametrize("required", [{}, {"required": True}])
@pytest.mark.parametrize("gate", [GATE, replace(GATE, min_value=0.99)])
def test_a_version_says_what_is_the_word_of_its_round_and_is_rejected_for_it_where_the_trainer_requires_more(
    catalog: Catalog, required: Mapping[str, Any], gate: Gate
) -> None:
    unscored = {"auc": "its export runs operations of its author's", "max_skew": "no other process measures it"}
    told = {"reason": "its export runs operations of its author's", "unscored": unscored, **required}
    verdict = publish(catalog, gate=gate, environment={"scored_outside": told}).verdict
    passes = gate is GATE and not required
    assert verdict.decision is (Decision.PROMOTE if passes else Decision.REJECT)
    words = [
        "auc is the word of the round's process: its export runs operations of its author's",
        "max_skew is the word of the round's process: no other process measures it",
    ]
    if required:
        words = ["; ".join([*words, "TRAINER_SCORE_OUTSIDE is required"])]
    assert verdict.reasons[-len(words) :] == tuple(words)
    assert (len(verdict.reasons) > len(words)) == (gate is not GATE or not required), "the gate's own come first"
