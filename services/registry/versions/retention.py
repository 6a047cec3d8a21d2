"""Retention: the files of a model's older versions go, as `retention` of its definition says; their records stay.

An hour or a day that has passed out of its time is thinned to its newest accepted version. Never thinned are versions
that an alias, a pin, the head of the line, an open round or job, a replica, a rollback or a warm start needs; pushed
versions, as nothing makes them again; and the version behind which the log's start lies: `headrace rebuild` trains
thinned versions again from the nearest kept version, and cannot begin before it.

A pass changes at most MOST_OF_A_PASS versions in one transaction; a crash leaves the passes that ended.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, delete, select, update

from common.counted import counted
from common.definition.model import DEFINITION_FILE
from common.definition.retention import DAY_SECONDS, HOUR_SECONDS, Retention, parse_retention
from common.errors import Conflict
from common.registry.catalog import (
    OPEN_STATES,
    THINNED_TO,
    ChangeKind,
    JsonMap,
    Model,
    ThinnedVersions,
    VersionStatus,
)
from common.registry.plan_notes import HEAD_BEFORE, PUSHED
from common.registry.wire import json_text
from common.strict_yaml import read_yaml
from services.registry.definitions import models
from services.registry.rounds.jobs import OPEN_JOBS
from services.registry.rounds.line import ancestor_at_most, first_of_line
from services.registry.rounds.plans import end_of, plan_of
from services.registry.store.database import Transaction
from services.registry.store.dialects import greatest, least, upsert
from services.registry.store.history import remember
from services.registry.store.tables import (
    definition_files,
    jobs,
    lineage,
    read_row,
    rounds,
    signatures,
    thinned,
    version_files,
    versions,
)
from services.registry.versions import aliases

MOST_OF_A_PASS = 500
KEPT = (str(VersionStatus.ACCEPTED), str(VersionStatus.REJECTED))
_YOUNG = "young"
_BY = "registry"


@dataclass(frozen=True, order=True)
class Due:
    """A version that the rule would thin, unless something needs it."""

    version: int
    rule: str


@dataclass(frozen=True)
class Row:
    """A version whose files are kept."""

    version: int
    accepted: bool
    created_at: float


def due(rows: Iterable[Row], retention: Retention, now: float) -> Iterator[Due]:
    """The versions to thin of these, which come oldest first."""
    for (rule, _), together in groupby(rows, lambda row: _period(row.created_at, retention, now)):
        if rule == _YOUNG:
            continue
        period = list(together)
        stays = max(period, key=lambda row: (row.accepted, row.version)) if rule != "none" else None
        yield from (Due(row.version, rule) for row in period if row is not stays)


def _period(created_at: float, retention: Retention, now: float) -> tuple[str, int]:
    """The rule for a version of that time, and the hour or day, from 1970 on, of which a version stays."""
    hour, day = int(created_at // HOUR_SECONDS), int(created_at // DAY_SECONDS)
    hour_age, day_age = now - (hour + 1) * HOUR_SECONDS, now - (day + 1) * DAY_SECONDS
    if hour_age < retention.all_seconds:
        return _YOUNG, 0
    if day_age >= retention.daily_seconds:
        return "none", 0
    return ("daily", day) if day_age >= retention.hourly_seconds else ("hourly", hour)


def retention_of(connection: Connection, model: Model) -> Retention:
    """The retention in the model's newest definition."""
    sections = _sections(connection, model.definition_digest)
    return parse_retention(sections.get("retention", {}))


def find_due(connection: Connection, model: Model, retention: Retention, now: float) -> Iterator[Due]:
    """The versions of the model to thin, the oldest first."""
    newest = _kept_rows(model.name).order_by(versions.c.version.desc()).limit(retention.keep_newest)
    beyond = min((row.version for row in connection.execute(newest)), default=0)
    older = _kept_rows(model.name).where(versions.c.version < beyond).order_by(versions.c.version)
    rows = connection.execute(older)
    accepted = str(VersionStatus.ACCEPTED)
    return due((Row(row.version, row.status == accepted, row.created_at) for row in rows), retention, now)


def thin(
    transaction: Transaction, name: str, chosen: Sequence[Due], *, log_start: Mapping[int, int], served: Collection[int]
) -> list[int]:
    """Thins the chosen versions that nothing needs, in one pass.

    Args:
        log_start: {partition: offset} of the first event that the log still holds.
        served: versions that a replica has or loads.
    """
    connection = transaction.connection
    needed = {*served, *_needed(connection, models.get_model(connection, name))}
    gone: dict[str, list[int]] = {}
    for version in chosen:
        if version.version not in needed and _thinned(transaction, name, version, log_start):
            gone.setdefault(version.rule, []).append(version.version)
    for rule, numbers in gone.items():
        _note(transaction, name, rule, numbers)
    return sorted(number for numbers in gone.values() for number in numbers)


def list_thinned(connection: Connection, model: str) -> list[ThinnedVersions]:
    query = select(thinned).where(thinned.c.model == model).order_by(thinned.c.rule)
    return [read_row(row._mapping, ThinnedVersions) for row in connection.execute(query)]


def thinned_counts(connection: Connection) -> dict[tuple[str, str], int]:
    """{(model, rule): versions}."""
    query = select(thinned.c.model, thinned.c.rule, thinned.c.versions)
    return {(row.model, row.rule): row.versions for row in connection.execute(query)}


