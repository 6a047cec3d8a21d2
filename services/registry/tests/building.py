"""What the tests build catalogs from: a clock to turn by hand, a small stream and model, plans, files, drafts."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from common.definition.gate import Gate
from common.process.retry import Backoff
from common.registry.catalog import FileEntry, JsonMap, Lease, OffsetRange, RoundPlan, Version, VersionDraft
from common.registry.client import RegistryClient
from common.registry.reporting import Report
from services.registry.catalog import Catalog, CatalogLimits
from services.registry.rounds.leases import LeaseRules
from services.registry.store.postgres import Leadership, lead, open_engine, url_of
from testing.postgres_server import PostgresServer
from testing.saved_models import saved_model

SCHEMA: JsonMap = {
    "features": [{"name": "x", "dtype": "float32"}],
    "labels": [{"name": "y", "dtype": "int64", "min": 0, "max": 1}],
}
LIMITS = CatalogLimits(
    lease_rules=LeaseRules(max_lost_leases=3, backoff=Backoff(first_seconds=2.0, longest_seconds=60.0)),
    upload_grace_seconds=100.0,
    keep_changes=1000,
    max_file_bytes=10_000_000,
    max_watchers=4,
    max_parameters=1_000_000_000,
    shares={"model": 1000, "schema": 1000, "version": 1000},
    heartbeat_seconds=0.05,
)
GATE = Gate(metric="auc", max_regression=0.01, min_value=0.5)


@dataclass
class Clock:
    """Time that passes only when told to."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds


def definition(name: str = "m", stream: str = "s", *, seed: int = 7, retention: str = "") -> dict[str, bytes]:
    """model.yaml of the smallest model there is."""
    text = f"retention: {retention}\n" if retention else ""
    text += f"name: {name}\nstream: {stream}\nlabel: y\nseed: {seed}\nestimator: linear_classifier\n"
    return {"model.yaml": f"{text}features: {{x: {{type: numeric}}}}\n".encode()}


LATE: JsonMap = {
    **SCHEMA,
    "features": [*SCHEMA["features"], {"name": "id", "dtype": "string"}],
    "late_labels": {"key": "id", "wait_seconds": 60},
}
"""Of a stream whose labels come later."""


def define_late(catalog: Catalog, text: str) -> None:
    """Model w on the stream `late`, its definition with these lines more."""
    catalog.register_stream("late", json.dumps(LATE))
    files = {"model.yaml": definition("w", "late")["model.yaml"] + text.encode()}
    catalog.register_model("w", stream="late", files=files, by="test")


def new_catalog(
    directory: Path, clock: Clock, limits: CatalogLimits = LIMITS, leadership: Leadership | None = None
) -> Catalog:
    """With stream s and model m."""
    catalog = Catalog(directory, limits, clock=clock, leadership=leadership)
    catalog.register_stream("s", json.dumps(SCHEMA))
    catalog.register_model("m", stream="s", files=definition(), by="test")
    return catalog


NEWEST_ONLY = "{keep_all_hours: 0, keep_hourly_days: 0, keep_daily_days: 0}"
"""A retention that keeps the newest version and what is needed, once the day is over."""


def report_log(catalog: Catalog, *, model: str = "m", log_start: int = 0) -> None:
    """A trainer says where the log begins, without which nothing is thinned."""
    told = {"head_version": 0, "waiting": 0, "left_out": [], "log_start": {"0": log_start}, "log_end": {"0": 10**9}}
    catalog.observed.report(Report("t", "trainer", "", 1.0, models={model: told}))


def next_plan(catalog: Catalog | RegistryClient, *, model: str = "m", count: int = 10) -> RoundPlan:
    """The plan that is due: from where its head ended, `count` records of partition 0."""
    known = catalog.get_model(model)
    parent = known.head_version
    start = catalog.get_version(model, parent).end_position.get(0, 0) if parent else 0
    return RoundPlan(
        model=model,
        sequence=known.round_sequence + 1,
        parent_version=parent,
        stream=known.stream,
        schema_version=1,
        ranges=(OffsetRange(0, start, start + count),),
        definition_digest=known.definition_digest,
        configuration={"batch_size": 32},
        configuration_digest="c0ffee",
        code_digest="c0de",
        seed=2**64 - 1,
        example_count=count * 100,
        trigger="manual",
        last_event_at=999_999.5,
    )


