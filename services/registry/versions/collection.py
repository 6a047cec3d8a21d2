"""Garbage collection: files that no version and no open round needs; and old versions beyond those to keep.

Files are set aside inside one writing transaction, so that nothing can begin to need one between the look and the
removal: versions and resume points are stored under the same lock. Their bytes are deleted after it, so that a slow
storage keeps nobody waiting; a run has a bound. A crash in the middle leaves files that the next run takes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, select, update

from common.errors import InvalidInput
from common.registry.catalog import ChangeKind, VersionStatus
from services.registry.rounds.plans import OPEN_STATES, plan_of
from services.registry.store.blobs import Blobs
from services.registry.store.database import Database, Transaction
from services.registry.store.tables import aliases, rounds, version_files, versions

_MOST_FILES, _SWEEP_SECONDS = 10_000, 60.0
"""Of one run; what is more, the next one takes."""


@dataclass(frozen=True)
class CollectionRules:
    """What may go.

    Attributes:
        keep_versions: newest versions kept of each model, besides those an alias or an open round needs; 0 keeps all.
        keep_every_seconds: of the older ones the first in each such stretch of time stays too; 0: none.
        grace_seconds: a file nobody refers to stays this long, since an upload comes before the version that names it.
    """

    keep_versions: int
    grace_seconds: float
    keep_every_seconds: float = 0.0


@dataclass(frozen=True)
class Collected:
    """What one run removed."""

    archived_versions: tuple[tuple[str, int], ...]
    removed_files: int
    removed_uploads: int
    freed_bytes: int


def collect(database: Database, blobs: Blobs, rules: CollectionRules) -> Collected:
    """Archives what is too old, then deletes what nothing refers to."""
    if min(rules.keep_versions, rules.grace_seconds, rules.keep_every_seconds) < 0:
        raise InvalidInput("keep_versions, grace_seconds and keep_every_seconds must not be negative")
    with database.write() as transaction:
        archived = tuple(_archive_old(transaction, rules))
    stored = blobs.digests()
    removed = freed = 0
    with database.write() as transaction:
        unused_since = transaction.now - rules.grace_seconds
        for digest in set(stored) - needed_digests(transaction.connection):
            size = blobs.remove(digest, unused_since=unused_since)
            removed, freed = removed + (size is not None), freed + (size or 0)
            if removed == _MOST_FILES:
                break
    uploads = blobs.remove_stale_uploads(unused_since=unused_since)
    blobs.sweep(_SWEEP_SECONDS)
    return Collected(archived, removed, uploads, freed)


def needed_digests(connection: Connection) -> set[str]:
    """Of every file of a version that is not archived, and of every open round's resume point."""
    kept = (
        select(version_files.c.digest)
        .join(
            versions,
            (versions.c.model == version_files.c.model) & (versions.c.version == version_files.c.version),
        )
        .where(versions.c.status != str(VersionStatus.ARCHIVED))
    )
    digests = set(connection.execute(kept).scalars())
    for row in connection.execute(select(rounds.c.resume_point_json).where(_is_open())):
        if row.resume_point_json:
            digests.update(file["digest"] for file in json.loads(row.resume_point_json)["files"])
    return digests


def _archive_old(transaction: Transaction, rules: CollectionRules) -> Iterator[tuple[str, int]]:
    if rules.keep_versions == 0:
        return
    connection = transaction.connection
    needed = {(row.model, row.version) for row in connection.execute(select(aliases))}
    for row in connection.execute(select(rounds).where(_is_open())):
        needed.add((row.model, plan_of(row).parent_version))
    needed |= set(_periodic(connection, rules.keep_every_seconds))
    kept = versions.c.status != str(VersionStatus.ARCHIVED)
    newest_first = select(versions.c.model, versions.c.version).where(kept).order_by(versions.c.version.desc())
    seen: dict[str, int] = {}
    for model, version in connection.execute(newest_first).all():
        seen[model] = seen.get(model, 0) + 1
        if seen[model] > rules.keep_versions and (model, version) not in needed:
            chosen = (versions.c.model == model) & (versions.c.version == version)
            connection.execute(update(versions).where(chosen).values(status=str(VersionStatus.ARCHIVED)))
            transaction.record(ChangeKind.VERSION, model, version=version)
            yield model, version


def _periodic(connection: Connection, every_seconds: float) -> Iterator[tuple[str, int]]:
    """The first version of each model, and then each that is so much younger than the one before it here."""
    if not every_seconds:
        return
    kept = versions.c.status != str(VersionStatus.ARCHIVED)
    oldest_first = select(versions.c.model, versions.c.version, versions.c.created_at).where(kept)
    before: dict[str, float] = {}
    for model, version, created_at in connection.execute(oldest_first.order_by(versions.c.version)).all():
        if model not in before or created_at - before[model] >= every_seconds:
            before[model] = created_at
            yield model, version


def _is_open() -> ColumnElement[bool]:
    return rounds.c.state.in_([str(state) for state in OPEN_STATES])
