"""People's decisions about a model or a stream as a whole: pause, pin, archive, delete; each on record."""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from common.counted import counted
from common.errors import Conflict
from common.registry.catalog import PRODUCTION, ChangeKind, Model, Stream
from services.registry.definitions import models, streams
from services.registry.rounds.plans import refuse_open_round
from services.registry.store.database import Transaction
from services.registry.store.dialects import upsert
from services.registry.store.history import remember
from services.registry.store.tables import (
    aliases,
    archived_streams,
    deleted,
    jobs,
    lineage,
    live_versions,
    rounds,
    signatures,
    thinned,
    version_files,
    versions,
)
from services.registry.store.tables import live as live_table
from services.registry.store.tables import models as models_table
from services.registry.store.tables import streams as streams_table
from services.registry.versions import live
from services.registry.versions.published import get_version


def pause(transaction: Transaction, name: str, *, by: str, reason: str) -> Model:
    """No round is planned until it is resumed; a running round goes on to its end."""
    models.get_model(transaction.connection, name)
    words = f"{by}: {reason}" if reason else by
    return _changed(transaction, name, "pause", by=by, reason=reason, paused=words)


def resume(transaction: Transaction, name: str, *, by: str, reason: str) -> Model:
    """Rounds are planned again, at once also after failures: they are forgiven. Raises Conflict, NotFound."""
    model = models.get_model(transaction.connection, name)
    if not model.paused and not model.consecutive_failures:
        raise Conflict(f"the training of {name} is not paused and does not wait after failures")
    models.change(transaction, name, **models.NO_FAILURES)
    return _changed(transaction, name, "resume", by=by, reason=reason, paused="")


def pin(transaction: Transaction, name: str, version: int, *, by: str, reason: str) -> Model:
    """Production stays where it is; versions that pass the gate are held, and rounds go on from them.

    Args:
        version: production's version as the caller has seen it; 0: any.

    Raises:
        Conflict: production names another version, or none. NotFound: there is no such version.
    """
    production = models.get_model(transaction.connection, name).aliases.get(PRODUCTION, 0)
    if not production:
        raise Conflict(f"production of {name} names no version that could be pinned")
    if version not in (0, production):
        get_version(transaction.connection, name, version)
        raise Conflict(f"production of {name} is version {production}, not {version}; promote {version} first")
    return _changed(transaction, name, "pin", by=by, reason=reason, version=production, pinned_version=production)


def unpin(transaction: Transaction, name: str, *, by: str, reason: str) -> Model:
    """The next version that passes the gate is promoted again, and a canary whose promotion the pin stopped is promoted
    now. Raises Conflict when nothing is pinned."""
    pinned = models.get_model(transaction.connection, name).pinned_version
    if not pinned:
        raise Conflict(f"production of {name} is not pinned")
    _changed(transaction, name, "unpin", by=by, reason=reason, version=pinned, pinned_version=0)
    live.promote_passed(transaction, name)
    return models.get_model(transaction.connection, name)


def archive_model(transaction: Transaction, name: str, *, by: str, reason: str) -> Model:
    """Neither trained nor served any more; its versions stay. Raises Conflict while a round of it is open."""
    model = models.get_model(transaction.connection, name)
    if model.archived:
        return model
    refuse_open_round(transaction.connection, name, "archived")
    return _changed(transaction, name, "archive", by=by, reason=reason, archived=True)


def restore_model(transaction: Transaction, name: str, *, by: str, reason: str) -> Model:
    """Undoes archiving. Raises Conflict when it is not archived, or its stream is."""
    model = models.get_model(transaction.connection, name)
    if not model.archived:
        raise Conflict(f"model {name} is not archived")
    if streams.is_archived(transaction.connection, model.stream):
        raise Conflict(f"model {name} learns from stream {model.stream}, which is archived; restore the stream first")
    return _changed(transaction, name, "restore", by=by, reason=reason, archived=False)


def delete_model(transaction: Transaction, name: str, *, users: Sequence[str], by: str, reason: str) -> None:
    """Removes an archived model with its rounds and versions; its history stays, and version numbers never come back.

    Raises as `check_model_deletable` does.
    """
    connection = transaction.connection
    model = check_model_deletable(connection, name, users=users)
    by_version = (version_files, signatures, lineage, thinned, live_table, live_versions, versions)
    for table in (*by_version, aliases, rounds, jobs):
        connection.execute(delete(table).where(table.c.model == name))
    connection.execute(delete(models_table).where(models_table.c.name == name))
    _keep_counting(connection, "model", name, model.newest_version, model.round_sequence)
    remember(transaction, "delete", by=by, reason=reason, model=name, detail=counted(model.newest_version, "version"))
    transaction.record(ChangeKind.MODEL, name)