def store(catalog: Catalog, content: bytes) -> FileEntry:
    """Uploads the bytes; the entry's path is to be replaced."""
    digest = hashlib.sha256(content).hexdigest()
    catalog.blobs.receive(digest, len(content), 0, [content])
    return FileEntry("file", len(content), digest)


def draft(
    catalog: Catalog,
    *,
    auc: float = 0.7,
    parent_auc: float | None = 0.7,
    gate: Gate = GATE,
    contents: Mapping[str, bytes] | None = None,
) -> VersionDraft:
    """A draft whose files are uploaded."""
    contents = contents or {"checkpoint/state": b"weights", "saved_model/saved_model.pb": saved_model()}
    files = tuple(replace(store(catalog, content), path=path) for path, content in contents.items())
    metrics = {"candidate": {"auc": auc}} | ({"parent": {"auc": parent_auc}} if parent_auc is not None else {})
    return VersionDraft("digest-of-weights", metrics, gate, 900, 100, 0, files, 30, {"train": 1.5}, {"python": "3"})


def secret_of(holder: str) -> str:
    """What the holder shows, so that it gets its running round back."""
    return f"secret of {holder:>16}"


def lease(catalog: Catalog, holder: str = "trainer", *, models: Sequence[str] = ()) -> Lease:
    found = catalog.lease_round(holder, ttl_seconds=10.0, models=models, secret=secret_of(holder))
    assert found is not None
    return found


def leased(catalog: Catalog) -> Lease:
    """The round that is due, planned and leased."""
    catalog.plan_round(next_plan(catalog))
    return lease(catalog)


def publish(
    catalog: Catalog,
    *,
    model: str = "m",
    auc: float = 0.7,
    gate: Gate = GATE,
    evaluation: JsonMap | None = None,
    contents: Mapping[str, bytes] | None = None,
    environment: JsonMap | None = None,
) -> Version:
    """Plans, leases and registers the next version, whose files are its own."""
    planned = catalog.plan_round(next_plan(catalog, model=model))
    held = lease(catalog, models=[model])
    own = planned.round_id.encode()
    of_version = {
        "checkpoint/state": b"weights of " + own,
        "saved_model/saved_model.pb": saved_model(mark=planned.round_id),
    }
    made = draft(catalog, auc=auc, gate=gate, contents=of_version | dict(contents or {}))
    made = replace(made, evaluation=evaluation or {}, environment=dict(made.environment) | dict(environment or {}))
    return catalog.register_version(held.round.round_id, held.token, made)


def multiply(directory: Path, *, versions: int, models: int) -> None:
    """Copies the only version of model m in a closed or idle catalog: to so many of m, and to so many models with one
    version each, as rows of the store."""
    with closing(sqlite3.connect(directory / "catalog.sqlite")) as store, store:
        store.row_factory = sqlite3.Row
        rows = {table: dict(store.execute(f"SELECT * FROM {table}").fetchone()) for table in _COPIED}
        plan = json.loads(rows["rounds"]["plan_json"])
        places = [("m", number) for number in range(2, versions + 1)]
        places += [(f"model-{number:02d}", 1) for number in range(1, models)]
        for name, number in places:
            round_id = f"{name}-{number:06d}"
            own = json.dumps({**plan, "model": name, "sequence": number, "parent_version": number - 1})
            changed: dict[str, JsonMap] = {
                "rounds": {
                    "model": name,
                    "round_id": round_id,
                    "sequence": number,
                    "version": number,
                    "plan_json": own,
                },
                "versions": {"model": name, "round_id": round_id, "version": number},
            }
            if name != "m":
                changed |= {"models": {"name": name}, "aliases": {"model": name}}
            for table, values in changed.items():
                row = {**rows[table], **values}
                marks = ", ".join("?" * len(row))
                store.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        newest = {"newest_version": versions, "round_sequence": versions, "head_version": 0}
        store.execute(f"UPDATE models SET {', '.join(f'{k} = {v}' for k, v in newest.items())} WHERE name = 'm'")
        store.execute("UPDATE aliases SET version = ? WHERE model = 'm'", (versions,))


_COPIED = ("models", "rounds", "versions", "aliases")


def leadership_of(postgres: PostgresServer, database: str) -> Leadership:
    """Of a database that no other leads."""
    engine = open_engine(url_of(postgres.url(database), postgres.password_file))
    told: list[str] = []
    return lead(engine, "owner", is_stopped=lambda _: bool(told), report=told.append)
