"""A value of a wrong type at any key of any body: one of the six errors, or what was taken can be shown afterwards."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.registry.catalog import Catalog
from services.registry.tests.building import SCHEMA, definition, publish, store
from services.registry.webhooks.hooks import read_webhooks
from testing.rows import each_row
from testing.saved_models import saved_model
from testing.wrong_values import JSON_VALUES, YAML_VALUES, refusal_of, wrong

WHO = {"by": "ada", "reason": "trial"}
FILES = {"model.yaml": base64.b64encode(definition()["model.yaml"]).decode()}
INTERVALS = {"auc": {"candidate": [0, 1], "difference": [0, 1]}}
EVALUATION: dict[str, Any] = {
    "slices": [
        {"by": ["x"], "where": {"x": "a"}, "count": 9, "metrics": {"candidate": {"auc": 0.5}}, "intervals": INTERVALS},
        {"by": ["x"], "where": None, "value_count": 2, "count": 9, "metrics": {}, "undefined": {"auc": "one class"}},
    ],
    "intervals": INTERVALS,
    "curves": {"candidate": {"y": {"roc": [[0, 1]], "confusion": {"classes": ["a"], "counts": [[1]]}}}},
    "by_step": [{"step": 1}],
    "duplicates": {"same_features": 1},
}
GATE = {
    "metric": "auc", "direction": "higher", "max_regression": 0.01, "min_value": 0.5, "max_value": None,
    "min_examples": 1, "confidence": 0.95, "on_not_enough_evidence": "reject", "on_reject": "retry", "canary": False,
}  # fmt: skip
RULES = {
    "rules": [
        {"metric": "auc", "max_regression": 0.005},
        {"metric": "auc", "slice": {"x": "a"}, "min_value": 0.6, "min_examples": 5},
        {"metric": "auc", "slice": "x", "min_value": 0.5},
    ]
}
BODIES: dict[str, dict[str, Any]] = {
    "PUT /v1/streams/t": {**SCHEMA, "event_time": "x", "weight": "x"},
    "PUT /v1/models/m": {"stream": "s", "files": FILES, "by": "ada"},
    "PUT /v1/models/m/aliases/shadow": {**WHO, "version": 1},
    "POST /v1/models/m:rollback": {**WHO, "events": "learn"},
    "POST /v1/models/m:pin": {**WHO, "version": 1},
    "POST /v1/models/m:unpin": WHO,
    "POST /v1/models/m:pause": WHO,
    "POST /v1/models/m/rounds/m-000001:fail": WHO,
    "POST /v1/models/m/rounds/m-000001:stop": WHO,
    "POST /v1/models/m/rounds/m-000001:resume": WHO,
    "POST /v1/streams/s:archive": WHO,
    "POST /v1/apply": {
        "stream": {"name": "s", "schema": SCHEMA}, "model": {"name": "m", "files": FILES}, "by": "ada", "dry_run": True,
    },
}  # fmt: skip


@pytest.fixture
def browser(catalog: Catalog, browser: httpx.Client) -> httpx.Client:
    publish(catalog)
    return browser


def _pushed(catalog: Catalog, gate: dict[str, Any]) -> dict[str, Any]:
    file = store(catalog, saved_model())
    sides = {"candidate": {"auc": 0.5}, "parent": {"auc": 0.4}}
    measured = {"against": 1, "gate": gate, "metrics": sides, "evaluation": EVALUATION, "held_out": 4}
    entry = {"path": "saved_model/saved_model.pb", "size_bytes": file.size_bytes, "digest": file.digest}
    return {**WHO, "origin": "a laptop", "files": [entry], "measured": measured}


def _refusals(browser: httpx.Client, route: str, bodies: Iterable[tuple[str, object]]) -> set[int]:
    """The statuses of all bodies. An answer that is none of the six errors, nor of what was taken, fails."""
    method, path = route.split()
    statuses = set()
    for place, given in bodies:
        answer = browser.request(method, path, content=json.dumps(given), headers={"content-type": "application/json"})
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400, 404, 409), f"{route}: {place}: {answer.text}"
        assert answer.status_code == 200 or answer.json()["error"]["message"], f"{route}: {place}"
    return statuses


@each_row("route", BODIES)
def test_bodies_with_a_value_of_a_wrong_type(browser: httpx.Client, route: str) -> None:
    assert 400 in _refusals(browser, route, wrong(BODIES[route], JSON_VALUES, every=2))


def test_every_route_that_takes_a_body_is_tried(browser: httpx.Client) -> None:
    routes = {
        f"{method.upper()} {path}".replace("{model}", "m")
        for path, methods in browser.get("/openapi.json").json()["paths"].items()
        for method, said in methods.items()
        if "requestBody" in said
    }
    changes = {f"POST /v1/{kind}:{how}" for kind in ("models/m", "streams/{stream}") for how in ("archive", "restore")}
    tried = {route.replace("/streams/t", "/streams/{stream}").replace("m-000001", "{round_id}") for route in BODIES}
    tried = {route.replace("/streams/s", "/streams/{stream}").replace("shadow", "{alias}") for route in tried}
    alike = changes | {"POST /v1/models/m:resume", "POST /v1/models/m:push"}  # bodies of authors alone; the test below
    assert routes == tried | alike


def test_pushes_with_a_figure_of_a_wrong_type_and_their_pages(browser: httpx.Client, catalog: Catalog) -> None:
    route, pushed = "POST /v1/models/m:push", _pushed(catalog, GATE)
    rules = (
        (place, pushed | {"measured": pushed["measured"] | {"gate": gate}})
        for place, gate in wrong(RULES, JSON_VALUES, every=4)
    )
    assert _refusals(browser, route, wrong(pushed, JSON_VALUES, every=4)) >= {200, 400}
    assert _refusals(browser, route, rules) >= {200, 400}
    for version in catalog.list_versions("m"):
        answer = browser.get(f"/models/m/versions/{version.version}")
        assert answer.status_code == 200, answer.text
    assert browser.get("/models/m/versions").status_code == 200


def test_webhooks_of_a_wrong_type_end_the_start_with_a_sentence(tmp_path: Path) -> None:
    hook = {"name": "ops", "url": "https://a/b", "secret": "s" * 16, "events": ["version"], "models": ["m"]}
    path = tmp_path / "webhooks.yaml"
    path.write_text(yaml.safe_dump({"webhooks": [hook]}))
    assert read_webhooks(path)[0].name == "ops"
    for place, given in wrong({"webhooks": [hook]}, YAML_VALUES):
        path.write_text(yaml.safe_dump(given))
        assert refusal_of(lambda: read_webhooks(path), place) != "nothing", place
