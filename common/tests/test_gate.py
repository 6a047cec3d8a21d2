"""The gate's rule is read in one place, wherever it comes from."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition.gate import Gate, read_gate
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import VersionDraft
from common.registry.wire import draft_from_wire, draft_to_wire
from common.schema import Schema
from protos import registry_pb2 as pb

_NUMBERS = st.none() | st.floats(0, 1)


@given(
    st.sampled_from(["auc", "rmse", "my_own"]),
    st.sampled_from(["higher", "lower"]),
    st.tuples(_NUMBERS, st.none() | st.floats(-1, 0), _NUMBERS),
    st.integers(0, 9),
    st.sampled_from(["retry", "skip"]),
    st.booleans(),
)
def test_a_gate_that_travels_with_a_draft_arrives_as_it_was(
    metric: str, direction: Any, bounds: tuple[Any, Any, Any], count: int, on_reject: Any, canary: bool
) -> None:
    gate = Gate(metric, direction, *bounds, count, on_reject, canary)
    draft = VersionDraft("d", {"candidate": {metric: 0.5}}, gate, 1, 1, 0, (), 1, {}, {})
    assert draft_from_wire(draft_to_wire(draft)) == draft


def test_a_gate_that_asks_for_nothing_travels_too() -> None:
    assert read_gate(Gate().to_mapping()) == read_gate({}) == Gate()


def test_metrics_that_are_no_numbers_are_refused_at_the_door() -> None:
    for text in ('{"candidate": 0.7}', '{"candidate": {"auc": "0.7"}}', '{"candidate": {"auc": true}}'):
        with pytest.raises(InvalidInput, match="metrics_json: candidate must map names to numbers"):
            draft_from_wire(pb.Version(metrics_json=text))


def _definition(gate: str, *, module: bool) -> dict[str, bytes]:
    head = "name: m\nstream: s\nlabel: y\n"
    if module:
        return {"model.yaml": f"{head}module: model.py\ntask: regression\ngate: {gate}\n".encode(), "model.py": b""}
    text = f"{head}estimator: linear_regressor\nfeatures: {{x: {{type: numeric}}}}\ngate: {gate}\n"
    return {"model.yaml": text.encode()}


def test_a_module_is_gated_on_a_metric_of_its_own_when_it_says_the_direction() -> None:
    gate = parse_definition(_definition("{metric: coverage, direction: higher, min_value: 0.9}", module=True)).gate
    assert (gate.metric, gate.direction, gate.min_value) == ("coverage", "higher", 0.9)
    with pytest.raises(InvalidInput, match="gate: direction must say whether a higher or a lower coverage is better"):
        parse_definition(_definition("{metric: coverage}", module=True))
    with pytest.raises(InvalidInput, match="gate: metric must be one of rmse, mae"):
        parse_definition(_definition("{metric: coverage, direction: higher}", module=False))


@pytest.mark.parametrize(
    "rule",
    [
        {"metric": "auc", "max_regresion": 0.1},
        {"metric": "auc", "lower_is_better": True},
        {"metric": 3},
        {"min_value": 0.5},
        {"metric": "auc", "max_regression": -0.1},
        {"metric": "auc", "min_value": "0.5"},
        {"metric": "auc", "min_value": True},
        {"metric": "auc", "min_value": math.nan},
        {"metric": "auc", "min_value": 10**400},
        {"metric": "auc", "min_value": 0.9, "max_value": 0.1},
        {"metric": "auc", "min_examples": 1.5},
        {"metric": "auc", "min_examples": -1},
        {"metric": "auc", "canary": "yes"},
        {"metric": "auc", "on_reject": "panic"},
        {"metric": "auc", "direction": "up"},
        {"metric": "unheard_of"},
        ["auc"],
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: object) -> None:
    with pytest.raises(InvalidInput, match="gate"):
        read_gate(rule)


def test_rules_and_outcomes_travel_too() -> None:
    section = {
        "rules": [
            {"metric": "late/auc", "slice": {"carrier": "AA"}, "min_value": 0.6, "min_examples": 5},
            {"metric": "rmse", "slice": ["carrier", "month"], "max_regression": 0.1},
        ],
        "confidence": 0.9,
        "on_not_enough_evidence": "canary",
    }
    gate = read_gate(section)
    assert [rule.slice for rule in gate.asked] == [{"carrier": "AA"}, {"carrier": None, "month": None}]
    assert [rule.min_examples for rule in gate.rules] == [5, 0], "a rule without a number judges from the first example"
    assert gate.shown_metric == "late/auc"
    details: dict[str, Any] = {"slices": [{"by": ["carrier"], "where": None, "count": 1, "metrics": {}}]}
    draft = VersionDraft("d", {"candidate": {"rmse": 0.5}}, gate, 1, 1, 0, (), 1, {}, {}, evaluation=details)
    assert draft_from_wire(draft_to_wire(draft)) == draft


def _classifier(more: str) -> dict[str, bytes]:
    text = f"name: m\nstream: s\nlabel: y\nestimator: linear_classifier\nfeatures: {{x: {{type: numeric}}}}\n{more}\n"
    return {"model.yaml": text.encode()}


@pytest.mark.covers("met-classification", "eco-tfma")
@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("evaluation: {metrics: [recal]}", "no metric 'recal' for binary; did you mean recall"),
        ("evaluation: {metrics: [rmse]}", "rmse is a metric of regression"),
        ("evaluation: {metrics: [other/auc]}", "names the head 'other'; there is y"),
        ("evaluation: {metrics: [auc, auc]}", "names auc twice"),
        ("evaluation: {metrics: []}", "metrics must be a list of metrics"),
        ("evaluation: {metrics: [auc@3]}", "auc of binary takes no option"),
        ("evaluation: {metrics: [{name: auc, k: 3}]}", "unknown keys"),
        ("evaluation: {metrics: [{name: recall, threshold: 2}]}", "threshold of recall must be a number from 0 to 1"),
        ("evaluation: {metrics: [recall@nan]}", "threshold of recall must be"),
        ("evaluation: {metrics: [sensitivity_at_specificity]}", "needs specificity"),
        ("evaluation: {metrics: [ndcg]}", "say group_by: FEATURE"),
        ("evaluation: {slices: carrier}", "slices must be a list"),
        ("evaluation: {slices: [3]}", "must be the name of a feature"),
        ("evaluation: {slices: [a, a]}", "names a twice"),
        ("evaluation: {slices: [{by: [a, b, c, d]}]}", "by must name 1 to 3 features"),
        ("evaluation: {slices: [{by: a, boundaries: [2, 1]}]}", "boundaries must rise"),
        ("evaluation: {slices: [{by: [a, b], boundaries: [1]}]}", "boundaries cut one feature"),
        ("evaluation: {slices: [{by: a, boundary: [1]}]}", "did you mean boundaries"),
        ("gate: {metric: recal}", "did you mean recall"),
        ("gate: {metric: calibration}", "metric must be one of auc, log_loss, accuracy"),
        ("gate: {slice: {carrier: AA}}", "slice is by carrier, and evaluation.slices has nothing"),
        ("evaluation: {slices: [carrier]}\ngate: {slice: {carier: AA}}", "did you mean carrier"),
        ("evaluation: {slices: [{by: a, boundaries: [5]}]}\ngate: {slice: {a: '6'}}", "must be one of < 5, >= 5"),
        ("gate: {rules: [{metric: auc}]}", "the rule of auc asks for nothing"),
        ("gate: {rules: [{min_value: 1}]}", "gate: rules needs metric"),
        ("gate: {rules: [{metric: auc, min_valu: 1, min_value: 1}]}", "did you mean min_value"),
        ("gate: {metric: auc, rules: [{metric: auc, min_value: 1}]}", "belong into them"),
        ("gate: {confidence: 1.0}", "confidence must be a number from 0.5 below 1"),
        ("gate: {on_not_enough_evidence: wait}", "on_not_enough_evidence must be one of"),
    ],
)
def test_what_cannot_be_measured_or_judged_is_refused_with_the_definition(section: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_definition(_classifier(section))
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("slices", "sentence"),
    [
        ("carier", "no feature of the stream; did you mean carrier"),
        ("distance", "is float32 and not a few values"),
        ("tags", "holds a list of values"),
        ("{by: carrier, boundaries: [1]}", "with boundaries, and it is string"),
        ("y", "no feature of the stream"),
    ],
)
def test_a_slice_that_the_stream_cannot_be_cut_by_is_refused_with_its_schema(slices: str, sentence: str) -> None:
    schema = Schema.from_mapping(
        {
            "features": [
                {"name": "x", "dtype": "float32"},
                {"name": "distance", "dtype": "float32"},
                {"name": "carrier", "dtype": "string"},
                {"name": "tags", "dtype": "string", "shape": [None]},
            ],
            "labels": [{"name": "y", "dtype": "int64"}],
        }
    )
    parse_definition(_classifier("evaluation: {slices: [carrier, {by: distance, boundaries: [1]}]}")).check_schema(
        schema
    )
    with pytest.raises(InvalidInput) as refused:
        parse_definition(_classifier(f"evaluation: {{slices: [{slices}]}}")).check_schema(schema)
    assert sentence in refused.value.message


def test_metrics_of_a_level_or_class_that_a_head_does_not_have_are_refused() -> None:
    top = "name: m\nstream: s\nlabel: y\nestimator: {}\nfeatures: {{x: {{type: numeric}}}}\n"
    classes = top.format("linear_classifier") + "parameters: {classes: 4}\nevaluation: {metrics: [class_recall@4]}\n"
    with pytest.raises(InvalidInput, match="class_recall@4 names no class of head y: 0 to 3"):
        parse_definition({"model.yaml": classes.encode()})
    more = "task: quantiles\nlevels: [0.1, 0.9]\nevaluation: {metrics: [quantile_loss@0.5]}\n"
    with pytest.raises(InvalidInput, match=r"quantile_loss@0.5 names no level of head y; its levels: 0.1, 0.9"):
        parse_definition({"model.yaml": (top.format("linear_regressor") + more).encode()})
    heads = "heads: {late: {label: late, task: binary}, delay: {label: delay, task: regression}}\n"
    several = top.format("dnn").replace("label: y\n", heads)
    gate = parse_definition({"model.yaml": f"{several}gate: {{metric: delay/mae}}".encode()}).gate
    assert (gate.metric, gate.direction) == ("delay/mae", "lower")
    with pytest.raises(InvalidInput, match="metric mae must name its head: one of late, delay"):
        parse_definition({"model.yaml": f"{several}gate: {{metric: mae}}".encode()})


def test_what_the_gate_asks_for_is_measured_and_stored_under_one_name() -> None:
    found = parse_definition(_classifier("evaluation: {metrics: [auc]}\ngate: {metric: y/recall@0.30}"))
    assert found.gate.metric == "recall@0.3"
    assert [metric.name for metric in found.evaluation.metrics["y"]] == ["auc", "recall@0.3"]


def test_a_modules_own_metric_has_no_interval() -> None:
    text = "{metric: coverage, direction: higher, min_value: 0.9, confidence: 0.9}"
    with pytest.raises(InvalidInput, match="confidence needs metrics that can be resampled"):
        parse_definition(_definition(text, module=True))