def check_model_deletable(connection: Connection, name: str, *, users: Sequence[str]) -> Model:
    """Gives the model.

    Args:
        users: a sentence for each instance that serves it.

    Raises:
        Conflict: it is not archived, a round of it is open, or a replica serves it. NotFound.
    """
    model = models.get_model(connection, name)
    if not model.archived:
        raise Conflict(f"model {name} is in use: {_uses(model)}; archive it first")
    refuse_open_round(connection, name, "deleted")
    if users:
        raise Conflict(f"model {name} is in use: {'; '.join(users)}")
    return model


def archive_stream(transaction: Transaction, name: str, *, by: str, reason: str) -> Stream:
    """Takes no events and no models any more. Raises Conflict while a model learns from it."""
    stream = streams.get_stream(transaction.connection, name, 0)
    _refuse_learners(transaction.connection, name, "archived", but_archived=True)
    if not streams.is_archived(transaction.connection, name):
        transaction.connection.execute(insert(archived_streams).values(name=name))
        remember(transaction, "archive", by=by, reason=reason, stream=name)
        transaction.record(ChangeKind.STREAM, name)
    return streams.get_stream(transaction.connection, name, stream.schema_version)


def restore_stream(transaction: Transaction, name: str, *, by: str, reason: str) -> Stream:
    """Undoes archiving. Raises Conflict when it is not archived."""
    streams.get_stream(transaction.connection, name, 0)
    if not streams.is_archived(transaction.connection, name):
        raise Conflict(f"stream {name} is not archived")
    transaction.connection.execute(delete(archived_streams).where(archived_streams.c.name == name))
    remember(transaction, "restore", by=by, reason=reason, stream=name)
    transaction.record(ChangeKind.STREAM, name)
    return streams.get_stream(transaction.connection, name, 0)


def delete_stream(transaction: Transaction, name: str, *, by: str, reason: str) -> None:
    """Removes the stream's schemas; its events stay in the log. Raises as `check_stream_deletable` does."""
    connection = transaction.connection
    stream = check_stream_deletable(connection, name)
    _keep_counting(connection, "stream", name, stream.schema_version, 0)
    for table in (streams_table, archived_streams):
        connection.execute(delete(table).where(table.c.name == name))
    remember(transaction, "delete", by=by, reason=reason, stream=name, detail=f"schema version {stream.schema_version}")
    transaction.record(ChangeKind.STREAM, name)


def check_stream_deletable(connection: Connection, name: str) -> Stream:
    """Gives the stream. Raises Conflict while a model names it or it is not archived; NotFound."""
    stream = streams.get_stream(connection, name, 0)
    _refuse_learners(connection, name, "deleted", but_archived=False)
    if not streams.is_archived(connection, name):
        raise Conflict(f"stream {name} is in use: it takes events; archive it first")
    return stream


def _keep_counting(connection: Connection, kind: str, name: str, newest_version: int, round_sequence: int) -> None:
    numbers = {"newest_version": newest_version, "round_sequence": round_sequence}
    upsert(connection, deleted, ["kind", "name"], {"kind": kind, "name": name, **numbers}, numbers)


def _changed(
    transaction: Transaction,
    name: str,
    action: str,
    *,
    by: str,
    reason: str,
    version: int = 0,
    **values: int | float | str,
) -> Model:
    models.change(transaction, name, **values)
    remember(transaction, action, by=by, reason=reason, model=name, version=version)
    transaction.record(ChangeKind.MODEL, name)
    return models.get_model(transaction.connection, name)


def _uses(model: Model) -> str:
    aliases_shown = ", ".join(f"{alias} names version {version}" for alias, version in sorted(model.aliases.items()))
    return f"it learns from stream {model.stream}" + (f", {aliases_shown}" if aliases_shown else "")


def _refuse_learners(connection: Connection, stream: str, action: str, *, but_archived: bool) -> None:
    query = select(models_table.c.name, models_table.c.archived).where(models_table.c.stream == stream)
    learners = [row.name for row in connection.execute(query) if not (but_archived and row.archived)]
    if learners:
        todo = "archive" if but_archived else "delete"
        learn, them = ("learns", "it") if len(learners) == 1 else ("learn", "them")
        raise Conflict(
            f"stream {stream} cannot be {action}: {', '.join(sorted(learners))} {learn} from it; {todo} {them} first"
        )
