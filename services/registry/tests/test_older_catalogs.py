"""A catalog that an older registry made opens, shows what is in it, and goes on."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.definition.model import parse_definition
from common.errors import DataLoss
from common.registry.catalog import Decision, Lease, RoundState, VersionStatus
from services.registry.catalog import Catalog
from services.registry.rounds.leases import lease_number
from services.registry.tests.building import LIMITS, Clock, draft, lease, publish

# As SQLite wrote them down for the release of 21 November 2026, 15:34.
_TABLES = """
CREATE TABLE streams (name VARCHAR NOT NULL, schema_version INTEGER NOT NULL, schema_json TEXT NOT NULL,
    created_at FLOAT NOT NULL, PRIMARY KEY (name, schema_version));
CREATE TABLE definition_files (digest VARCHAR NOT NULL, path VARCHAR NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (digest, path));
CREATE TABLE models (name VARCHAR NOT NULL, stream VARCHAR NOT NULL, definition_digest VARCHAR NOT NULL,
    registered_by VARCHAR NOT NULL, created_at FLOAT NOT NULL, newest_version INTEGER NOT NULL,
    round_sequence INTEGER NOT NULL, consecutive_failures INTEGER NOT NULL, retry_at FLOAT NOT NULL,
    last_failure TEXT NOT NULL, PRIMARY KEY (name));
CREATE TABLE rounds (round_id VARCHAR NOT NULL, model VARCHAR NOT NULL, sequence INTEGER NOT NULL,
    plan_json TEXT NOT NULL, planned_at FLOAT NOT NULL, state VARCHAR NOT NULL, reason TEXT NOT NULL,
    lease_holder VARCHAR NOT NULL, lease_expires_at FLOAT NOT NULL, token INTEGER NOT NULL, attempts INTEGER NOT NULL,
    lost_leases INTEGER NOT NULL, progress_json TEXT NOT NULL, version INTEGER NOT NULL,
    resume_point_json TEXT NOT NULL, PRIMARY KEY (round_id), UNIQUE (model, sequence),
    FOREIGN KEY(model) REFERENCES models (name));
CREATE TABLE versions (model VARCHAR NOT NULL, version INTEGER NOT NULL, status VARCHAR NOT NULL,
    round_id VARCHAR NOT NULL, draft_json TEXT NOT NULL, verdict_json TEXT NOT NULL, end_position_json TEXT NOT NULL,
    created_at FLOAT NOT NULL, PRIMARY KEY (model, version), FOREIGN KEY(model) REFERENCES models (name),
    UNIQUE (round_id), FOREIGN KEY(round_id) REFERENCES rounds (round_id));
CREATE TABLE version_files (model VARCHAR NOT NULL, version INTEGER NOT NULL, path VARCHAR NOT NULL,
    size_bytes INTEGER NOT NULL, digest VARCHAR NOT NULL, PRIMARY KEY (model, version, path));
