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
