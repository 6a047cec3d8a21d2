"""Streams take compatible schemas only; models are checked before they are stored."""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import Conflict, InvalidInput, NotFound
from services.registry.catalog import Catalog
from services.registry.definitions.models import definition_digest
from services.registry.tests.building import LIMITS, SCHEMA, Clock, definition, lease, new_catalog, next_plan
from testing.rows import each_row


def _with_feature(**feature: object) -> str:
    schema = copy.deepcopy(dict(SCHEMA))
    schema["features"].append({"name": "z", "dtype": "float32", **feature})
    return json.dumps(schema)


def test_the_same_schema_again_makes_no_new_version(catalog: Catalog) -> None:
    again = catalog.register_stream("s", json.dumps(SCHEMA, indent=4))
    assert again.schema_version == 1


def test_an_optional_feature_makes_a_new_version_and_old_ones_stay_readable(catalog: Catalog) -> None:
    newer = catalog.register_stream("s", _with_feature(required=False, default=0.0))
    assert newer.schema_version == 2
    assert catalog.get_stream("s") == newer
    assert json.loads(catalog.get_stream("s", 1).schema_json) == SCHEMA
    assert [stream.schema_version for stream in catalog.list_streams()] == [2]


def test_an_incompatible_schema_is_refused_with_the_reason(catalog: Catalog) -> None:
    with pytest.raises(Conflict, match="z is new and required"):
        catalog.register_stream("s", _with_feature())
    assert catalog.get_stream("s").schema_version == 1


@each_row(
    "source, refused",
    [
        ({"servers": "kafka-1.example.org:9092"}, ""),
        ({"servers": "KAFKA-2.example.org:9092,kafka-3.example.org:9092"}, ""),
        ({}, ""),
        ({"servers": "kafka-1.example.org:9092,169.254.169.254:80"}, "169.254.169.254"),
        ({"servers": "kafka-1.example.org.evil.example:9092"}, "kafka-1.example.org.evil.example"),
        ({"format": "avro", "schema_registry": "http://kafka-1.example.org@metadata/x"}, "metadata"),
        ({"format": "avro", "schema_registry": "http://schemas:8081"}, ""),
    ],
)
def test_a_source_names_hosts_that_the_setting_permits(tmp_path: Path, source: Mapping[str, str], refused: str) -> None:
    limits = replace(LIMITS, source_hosts=("kafka-*.example.org", "schemas"))
    catalog = new_catalog(tmp_path, Clock(), limits)
    schema = json.dumps({**SCHEMA, "source": {"kafka": {"topic": "t", "format": "json", **source}}})
    try:
        if refused:
            for register in (
                lambda: catalog.register_stream("new", schema),
                lambda: catalog.apply(stream=("new", schema), model=None, by="ann", dry_run=False),
            ):
                with pytest.raises(
                    InvalidInput, match=f"names the host {re.escape(refused)}, and REGISTRY_SOURCE_HOSTS"
                ):
                    register()
            assert [stream.name for stream in catalog.list_streams()] == ["s"]
        else:
            assert catalog.register_stream("new", schema).schema_version == 1
    finally:
        catalog.close()


@each_row("text", ["", "[]", "{", '{"features": [], "labels": [], "more": 1}'])
def test_what_is_no_schema_is_refused(catalog: Catalog, text: str) -> None:
    with pytest.raises(InvalidInput):
        catalog.register_stream("t", text)
    with pytest.raises(NotFound):
        catalog.get_stream("t")


def test_unknown_names_are_not_found(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="stream nobody is not registered"):
        catalog.get_stream("nobody")
    with pytest.raises(NotFound, match="no schema version 9"):
        catalog.get_stream("s", 9)
    with pytest.raises(NotFound, match="model nobody is not registered"):
        catalog.get_model("nobody")
    catalog.register_model("late", stream="s", files=definition("late"), by="ada")
    with pytest.raises(NotFound, match=r"model lat is not registered; did you mean late\?"):
        catalog.get_model("lat")
    with pytest.raises(NotFound, match="stream late is not registered; there is a model of that name"):
        catalog.get_stream("late")
    with pytest.raises(NotFound, match="no definition"):
        catalog.get_definition("0" * 64)


def test_a_definition_is_stored_by_its_digest(catalog: Catalog) -> None:
    model = catalog.get_model("m")
    assert model.definition_digest == definition_digest(definition())
    assert catalog.get_definition(model.definition_digest) == definition()


def test_the_definition_must_be_of_the_model_and_stream_named(catalog: Catalog) -> None:
    with pytest.raises(InvalidInput, match="of model m on stream s, the request of other on s"):
        catalog.register_model("other", stream="s", files=definition("m"), by="test")
    with pytest.raises(InvalidInput, match="of model m on stream s, the request of m on "):
        catalog.register_model("m", stream="", files=definition("m", "s", seed=9), by="test")
    with pytest.raises(NotFound, match="stream t is not registered"):
        catalog.register_model("m2", stream="t", files=definition("m2", "t"), by="test")
    with pytest.raises(InvalidInput, match=r"model\.yaml"):
        catalog.register_model("m2", stream="s", files={"other.yaml": b"{}"}, by="test")
    with pytest.raises(InvalidInput, match="by must name"):
        catalog.register_model("m2", stream="s", files=definition("m2"), by=" ")


def test_the_definition_must_fit_the_schema(catalog: Catalog) -> None:
    wrong = {"model.yaml": definition("m2")["model.yaml"].replace(b"{x:", b"{nothing:")}
    with pytest.raises(InvalidInput, match="nothing"):
        catalog.register_model("m2", stream="s", files=wrong, by="test")


def test_an_upstream_that_is_not_there_and_a_ring_of_models_are_refused(catalog: Catalog) -> None:
    def apply(name: str, upstream: str) -> None:
        text = definition(name)["model.yaml"] + f"triggers: {{upstream: {upstream}}}\n".encode()
        catalog.register_model(name, stream="s", files={"model.yaml": text}, by="test")

    with pytest.raises(InvalidInput, match="triggers: upstream nobody is not registered; apply that model first"):
        apply("a", "nobody")
    apply("a", "m")
    apply("b", "a")
    with pytest.raises(InvalidInput, match="m waits for b, which waits for a, which waits for m: each needs"):
        apply("m", "b")
    apply("a", "m")
    assert catalog.get_model("m").definition_digest == definition_digest(definition())


def test_a_model_cannot_change_its_stream(catalog: Catalog) -> None:
    catalog.register_stream("t", json.dumps(SCHEMA))
    with pytest.raises(Conflict, match="learns from stream s"):
        catalog.register_model("m", stream="t", files=definition("m", "t"), by="test")


def test_a_new_definition_forgets_the_failures_of_the_old_one(catalog: Catalog) -> None:
    planned = catalog.plan_round(next_plan(catalog))
    catalog.fail_round(planned.round_id, lease(catalog).token, reason="NaN loss")
    assert catalog.get_model("m").consecutive_failures == 1
    catalog.register_model("m", stream="s", files=definition(), by="test")
    assert catalog.get_model("m").consecutive_failures == 1, "the same definition changes nothing"
    model = catalog.register_model("m", stream="s", files=definition(seed=8), by="test")
    assert (model.consecutive_failures, model.retry_at, model.last_failure) == (0, 0.0, "")