CREATE TABLE aliases (model VARCHAR NOT NULL, alias VARCHAR NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (model, alias), FOREIGN KEY(model) REFERENCES models (name));
CREATE TABLE alias_history (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, model VARCHAR NOT NULL,
    alias VARCHAR NOT NULL, from_version INTEGER NOT NULL, to_version INTEGER NOT NULL, move VARCHAR NOT NULL,
    changed_by VARCHAR NOT NULL, reason TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE changes (revision INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL, version INTEGER NOT NULL, detail VARCHAR NOT NULL, at FLOAT NOT NULL);
CREATE INDEX ix_version_files_digest ON version_files (digest);
CREATE INDEX ix_alias_history_model ON alias_history (model);
CREATE INDEX rounds_by_state ON rounds (state, planned_at);
PRAGMA user_version=1;
"""
_DIGEST = "b74af15204821817275c5db75030cd7c8dbb1d1f62af7da52257f38d03bb7ab3"
_SCHEMA = '{"features":[{"dtype":"float32","name":"x"}],"labels":[{"dtype":"int64","max":1,"min":0,"name":"y"}]}'
_DEFINITION = b"""\
name: m
stream: s
label: y
seed: 7
estimator: wide_deep_classifier
features:
  x: {type: numeric, normalize: zscore}
  carrier: {type: hashed, bins: 10}
parameters: {classes: 2, wide: [carrier], deep: [x], hidden_units: [8], activation: relu, dropout: 0.1, l2: 0.001}
training: {batch_size: 32}
triggers: {min_examples: 100, max_interval_seconds: 60, cooldown_seconds: 1, max_round_examples: 1000}
evaluation: {holdout_fraction: 0.1}
gate: {metric: log_loss, max_regression: 0.01, min_value: null, max_value: 1.0, min_examples: 10, on_reject: skip,
  canary: false}
export: {warmup_requests: 4}
"""


def _plan(sequence: int, parent: int) -> str:
    ends = 10 * sequence
    ranges = [{"from_offset": ends - 10, "partition": 0, "to_offset": ends}]
    plan: dict[str, object] = {"code_digest": "c0de", "configuration": {"batch_size": 32}, "configuration_digest": "c0"}
    plan |= {"definition_digest": _DIGEST, "example_count": 1000, "last_event_at": 999999.5, "model": "m"}
    plan |= {"parent_version": parent, "ranges": ranges, "schema_version": 1, "seed": 7, "sequence": sequence}
    return json.dumps(plan | {"stream": "s", "trigger": "manual"})


def _rule(metric: str, *, lower_is_better: bool) -> dict[str, object]:
    bounds: dict[str, object] = {"max_regression": 0.01, "min_value": None, "max_value": None, "min_examples": 0}
    return {"metric": metric, **bounds, "on_reject": "retry", "canary": False, "lower_is_better": lower_is_better}


def _draft(rule: dict[str, object]) -> str:
    metrics = {"candidate": {"auc": 0.7, "log_loss": 0.4}}
    counts: dict[str, object] = {"events_held_out": 100, "events_trained": 900, "events_unusable": 0, "step": 30}
    told = {"environment": {"python": "3"}, "timings": {"train": 1.5}, "weights_digest": "digest-of-weights"}
    return json.dumps(counts | told | {"gate": rule, "metrics": metrics})


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Two versions, judged by metrics of either direction, and a round that trainer `a` holds."""
    with sqlite3.connect(tmp_path / "catalog.sqlite") as database:
        database.executescript(_TABLES)

        def add(table: str, *values: object) -> None:
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

        add("streams", "s", 1, _SCHEMA, 1e6)
        add("definition_files", _DIGEST, "model.yaml", _DEFINITION)
        add("models", "m", "s", _DIGEST, "test", 1e6, 2, 3, 0, 0.0, "")
        for number, rule in ((1, _rule("auc", lower_is_better=False)), (2, _rule("log_loss", lower_is_better=True))):
            round_id = f"m-{number:06}"
            plan = _plan(number, number - 1)
            add("rounds", round_id, "m", number, plan, 1e6, "done", "", "a", 0.0, 1, 1, 0, "{}", number, "")
            verdict = json.dumps({"decision": "promote", "reasons": ["as good as its parent"], "rule": rule})
            add("versions", "m", number, "accepted", round_id, _draft(rule), verdict, f'{{"0":{10 * number}}}', 1e6)
            add("version_files", "m", number, "checkpoint/state", 1, "0" * 64)
            add("alias_history", number, "m", "production", number - 1, number, "set", "gate", "passed", 1e6)
        add("rounds", "m-000003", "m", 3, _plan(3, 2), 1e6, "running", "", "a", 1e6 + 10.0, 1, 1, 0, "{}", 0, "")
        add("aliases", "m", "production", 2)
        add("changes", 1, "model", "m", 0, "", 1e6)
    database.close()
    return tmp_path


@pytest.fixture
def catalog(older: Path, clock: Clock) -> Iterator[Catalog]:
    Catalog(older, LIMITS, clock=clock).close()
    opened = Catalog(older, LIMITS, clock=clock)  # again, with its new columns
    yield opened
    opened.close()


def test_its_versions_are_shown_with_the_direction_that_was_called_lower_is_better(catalog: Catalog) -> None:
    first, second = catalog.list_versions("m")
    assert (first.verdict.rule.metric, first.verdict.rule.direction) == ("auc", "higher")
    assert (second.verdict.rule.metric, second.verdict.rule.direction) == ("log_loss", "lower")
    assert (second.status, second.verdict.decision, second.unusable) == (VersionStatus.ACCEPTED, Decision.PROMOTE, {})
    assert catalog.get_version("m", 2).verdict == second.verdict


def test_its_models_streams_and_rounds_are_shown_with_what_they_did_not_have_yet(catalog: Catalog) -> None:
    (model,) = catalog.list_models()
    assert (model.aliases, model.newest_version, model.head_version) == ({"production": 2}, 2, 2)
    assert (model.paused, model.pinned_version, model.archived, model.failure) == ("", 0, False, {})
    assert [stream.name for stream in catalog.list_streams()] == ["s"]
    states = [found.state for found in catalog.list_rounds("m", 10)]
    assert states == [RoundState.RUNNING, RoundState.DONE, RoundState.DONE]
    assert [change.to_version for change in catalog.alias_history("m")] == [1, 2]


def test_its_definitions_mean_what_they_meant(catalog: Catalog) -> None:
    definition = parse_definition(catalog.get_definition(_DIGEST))
    gate = definition.gate
    assert (gate.metric, gate.direction, gate.on_reject) == ("log_loss", "lower", "skip")
    assert definition.triggers.min_examples == 100


def test_its_running_round_may_end_under_its_old_token_and_rounds_go_on(catalog: Catalog, clock: Clock) -> None:
    catalog.renew_lease("m-000003", 1, ttl_seconds=10.0, progress={})
    assert catalog.lease_round("a", ttl_seconds=10.0, secret="a secret of its own") is None
    assert catalog.register_version("m-000003", 1, draft(catalog)).version == 3
    assert publish(catalog).version == 4


def test_its_running_round_is_taken_over_when_the_lease_has_run_out(catalog: Catalog, clock: Clock) -> None:
    clock.pass_seconds(10.0)
    held: Lease = lease(catalog, "b")
    assert (held.round.round_id, lease_number(held.token)) == ("m-000003", 1)


def test_a_catalog_of_a_newer_format_is_refused_and_left_as_it_is(catalog: Catalog, older: Path, clock: Clock) -> None:
    catalog.close()
    path = older / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=2")
        before = list(connection.iterdump())
    with pytest.raises(DataLoss, match="of format 2, this registry reads format 1"):
        Catalog(older, LIMITS, clock=clock)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert list(connection.iterdump()) == before
