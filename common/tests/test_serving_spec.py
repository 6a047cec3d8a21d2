"""What model.yaml may say about serving, and how plainly what it may not say is refused."""

from typing import Any

import pytest

from common.definition.model import parse_definition
from common.definition.serving import parse_serving
from common.errors import InvalidInput
from common.tests.test_definition import files
from testing.rows import each_row


def test_only_what_was_said_is_kept_for_the_replica() -> None:
    said = parse_serving({"engine": "auto", "slo_ms": 20, "batching": {"max_batch_size": 8, "is_enabled": None}})
    assert said.to_mapping() == {"engine": "auto", "slo_ms": 20.0, "batching": {"max_batch_size": 8}}
    assert parse_serving({}).to_mapping() == {}


def test_what_was_kept_reads_back_the_same() -> None:
    batching = {"max_batch_size": 64, "allowed_batch_sizes": [1, 8, 64], "num_batch_threads": 2}
    said = parse_serving({"batching": batching})
    assert parse_serving(said.to_mapping()) == said


def test_a_definition_carries_its_serving_section() -> None:
    assert parse_definition(files(serving={"slo_ms": 5})).serving.slo_ms == 5.0
    assert parse_definition(files()).serving.to_mapping() == {}


@each_row(
    ("section", "reason"),
    [
        ({"colour": 1}, r"serving has unknown keys \['colour'\]; known: \['batching', 'engine', 'slo_ms'\]"),
        ({"engine": "torch"}, "serving: engine must be one of auto, tensorflow, onnxruntime, litert"),
        ({"slo_ms": 0}, "slo_ms must be more than 0"),
        ({"batching": {"batch_size": 3}}, r"serving: batching has unknown keys \['batch_size'\]"),
        ({"batching": {"max_batch_size": 0}}, "max_batch_size must be an integer from 1"),
        ({"batching": {"max_enqueued_batches": -1}}, "max_enqueued_batches must be an integer from 1"),
        ({"batching": {"num_batch_threads": 65}}, "num_batch_threads must be at most 64, got 65"),
        ({"batching": {"allowed_batch_sizes": [8]}}, "allowed_batch_sizes needs max_batch_size beside it"),
        (
            {"batching": {"max_batch_size": 9, "allowed_batch_sizes": [4, 8]}},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 8; expected 9",
        ),
        (
            {"batching": {"max_batch_size": 8, "allowed_batch_sizes": [4, 4, 8]}},
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
        (
            {"batching": {"max_batch_size": 8, "max_execution_batch_size": 9}},
            "max_execution_batch_size 9 must not be above max_batch_size 8",
        ),
        (
            {"batching": {"max_batch_size": 8, "max_execution_batch_size": 4, "enable_large_batch_splitting": False}},
            "max_execution_batch_size needs enable_large_batch_splitting",
        ),
    ],
)
def test_a_wrong_section_is_refused_by_the_name_of_its_key(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_serving(section)
