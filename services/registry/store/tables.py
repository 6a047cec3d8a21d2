"""The catalog's tables. What is asked for or changed is a column; what never changes is JSON text beside it."""

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

FORMAT = 1
"""Stored with the data; a registry refuses to open another format."""

metadata = MetaData()

streams = Table(
    "streams",
    metadata,
    Column("name", String, primary_key=True),
    Column("schema_version", Integer, primary_key=True),
    Column("schema_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    # common.registry.catalog.Stream.log_number.
    Column("log_number", Integer, nullable=False, server_default="1"),
)

definition_files = Table(
    "definition_files",
    metadata,
    Column("digest", String, primary_key=True),
    Column("path", String, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("name", String, primary_key=True),
    Column("stream", String, nullable=False),
    Column("definition_digest", String, nullable=False),
    Column("registered_by", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("newest_version", Integer, nullable=False),
    Column("round_sequence", Integer, nullable=False),
    Column("consecutive_failures", Integer, nullable=False),
    Column("retry_at", Float, nullable=False),
    Column("last_failure", Text, nullable=False),
    # What stands below came later: each has a default, so that opening an older catalog can add it (database.py).
    Column("failure_json", Text, nullable=False, server_default="{}"),
    Column("paused", Text, nullable=False, server_default=""),
    Column("pinned_version", Integer, nullable=False, server_default="0"),
    Column("archived", Boolean, nullable=False, server_default="0"),
    # The parent of the next round; 0: production.
    Column("head_version", Integer, nullable=False, server_default="0"),
    # common.registry.catalog.Model.rolled_back.
    Column("rolled_back_json", Text, nullable=False, server_default="{}"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("round_id", String, primary_key=True),
    Column("model", String, ForeignKey("models.name"), nullable=False),
    Column("sequence", Integer, nullable=False),
    # The whole common.registry.catalog.RoundPlan, canonical: equal plans are equal text.
    Column("plan_json", Text, nullable=False),
    Column("planned_at", Float, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("lease_holder", String, nullable=False),
    Column("lease_expires_at", Float, nullable=False),
    # The fencing token of the newest lease (services.registry.rounds.leases), 63 bits; 0 before the first.
    Column("token", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    # Leases that ended without a word: expired and taken over, or taken up again by a restarted holder.
    Column("lost_leases", Integer, nullable=False),
    Column("progress_json", Text, nullable=False),
    Column("version", Integer, nullable=False),
    # A common.registry.catalog.ResumePoint, or "" when the round starts from its beginning.
    Column("resume_point_json", Text, nullable=False),
    Column("failure_json", Text, nullable=False, server_default="{}"),
    # What the holder must show to get its running round back before the lease has run out; "": nobody gets it.
    Column("holder_secret_sha256", String, nullable=False, server_default=""),
    UniqueConstraint("model", "sequence"),
    Index("rounds_by_state", "state", "planned_at"),
    Index("rounds_by_model_and_state", "model", "state"),
    Index("rounds_by_time", "planned_at", "round_id"),
)

versions = Table(
    "versions",
    metadata,
    Column("model", String, ForeignKey("models.name"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("status", String, nullable=False),
    Column("round_id", String, ForeignKey("rounds.round_id"), nullable=False, unique=True),
    # What the trainer handed in, canonical, without the files; and what the registry made of it.
    Column("draft_json", Text, nullable=False),
    Column("verdict_json", Text, nullable=False),
    Column("end_position_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    # What its SavedModel promises (services.registry.versions.contract); {} for versions of before there was one.
    Column("contract_json", Text, nullable=False, server_default="{}"),
    # common.registry.catalog.Version.thinned_at and thinned_by.
    Column("thinned_at", Float, nullable=False, server_default="0"),
    Column("thinned_by", String, nullable=False, server_default=""),
    # common.registry.catalog.Version.signed_by.
    Column("signed_by", String, nullable=False, server_default=""),
    # What counts, thins and collects reads these alone, and none of the JSON.
    Index("versions_by_status", "status", "model", "version", "created_at"),
    Index("versions_by_time", "created_at", "model"),
)

lineage = Table(
    "lineage",
    metadata,
    # One row a version; services.registry.rounds.line says what each column is for.
    Column("model", String, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("parent_version", Integer, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("jump_version", Integer, nullable=False),
    Column("accounted", Integer, nullable=False),
    Column("leaves_out", Boolean, nullable=False),
    Column("totals_json", Text, nullable=False),
    Index("lineage_by_left_out", "model", "leaves_out", "version"),
)

thinned = Table(
    "thinned",
    metadata,
    # Of each model and rule, what has been thinned in all; services.registry.versions.retention.
    Column("model", String, primary_key=True),
    Column("rule", String, primary_key=True),
    Column("versions", Integer, nullable=False),
    Column("first_version", Integer, nullable=False),
    Column("last_version", Integer, nullable=False),
    Column("at", Float, nullable=False),
)

version_files = Table(
    "version_files",
    metadata,
    Column("model", String, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("path", String, primary_key=True),
    Column("size_bytes", Integer, nullable=False),
    Column("digest", String, nullable=False, index=True),
)

signatures = Table(
    "signatures",
    metadata,
    # A version's DSSE envelope, apart from what lists of versions read; gone with its files.
    Column("model", String, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("envelope", Text, nullable=False),
)

live = Table(
    "live",
    metadata,
    # services.registry.versions.live: where the trainers' reading of labels stands.
    Column("model", String, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("state_json", Text, nullable=False),
    Column("counts_json", Text, nullable=False),
    Column("updated_at", Float, nullable=False),
)

live_versions = Table(
    "live_versions",
    metadata,
    # What labelled predictions say of a version, and what the judge made of it.
    Column("model", String, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("tracks_json", Text, nullable=False, server_default="[]"),
    Column("judge_json", Text, nullable=False, server_default="{}"),
    Column("updated_at", Float, nullable=False),
)

aliases = Table(
    "aliases",
    metadata,
    Column("model", String, ForeignKey("models.name"), primary_key=True),
    Column("alias", String, primary_key=True),
    Column("version", Integer, nullable=False),
)

alias_history = Table(
    "alias_history",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("model", String, nullable=False, index=True),
    Column("alias", String, nullable=False),
    Column("from_version", Integer, nullable=False),
    Column("to_version", Integer, nullable=False),
    # "set" or "rollback": a rollback undoes moves, so that the next one walks further back.
    Column("move", String, nullable=False),
    Column("changed_by", String, nullable=False),
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
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("changed_by", String, nullable=False),
    Column("action", String, nullable=False),
    Column("model", String, nullable=False, index=True),
    Column("stream", String, nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("detail", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index("history_by_author", "changed_by"),
    Index("history_by_action", "action"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    # The entry as it is exported (common.registry.audit).
    Column("line", Text, nullable=False),
)

archived_streams = Table(
    "archived_streams",
    metadata,
    Column("name", String, primary_key=True),
)

deleted = Table(
    "deleted",
    metadata,
    # What takes the name again goes on counting: a version's bytes and a schema version's meaning never change.
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    # Of a model its newest version, of a stream its newest schema version.
    Column("newest_version", Integer, nullable=False),
    Column("round_sequence", Integer, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    # A common.registry.jobs.Job, and until when its holder has it.
    Column("job_id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("model", String, nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("options_json", Text, nullable=False),
    Column("asked_by", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("state", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("held_until", Float, nullable=False),
    Column("told_json", Text, nullable=False),
    Column("ended_at", Float, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("detail", String, nullable=False),
    Column("at", Float, nullable=False),
    # Revisions never come back, not even after the newest rows were dropped.
    sqlite_autoincrement=True,
)
