"""The HTTP door: what a person with curl meets."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.registry.catalog import FileEntry
from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.doors.http_api import MAX_BODY_BYTES
from services.registry.tests.building import SCHEMA, definition, lease, next_plan, publish, store
from testing import plain_http
from testing.registry_server import RegistryServer
from testing.rows import each_row


@pytest.fixture
def http(browser: httpx.Client) -> httpx.Client:
    return browser


def _put_model(http: httpx.Client, name: str, files: dict[str, bytes], **more: object) -> httpx.Response:
    encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
    return http.put(f"/v1/models/{name}", json={"stream": "s", "files": encoded, "by": "ada", **more})


def test_streams_are_registered_and_shown(http: httpx.Client) -> None:
    answer = http.put("/v1/streams/t", json=SCHEMA)
    assert (answer.status_code, answer.json()["schema_version"]) == (200, 1)
    assert json.loads(http.get("/v1/streams/t").json()["schema_json"]) == SCHEMA
    assert http.get("/v1/streams/t", params={"schema_version": 1}).json() == answer.json()
    assert [stream["name"] for stream in http.get("/v1/streams").json()["streams"]] == ["s", "t"]


def test_models_are_registered_and_their_definition_is_shown(http: httpx.Client) -> None:
    answer = _put_model(http, "m2", definition("m2"))
    assert answer.status_code == 200
    assert http.get("/v1/models/m2").json() == answer.json()
    assert [model["name"] for model in http.get("/v1/models").json()["models"]] == ["m", "m2"]
    shown = http.get(f"/v1/definitions/{answer.json()['definition_digest']}").json()
    assert base64.b64decode(shown["files"]["model.yaml"]) == definition("m2")["model.yaml"]


def test_versions_and_moves_are_listed_from_the_newest_page_by_page(http: httpx.Client, catalog: Catalog) -> None:
    for _ in range(3):
        publish(catalog)
    whole = http.get("/v1/models/m/versions").json()
    assert ([one["version"] for one in whole["versions"]], whole["older"]) == ([1, 2, 3], 0)
    newest = http.get("/v1/models/m/versions?limit=2").json()
    assert ([one["version"] for one in newest["versions"]], newest["older"]) == ([2, 3], 2)
    rest = http.get("/v1/models/m/versions?limit=2&before=2").json()
    assert ([one["version"] for one in rest["versions"]], rest["older"]) == ([1], 0)
    assert [move["to_version"] for move in http.get("/v1/models/m/history?limit=2").json()["changes"]] == [2, 3]
    assert http.get("/v1/models/m/versions?limit=1001").status_code == 400


def test_versions_and_rounds_are_shown_with_the_catalogs_field_names(http: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    rejected = publish(catalog, auc=float("nan"))
    listed = http.get("/v1/models/m/versions").json()["versions"]
    assert [(version["version"], version["status"]) for version in listed] == [(1, "accepted"), (2, "rejected")]
    assert listed[1]["metrics"]["candidate"]["auc"] is None, "JSON has no NaN"
    version = http.get("/v1/models/m/versions/2").json()
    assert [FileEntry(**file) for file in version["files"]] == list(rejected.files)
    assert (version["end_position"], version["seed"]) == ({"0": 20}, 2**64 - 1)
    assert version["verdict"]["decision"] == "reject"
    rounds = http.get("/v1/models/m/rounds", params={"limit": 1}).json()["rounds"]
    assert http.get("/v1/rounds", params={"limit": 1}).json()["rounds"] == rounds
    assert [(found["round_id"], found["state"], found["plan"]["parent_version"]) for found in rounds] == [
        ("m-000002", "done", 1)
    ]


def test_files_are_downloaded_whole_or_not(http: httpx.Client, catalog: Catalog, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    entry = store(catalog, content)
    answer = http.get(f"/v1/files/{entry.digest}")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (answer.content, answer.headers["content-length"]) == (content, str(len(content)))
    assert http.get(f"/v1/files/{'0' * 64}").status_code == 404
    assert http.get("/v1/files/etc").status_code == 400


def test_a_damaged_file_never_arrives_whole(registry: RegistryServer) -> None:
    content = b"x" * 3_000_000
    digest = hashlib.sha256(content).hexdigest()
    (registry.data_dir / "blobs" / digest[:2]).mkdir()
    (registry.data_dir / "blobs" / digest[:2] / digest).write_bytes(b"y" + content[1:])
    with pytest.raises(httpx.RemoteProtocolError):
        plain_http.get(f"{registry.url}/v1/files/{digest}", timeout=60)


def test_garbage_is_collected_on_request(http: httpx.Client) -> None:
    collected = {"archived_versions": [], "removed_files": 0, "removed_uploads": 0, "freed_bytes": 0}
    assert http.post("/v1/gc").json() == collected


ALIAS = "/v1/models/m/aliases/a"


@each_row(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/v1/models/nobody", None, 404, "model nobody is not registered"),
        ("GET", "/v1/models/m/versions/3", None, 404, "no version 3"),
        ("GET", "/v1/models/m/versions/three", None, 400, "valid integer"),
        ("GET", f"/v1/models/m/versions/{10**22}", None, 400, "version"),
        ("GET", f"/v1/streams/s?schema_version={10**22}", None, 400, "schema_version"),
        ("GET", "/v1/rounds?limit=1001", None, 400, "limit"),
        ("GET", "/v1/models/m/rounds?limit=0", None, 400, "limit"),
        ("GET", "/v1/models/m/rounds?limit=100000", None, 400, "limit must be 1 to 1000"),
        ("DELETE", "/v1/models/m?by=ada&dry_run=true", None, 409, "archive it first"),
        ("PUT", "/v1/streams/t", b"{", 400, "the body is not JSON"),
        ("PUT", "/v1/streams/t", b"[" * 100_000, 400, "cannot be read as JSON"),
        ("PUT", "/v1/streams/t", [1], 400, "valid dictionary"),
        ("PUT", "/v1/streams/t", {"a": 1}, 400, "schema"),
        ("PUT", "/v1/streams/t", {"features": [{"name": "a", "dtype": "float32", "max": 10**400}]}, 400,
         "max must be a number"),
        ("PUT", "/v1/streams/9t", SCHEMA, 400, "is not a name"),
        ("PUT", "/v1/models/m2", {"stream": "s", "files": {"model.yaml": "€"}, "by": "a"}, 400, "is not base64"),
        ("PUT", "/v1/models/m2", {"stream": "s", "files": {}, "by": "a", "owner": "x"}, 400, "owner"),
        ("PUT", ALIAS, {"version": 1, "by": ""}, 400, "by must name the author"),
        ("PUT", ALIAS, {"version": 2**64 - 1, "by": "a"}, 400, "version"),
        ("PUT", ALIAS, {"version": True, "by": "a"}, 400, "valid integer"),
        ("PUT", ALIAS, b'{"version": 1, "by": "\\ud800"}', 400, "body.by"),
        ("POST", "/v1/gc?dry_run=true", None, 400, "unknown query parameter dry_run"),
        ("POST", "/v1/models/m:rollback", {"by": "a"}, 409, "to roll back to"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_a_sentence(
    http: httpx.Client, method: str, path: str, body: Any, status: int, message: str
) -> None:
    content = body if isinstance(body, bytes | None) else json.dumps(body)
    answer = http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_a_body_beyond_the_bound_is_refused_however_it_comes(http: httpx.Client) -> None:
    large = b" " * (MAX_BODY_BYTES + 1)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(large), 1_000_000):
            yield large[start : start + 1_000_000]

    for content in (large, pieces()):
        answer = http.put("/v1/streams/t", content=content)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (400, "InvalidInput")
        assert "larger than" in answer.json()["error"]["message"]
    assert http.get("/v1/streams/t").status_code == 404


def test_operators_see_health_and_counts(registry: RegistryServer) -> None:
    assert plain_http.get(f"{registry.url}/healthz", timeout=60).status_code == 200
    assert plain_http.get(f"{registry.url}/readyz", timeout=60).json() == {"conditions": {"catalog": "ok"}}
    metrics = plain_http.get(f"{registry.url}/metrics", timeout=60).text
    assert "headrace_registry_watchers 0.0" in metrics
    paths = plain_http.get(f"{registry.url}/openapi.json", timeout=60).json()["paths"]
    assert "/v1/models/{model}:rollback" in paths


def test_rounds_are_counted_by_state(catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog, auc=0.1)
    catalog.plan_round(next_plan(catalog))
    lease(catalog)
    rounds, versions = {("rounds", "done"): 2, ("rounds", "running"): 1}, {("versions", "accepted"): 1}
    assert catalog.counts() == {**rounds, **versions, ("versions", "rejected"): 1}


def test_decisions_are_answered_with_their_outcome_and_versions_compared(http: httpx.Client, catalog: Catalog) -> None:
    """Each route by itself: test_audit.py."""
    publish(catalog)
    catalog.register_model("m", stream="s", files=definition(seed=8), by="eve")
    publish(catalog, auc=0.8)
    ada = {"by": "ada", "reason": "audit"}
    assert http.post("/v1/models/m:pause", json=ada).json()["paused"] == "ada: audit"
    assert http.post("/v1/models/m:pin", json={**ada, "version": 2}).json()["pinned_version"] == 2
    compared = http.get("/v1/models/m/diff", params={"from": 1, "to": 2}).json()
    assert (compared["relation"], compared["code"]) == ("2 descends from 1", {"same": True})
    assert compared["metrics"]["auc"] == {"from": 0.7, "to": 0.8, "change": pytest.approx(0.1)}
    assert {"-seed: 7", "+seed: 8"} <= set(compared["definition"]["model.yaml"])
    entries = http.get("/v1/history", params={"by": "ada"}).json()["entries"]
    assert [entry["action"] for entry in entries] == ["pin", "pause"]


def test_apply_is_both_or_neither(http: httpx.Client) -> None:
    files = {path: base64.b64encode(content).decode() for path, content in definition("m2", "s2").items()}
    body = {"stream": {"name": "s2", "schema": SCHEMA}, "model": {"name": "m2", "files": files}, "by": "ada"}
    tried = http.post("/v1/apply", json={**body, "dry_run": True}).json()
    assert (tried["stream_change"], tried["model_change"]) == ("created", "created")
    assert http.get("/v1/streams/s2").status_code == 404
    refused = http.post("/v1/apply", json={**body, "model": {"name": "other", "files": files}})
    assert (refused.status_code, http.get("/v1/streams/s2").status_code) == (400, 404)
    applied = http.post("/v1/apply", json=body).json()
    assert applied["model"]["stream"] == applied["stream"]["name"] == "s2"
    assert http.post("/v1/apply", json=body).json()["model_change"] == "unchanged"


def test_instances_and_who_serves_what_are_shown(http: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    served = Served("m", 1, "AVAILABLE", since=7.0, aliases=("production",))
    catalog.observed.report(
        Report("a", "serving", "127.0.0.1:8501", 5.0, serves=(served,), numbers={"open_requests": 3.0})
    )
    (instance,) = http.get("/v1/instances").json()["instances"]
    assert (instance["service"], instance["numbers"]["open_requests"], instance["started_at"]) == ("serving", 3.0, 5.0)
    assert http.get("/v1/models/m").json()["serving"]["available"] == ["a"]
    (version,) = http.get("/v1/models/m/versions").json()["versions"]
    assert version["served_by"][0]["instance_id"] == "a"
    assert http.get("/v1/models/m/versions/1").json()["served_by"] == version["served_by"]


def test_the_account_and_the_reasons_are_shown(http: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    counted = {"head_version": 1, "waiting": 300, "left_out": [], "waiting_for": "300 of 400 new examples"}
    catalog.observed.report(Report("t", "trainer", "", 5.0, models={"m": counted}))
    account = http.get("/v1/models/m/account").json()
    assert (account["examples"]["total"], account["examples"]["waiting"], account["adds_up"]) == (1300, 300, True)
    why = http.get("/v1/models/m/why").json()
    assert (why["state"], why["failure"], why["waiting_for"]) == ("ok", None, "300 of 400 new examples")
    for part in ("account", "why"):
        assert http.get(f"/v1/models/nobody/{part}").status_code == 404


def test_every_model_is_seen_at_a_glance_and_a_number_over_time(http: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    part = Part(model="m", version=1, numbers={"requests_per_second": 4.0})
    catalog.observed.report(Report("a", "serving", "", 5.0, numbers={"requests_per_second": 5.0}, parts=(part,)))
    (model,) = http.get("/v1/overview").json()["models"]
    assert (model["name"], model["production"]["version"], model["newest"]["decision"]) == ("m", 1, "promote")
    assert model["production"]["freshness_seconds"] == 0.5
    assert model["production"]["event_time_freshness_seconds"] is None
    publish(catalog, environment={"newest_event_time": 999_998.0})
    assert http.get("/v1/overview").json()["models"][0]["newest"]["event_time_freshness_seconds"] == 2.0
    assert (model["why"]["state"], model["versions_last_hour"], model["open_round"]) == ("ok", 1, None)
    found = http.get("/v1/series", params={"name": "requests_per_second", "seconds": 10}).json()
    series = [(part["model"], part["version"], part["points"]) for part in found["series"]]
    assert series == [("", 0, [5.0]), ("m", 1, [4.0])]
    assert http.get("/v1/series", params={"name": "nothing"}).status_code == 400
    assert http.get("/v1/series", params={"name": "x", "window": 5}).status_code == 400
