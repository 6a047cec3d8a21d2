"""The catalog's tables, and their rows as values. What is asked for or changed is a column; what never changes is JSON
text beside it.

The same in SQLite and in PostgreSQL: numbers of 64 bits, names in the order of their bytes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

Value = TypeVar("Value")
FORMAT = 1
"""Stored with the data; a registry refuses to open another format."""

NUMBER = BigInteger().with_variant(Integer(), "sqlite")
NAME = String().with_variant(String(collation="C"), "postgresql")
metadata = MetaData()

streams = Table(
    "streams",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("schema_version", NUMBER, primary_key=True),
    Column("schema_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    # common.registry.catalog.Stream.log_number.
    Column("log_number", NUMBER, nullable=False, server_default="1"),
    # The principal; services.registry.definitions.shares.
    Column("created_by", NAME, nullable=False, server_default=""),
)

definition_files = Table(
    "definition_files",
    metadata,
    Column("digest", NAME, primary_key=True),
    Column("path", NAME, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("stream", NAME, nullable=False),
    Column("definition_digest", NAME, nullable=False),
    Column("registered_by", NAME, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("newest_version", NUMBER, nullable=False),
    Column("round_sequence", NUMBER, nullable=False),
    Column("consecutive_failures", NUMBER, nullable=False),
    Column("retry_at", Float, nullable=False),
    Column("last_failure", Text, nullable=False),
    # What stands below came later: each has a default, so that opening an older catalog can add it (database.py).
    Column("failure_json", Text, nullable=False, server_default="{}"),
    Column("paused", Text, nullable=False, server_default=""),
    Column("pinned_version", NUMBER, nullable=False, server_default="0"),
    Column("archived", Boolean, nullable=False, server_default="0"),
    # The parent of the next round; 0: production; -1: none, it starts from nothing.
    Column("head_version", NUMBER, nullable=False, server_default="0"),
    # common.registry.catalog.Model.rolled_back.
    Column("rolled_back_json", Text, nullable=False, server_default="{}"),
    # common.registry.catalog.Model.forgotten_examples, and their places (common.registry.forgotten).
    Column("forgotten_examples", NUMBER, nullable=False, server_default="0"),
    Column("forgotten_pieces", Text, nullable=False, server_default="[]"),
    Column("created_by", NAME, nullable=False, server_default=""),
    # common.registry.catalog.Model.canary.
    Column("canary_json", Text, nullable=False, server_default="{}"),
    Column("logs_inputs", Boolean, nullable=False, server_default="0"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("round_id", NAME, primary_key=True),
    Column("model", NAME, ForeignKey("models.name"), nullable=False),
    Column("sequence", NUMBER, nullable=False),
    # The whole common.registry.catalog.RoundPlan, canonical: equal plans are equal text.
    Column("plan_json", Text, nullable=False),
    Column("planned_at", Float, nullable=False),
    Column("state", NAME, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("lease_holder", NAME, nullable=False, default=""),
    Column("lease_expires_at", Float, nullable=False, default=0.0),
    # The fencing token of the newest lease (services.registry.rounds.leases), 63 bits; 0 before the first.
    Column("token", NUMBER, nullable=False, default=0),
    Column("attempts", NUMBER, nullable=False, default=0),
    # Leases that ended without a word: expired and taken over, or taken up again by a restarted holder.
    Column("lost_leases", NUMBER, nullable=False, default=0),
    Column("progress_json", Text, nullable=False, default="{}"),
    Column("version", NUMBER, nullable=False, default=0),
    # A common.registry.catalog.ResumePoint, or "" when the round starts from its beginning.
    Column("resume_point_json", Text, nullable=False, default=""),
    Column("failure_json", Text, nullable=False, server_default="{}"),
    # What the holder must show to get its running round back before the lease has run out; "": nobody gets it.
    Column("holder_secret_sha256", NAME, nullable=False, server_default=""),
    # Who has stopped it; "": nobody. Nobody leases it until it is resumed.
    Column("stopped_by", Text, nullable=False, server_default=""),
    UniqueConstraint("model", "sequence"),
    Index("rounds_by_state", "state", "planned_at"),
    Index("rounds_by_model_and_state", "model", "state"),
    Index("rounds_by_time", "planned_at", "round_id"),
)

versions = Table(
    "versions",
    metadata,
    Column("model", NAME, ForeignKey("models.name"), primary_key=True),
    Column("version", NUMBER, primary_key=True),
    Column("status", NAME, nullable=False),
    Column("round_id", NAME, ForeignKey("rounds.round_id"), nullable=False, unique=True),
    # What the trainer handed in, canonical, without the files; and what the registry made of it.
    Column("draft_json", Text, nullable=False),
    Column("verdict_json", Text, nullable=False),
    Column("end_position_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    # What its SavedModel promises (services.registry.versions.contract); {} for versions of before there was one.
    Column("contract_json", Text, nullable=False, server_default="{}"),
    # common.registry.catalog.Version.thinned_at and thinned_by.
    Column("thinned_at", Float, nullable=False, server_default="0"),
    Column("thinned_by", NAME, nullable=False, server_default=""),
    # common.registry.catalog.Version.forgotten_at.
    Column("forgotten_at", Float, nullable=False, server_default="0"),
    # common.registry.catalog.Version.signed_by.
    Column("signed_by", NAME, nullable=False, server_default=""),
    # The principal that pushed it; services.registry.definitions.shares.
    Column("pushed_by", NAME, nullable=False, server_default=""),
    Index("versions_by_pusher", "pushed_by"),
    # What counts, thins and collects reads these alone, and none of the JSON.
    Index("versions_by_status", "status", "model", "version", "created_at"),
    Index("versions_by_time", "created_at", "model"),
)

lineage = Table(
    "lineage",
    metadata,
    # One row a version; services.registry.rounds.line says what each column is for.
    Column("model", NAME, primary_key=True),
    Column("version", NUMBER, primary_key=True),
    Column("parent_version", NUMBER, nullable=False),
    Column("depth", NUMBER, nullable=False),
    Column("jump_version", NUMBER, nullable=False),
    Column("accounted", NUMBER, nullable=False),
    Column("leaves_out", Boolean, nullable=False),
    Column("totals_json", Text, nullable=False),
    Index("lineage_by_left_out", "model", "leaves_out", "version"),
)

thinned = Table(
    "thinned",
    metadata,
    # Of each model and rule, what has been thinned in all; services.registry.versions.retention.
    Column("model", NAME, primary_key=True),
    Column("rule", NAME, primary_key=True),
    Column("versions", NUMBER, nullable=False),
    Column("first_version", NUMBER, nullable=False),
    Column("last_version", NUMBER, nullable=False),
    Column("at", Float, nullable=False),
)

version_files = Table(
    "version_files",
    metadata,
    Column("model", NAME, primary_key=True),
    Column("version", NUMBER, primary_key=True),
    Column("path", NAME, primary_key=True),
    Column("size_bytes", NUMBER, nullable=False),
    Column("digest", NAME, nullable=False, index=True),
)

signatures = Table(
    "signatures",
    metadata,
    # A version's DSSE envelope, apart from what lists of versions read; gone with its files.
    Column("model", NAME, primary_key=True),
    Column("version", NUMBER, primary_key=True),
    Column("envelope", Text, nullable=False),
)

live = Table(
    "live",
    metadata,
    # services.registry.versions.live: where the trainers' reading of labels stands.
    Column("model", NAME, primary_key=True),
    Column("revision", NUMBER, nullable=False),
    Column("state_json", Text, nullable=False),
    Column("counts_json", Text, nullable=False),
    Column("updated_at", Float, nullable=False),
)

live_versions = Table(
    "live_versions",
    metadata,
    # What labelled predictions say of a version, and what the judge made of it.
    Column("model", NAME, primary_key=True),
    Column("version", NUMBER, primary_key=True),
    Column("tracks_json", Text, nullable=False, server_default="[]"),
    Column("judge_json", Text, nullable=False, server_default="{}"),
    Column("canary_json", Text, nullable=False, server_default="{}"),
    Column("updated_at", Float, nullable=False),
)

aliases = Table(
    "aliases",
    metadata,
    Column("model", NAME, ForeignKey("models.name"), primary_key=True),
    Column("alias", NAME, primary_key=True),
    Column("version", NUMBER, nullable=False),
)

alias_history = Table(
    "alias_history",
    metadata,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("model", NAME, nullable=False, index=True),
    Column("alias", NAME, nullable=False),
    Column("from_version", NUMBER, nullable=False),
    Column("to_version", NUMBER, nullable=False),
    # "set" or "rollback": a rollback undoes moves, so that the next one walks further back.
    Column("move", NAME, nullable=False),
    Column("changed_by", NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index("alias_history_by_alias", "model", "alias"),
    Index("alias_history_by_move", "alias", "move"),
    Index("alias_history_by_author", "changed_by"),
    sqlite_autoincrement=True,
)

history = Table(
    "history",
    metadata,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("changed_by", NAME, nullable=False),
    Column("action", NAME, nullable=False),
    Column("model", NAME, nullable=False, index=True),
    Column("stream", NAME, nullable=False, index=True),
    Column("version", NUMBER, nullable=False),
    Column("detail", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index("history_by_author", "changed_by"),
    Index("history_by_action", "action"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", NUMBER, primary_key=True, autoincrement=False),
    # The entry as it is exported (common.registry.audit).
    Column("line", Text, nullable=False),
)

ended_sessions = Table(
    "ended_sessions",
    metadata,
    # SHA-256 of a cookie of the pages' login (services.registry.store.ended).
    Column("digest", NAME, primary_key=True),
    Column("expires_at", Float, nullable=False),
)

archived_streams = Table("archived_streams", metadata, Column("name", NAME, primary_key=True))

deleted = Table(
    "deleted",
    metadata,
    # What takes the name again goes on counting: a version's bytes and a schema version's meaning never change.
    Column("kind", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    # Of a model its newest version, of a stream its newest schema version.
    Column("newest_version", NUMBER, nullable=False),
    Column("round_sequence", NUMBER, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    # A common.registry.jobs.Job, and until when its holder has it.
    Column("job_id", NAME, primary_key=True),
    Column("kind", NAME, nullable=False),
    Column("model", NAME, nullable=False, index=True),
    Column("version", NUMBER, nullable=False),
    Column("options_json", Text, nullable=False),
    Column("asked_by", NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("state", NAME, nullable=False),
    Column("holder", NAME, nullable=False, default=""),
    Column("attempts", NUMBER, nullable=False, default=0),
    Column("held_until", Float, nullable=False, default=0.0),
    Column("told_json", Text, nullable=False, default="{}"),
    Column("ended_at", Float, nullable=False, default=0.0),
)

changes = Table(
    "changes",
    metadata,
    Column("revision", NUMBER, primary_key=True, autoincrement=True),
    Column("kind", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("version", NUMBER, nullable=False),
    Column("detail", NAME, nullable=False),
    Column("at", Float, nullable=False),
    # Revisions never come back, not even after the newest rows were dropped.
    sqlite_autoincrement=True,
)


def read_row(columns: Mapping[Any, Any], made: Callable[..., Value], **others: Any) -> Value:
    """A dataclass's value: fields are read from the columns of their names, a field `x` from the JSON of `x_json`.

    Args:
        columns: a row's `_mapping`, or more names beside it.
        others: fields that are read otherwise; those that no column has keep their defaults.
    """
    found = {}
    for name in {field.name for field in fields(cast(Any, made))} - others.keys():
        if name in columns:
            found[name] = columns[name]
        elif f"{name}_json" in columns:
            found[name] = json.loads(columns[f"{name}_json"])
    return made(**found, **others)
