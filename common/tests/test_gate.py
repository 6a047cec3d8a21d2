"""The gate's rule is read in one place, wherever it comes from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition.gate import Gate, read_gate
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import VersionDraft
from common.registry.wire import draft_from_wire, draft_to_wire
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
    assert [rule.slice for rule in gate.all_rules] == [{"carrier": "AA"}, {"carrier": None, "month": None}]
    assert [rule.min_examples for rule in gate.rules] == [5, 0], "a rule without a number judges from the first example"
    assert gate.shown_metric == "late/auc"
    details: dict[str, Any] = {"slices": [{"by": ["carrier"], "where": None, "count": 1, "metrics": {}}]}
    draft = VersionDraft("d", {"candidate": {"rmse": 0.5}}, gate, 1, 1, 0, (), 1, {}, {}, evaluation=details)
    assert draft_from_wire(draft_to_wire(draft)) == draft


def _classifier(more: str) -> dict[str, bytes]:
    text = f"name: m\nstream: s\nlabel: y\nestimator: linear_classifier\nfeatures: {{x: {{type: numeric}}}}\n{more}\n"
    return {"model.yaml": text.encode()}


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
