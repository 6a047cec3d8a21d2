"""Garbage collection: old versions are thinned (retention.py), then files go that no version and no open round needs.

Files are set aside inside one writing transaction, so that nothing can begin to need one between the look and the
removal: versions and resume points are stored under the same lock. Their bytes are deleted after it, so that a slow
storage holds up no call; a run has a bound. A crash in the middle leaves files that the next run takes.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import ColumnElement, Connection, select

from common.errors import InvalidInput
from common.registry.catalog import OPEN_STATES
from services.registry.definitions import models
from services.registry.store.audit import BY_REGISTRY, AuditLog, Call
from services.registry.store.blobs import Blobs
from services.registry.store.database import Database
from services.registry.store.tables import rounds, version_files, versions
from services.registry.versions import retention

LogStarts = Callable[[str], Mapping[int, int] | None]
Served = Callable[[str], Collection[int]]
_MOST_FILES, _MOST_VERSIONS, _SWEEP_SECONDS = 10_000, 10_000, 60.0
"""Versions of each model in a run; the next run takes the rest."""


@dataclass(frozen=True)
class Collected:
    """The removals of a run."""

    archived_versions: tuple[tuple[str, int], ...]
    removed_files: int
    removed_uploads: int
    freed_bytes: int


def collect(
    audit: AuditLog,
    by: str,
    database: Database,
    blobs: Blobs,
    grace_seconds: float,
    *,
    log_starts: LogStarts,
    served: Served,
) -> Collected:
    """Thins versions as their models' definitions say, then deletes files that nothing refers to.

    Args:
        by: the author, for the audit log.
        grace_seconds: how long an unreferenced file stays: an upload comes before the version that names it.
        log_starts: {partition: offset} where the log of a model's stream begins; None: unreported, and the
            model is left as it is.
        served: the versions of a model that replicas have.
    """
    if grace_seconds < 0:
        raise InvalidInput("grace_seconds must not be negative")
    archived = tuple(_thin_all(audit, by, database, log_starts, served))
    stored = blobs.digests()
    removed = freed = 0
    call = Call("collect", by, only_changes=by == BY_REGISTRY)
    with audit.change(call) as transaction:
        unused_since = transaction.now - grace_seconds
        for digest in set(stored) - needed_digests(transaction.connection):
            size = blobs.remove(digest, unused_since=unused_since)
            removed, freed = removed + (size is not None), freed + (size or 0)
            if removed == _MOST_FILES:
                break
        call.outcome = {"removed_files": removed, "freed_bytes": freed}
    uploads = blobs.remove_stale_uploads(unused_since=unused_since)
    blobs.sweep(_SWEEP_SECONDS)
    return Collected(archived, removed, uploads, freed)


def _thin_all(
    audit: AuditLog, by: str, database: Database, log_starts: LogStarts, served: Served
) -> Iterator[tuple[str, int]]:
    with database.read() as connection:
        known = [model for model in models.list_models(connection) if not model.archived]
    for model in known:
        log_start = log_starts(model.name)
        if log_start is None:
            continue
        with database.read() as connection:
            rule = retention.retention_of(connection, model)
            found = list(islice(retention.find_due(connection, model, rule, database.now), _MOST_VERSIONS))
        for first in range(0, len(found), retention.MOST_OF_A_PASS):
            call = Call("thin", by, {"model": model.name}, only_changes=True)
            with audit.change(call) as transaction:
                chosen = found[first : first + retention.MOST_OF_A_PASS]
                numbers = retention.thin(
                    transaction, model.name, chosen, log_start=log_start, served=served(model.name)
                )
                call.outcome = {"versions": len(numbers), "first_version": min(numbers, default=0)}
            yield from ((model.name, number) for number in numbers)


def needed_digests(connection: Connection) -> set[str]:
    """Of every file of a version that is not archived, and of every open round's resume point."""
    kept = (
        select(version_files.c.digest)
        .join(versions, (versions.c.model == version_files.c.model) & (versions.c.version == version_files.c.version))
        .where(versions.c.status.in_(retention.KEPT))
    )
    digests = set(connection.execute(kept).scalars())
    for row in connection.execute(select(rounds.c.resume_point_json).where(_is_open())):
        if row.resume_point_json:
            digests.update(file["digest"] for file in json.loads(row.resume_point_json)["files"])
    return digests


def _is_open() -> ColumnElement[bool]:
    return rounds.c.state.in_([str(state) for state in OPEN_STATES])