def _thinned(transaction: Transaction, name: str, due_version: Due, log_start: Mapping[int, int]) -> bool:
    """Whether the version has lost its files now."""
    connection = transaction.connection
    chosen = (versions.c.model == name) & (versions.c.version == due_version.version)
    columns = (versions.c.draft_json, versions.c.end_position_json, rounds.c.plan_json)
    query = select(*columns).join(rounds, rounds.c.round_id == versions.c.round_id)
    row = connection.execute(query.where(chosen, versions.c.status.in_(KEPT))).one_or_none()
    if row is None or json.loads(row.plan_json)["trigger"] == PUSHED:
        return False
    if _begins_the_log(connection, name, due_version.version, row.end_position_json, log_start):
        return False
    draft = json.loads(row.draft_json)
    draft["evaluation"] = {key: value for key, value in draft.get("evaluation", {}).items() if key != "curves"}
    connection.execute(
        update(versions).where(chosen).values(
            status=str(VersionStatus.ARCHIVED), thinned_at=transaction.now, thinned_by=due_version.rule,
            contract_json="{}", draft_json=json_text(draft),
        )
    )  # fmt: skip
    for table in (version_files, signatures):
        connection.execute(delete(table).where(table.c.model == name, table.c.version == due_version.version))
    return True


def _begins_the_log(
    connection: Connection, name: str, version: int, end_json: str, log_start: Mapping[int, int]
) -> bool:
    """Whether other versions can be trained again from this version on, and from no kept version before it."""
    if not any(log_start.values()) or _is_gone(json.loads(end_json), log_start):
        return False
    continues = (lineage.c.model == name) & (lineage.c.version > version) & (lineage.c.parent_version == version)
    if connection.execute(select(lineage.c.version).where(continues).limit(1)).first() is None:
        return False
    base = _kept_ancestor(connection, name, version)
    if base:
        return _is_gone(end_of(connection, name, base), log_start)
    first = first_of_line(connection, name, version)
    plan = select(rounds.c.plan_json).join(versions, versions.c.round_id == rounds.c.round_id)
    row = connection.execute(plan.where(versions.c.model == name, versions.c.version == first)).one()
    return _is_gone({str(piece.partition): piece.from_offset for piece in plan_of(row).ranges}, log_start)


def _is_gone(position: Mapping[str, int], log_start: Mapping[int, int]) -> bool:
    """Whether the log no longer holds every event from the position on."""
    return any(offset < log_start.get(int(partition), 0) for partition, offset in position.items())


def _kept_ancestor(connection: Connection, name: str, version: int) -> int:
    """The nearest that has its files; 0 where none has."""
    at = version
    older = _kept_rows(name).where(versions.c.version < version).order_by(versions.c.version.desc())
    for row in connection.execute(older):
        at = ancestor_at_most(connection, name, at, row.version)
        if at in (0, row.version):
            return at
    return 0


def _kept_rows(name: str) -> Any:
    query = select(versions.c.version, versions.c.status, versions.c.created_at)
    return query.where(versions.c.model == name, versions.c.status.in_(KEPT))


def _needed(connection: Connection, model: Model) -> Iterator[int]:
    yield from (*model.aliases.values(), model.pinned_version, model.head_version)
    with suppress(Conflict):  # a rollback leads nowhere
        yield aliases.back_to(connection, model)
    states = [str(state) for state in OPEN_STATES]
    for row in connection.execute(select(rounds).where(rounds.c.model == model.name, rounds.c.state.in_(states))):
        plan = plan_of(row)
        yield from (plan.parent_version, int(plan.configuration.get(HEAD_BEFORE, 0)))
    wanted_versions = select(jobs.c.version).where(jobs.c.model == model.name, jobs.c.state.in_(OPEN_JOBS))
    for version in connection.execute(wanted_versions).scalars():
        yield from (version, _kept_ancestor(connection, model.name, version))
    digests = connection.execute(select(definition_files.c.digest).distinct()).scalars()
    for source in [_sections(connection, digest).get("warm_start") for digest in digests]:
        named, _, number = str(source.get("from", "") if isinstance(source, Mapping) else "").partition("@")
        if named == model.name and number.isdigit():
            yield int(number)


def _sections(connection: Connection, digest: str) -> JsonMap:
    """Of a definition's model.yaml; {} where an older registry stored a file that this one cannot read."""
    query = select(definition_files.c.content).where(
        definition_files.c.digest == digest, definition_files.c.path == DEFINITION_FILE
    )
    content = connection.execute(query).scalar_one_or_none()
    return _read(bytes(content)) if content else {}


@cache
def _read(content: bytes) -> JsonMap:
    found = read_yaml(content, DEFINITION_FILE)
    return found if isinstance(found, Mapping) else {}


def _note(transaction: Transaction, name: str, rule: str, numbers: Sequence[int]) -> None:
    """In the sums, the history and the change log: an entry of each for the pass."""
    first, last, count = min(numbers), max(numbers), len(numbers)
    row = {
        "model": name, "rule": rule, "versions": count, "first_version": first, "last_version": last,
        "at": transaction.now,
    }  # fmt: skip
    sums = {
        "versions": thinned.c.versions + count,
        "first_version": least(thinned.c.first_version, first),
        "last_version": greatest(thinned.c.last_version, last),
        "at": transaction.now,
    }
    upsert(transaction.connection, thinned, ["model", "rule"], row, sums)
    detail = f"{counted(count, 'version')}, {first} to {last}"
    reason = f"retention: {THINNED_TO[rule]} stays"
    remember(transaction, "thin", by=_BY, reason=reason, model=name, version=last, detail=detail)
    transaction.record(ChangeKind.VERSION, name, version=last)
