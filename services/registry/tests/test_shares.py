"""How much one principal may create."""

import json
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import pytest

from common.access.principal import Principal, act_as
from common.errors import Conflict
from services.registry.catalog import Catalog
from services.registry.tests.building import LIMITS, SCHEMA, Clock, definition, new_catalog, publish, store
from testing.saved_models import saved_model


def _create(catalog: Catalog, who: str, name: str) -> None:
    def create() -> None:
        if who:
            act_as(Principal(who, frozenset()))
        catalog.apply(
            stream=(name, json.dumps(SCHEMA)), model=(name, definition(name, name)), by=who or "somebody", dry_run=False
        )

    copy_context().run(create)


@pytest.fixture
def catalog(tmp_path: Path, clock: Clock) -> Iterator[Catalog]:
    made = new_catalog(tmp_path / "data", clock, replace(LIMITS, shares={"model": 3, "schema": 3, "version": 2}))
    yield made
    made.end_watches()
    made.close()


def test_one_principal_creates_so_many_streams_and_models_and_another_goes_on(catalog: Catalog) -> None:
    for number in range(4):
        _create(catalog, "", f"nobodys-{number}")
    for number in range(3):
        _create(catalog, "ann", f"of-ann-{number}")
    with pytest.raises(Conflict, match=r"ann has registered 3 models.*REGISTRY_MAX_MODELS_PER_PRINCIPAL"):
        _create(catalog, "ann", "one-more")
    assert "one-more" not in {stream.name for stream in catalog.list_streams()}, "nothing of it was kept"
    _create(catalog, "ann", "of-ann-0")
    _create(catalog, "bob", "of-bob")
    copy_context().run(lambda: _another_schema(catalog))


def _another_schema(catalog: Catalog) -> None:
    act_as(Principal("ann", frozenset()))
    features = [*SCHEMA["features"], {"name": "more", "dtype": "float32", "required": False, "default": 0}]
    with pytest.raises(Conflict, match="ann has registered 3 schemas"):
        catalog.register_stream("of-bob", json.dumps({**SCHEMA, "features": features}))


def _push(catalog: Catalog, who: str, mark: str) -> int:
    def push() -> int:
        act_as(Principal(who, frozenset()))
        files = [replace(store(catalog, saved_model(mark=mark)), path="saved_model/saved_model.pb")]
        return catalog.push_version("m", files, origin="", by=who, reason="").version

    return copy_context().run(push)


def test_one_principal_pushes_a_number_of_versions_and_another_goes_on(catalog: Catalog) -> None:
    publish(catalog)
    pushed = [_push(catalog, "ann", mark) for mark in "ab"]
    with pytest.raises(Conflict, match=r"ann has pushed 2 versions.*REGISTRY_MAX_VERSIONS_PER_PRINCIPAL"):
        _push(catalog, "ann", "c")
    assert catalog.get_model("m").newest_version == pushed[-1], "nothing of it was kept"
    _push(catalog, "bob", "d")
