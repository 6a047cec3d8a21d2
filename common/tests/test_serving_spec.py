"""What model.yaml may say about serving, and how plainly what it may not say is refused."""

from common.definition.model import parse_definition
from common.definition.serving import parse_serving
from common.tests.test_definition import files


def test_only_what_was_said_is_kept_for_the_replica() -> None:
    said = parse_serving({"engine": "auto", "slo_ms": 20, "batching": {"max_batch_size": 8, "is_enabled": None}})
    assert said.to_mapping() == {"engine": "auto", "slo_ms": 20.0, "batching": {"max_batch_size": 8}}
    assert parse_serving({}).to_mapping() == {}


def test_what_was_kept_reads_back_the_same() -> None:
    batching = {"max_batch_size": 64, "allowed_batch_sizes": [1, 8, 64], "num_batch_threads": 64}
    said = parse_serving({"batching": batching})
    assert parse_serving(said.to_mapping()) == said


def test_a_definition_carries_its_serving_section() -> None:
    assert parse_definition(files(serving={"slo_ms": 5})).serving.slo_ms == 5.0
    assert parse_definition(files()).serving.to_mapping() == {}
