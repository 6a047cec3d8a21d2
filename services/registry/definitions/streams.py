"""Streams and the versions of their schemas: only compatible changes, so that every old event stays readable."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, insert, select

from common.access.principal import AUTHOR, INGEST, may_know
from common.errors import Conflict, InvalidInput, NotFound
from common.feature_keys import check_name
from common.registry.catalog import ChangeKind, Stream
from common.schema import Schema
from common.schema_changes import check_compatible
from common.suggestions import did_you_mean
from services.registry.definitions.shares import creator
from services.registry.store.database import Transaction
from services.registry.store.tables import archived_streams, deleted, models, read_row, streams

_MAX_SCHEMA_BYTES = 1024 * 1024


def register_stream(transaction: Transaction, name: str, schema_json: str) -> Stream:
    """A new stream, a new version of its schema, or, when the newest schema is this one already, nothing new.

    A stream with the name of a deleted stream has another number, so that it has none of that stream's events.

    Raises:
        InvalidInput: the name or the schema is not valid.
        Conflict: the schema is not compatible with the newest; the reasons are named.
    """
    check_name("stream", name)
    if len(schema_json.encode()) > _MAX_SCHEMA_BYTES:
        raise InvalidInput(f"the schema of {name} is larger than {_MAX_SCHEMA_BYTES} bytes")
    schema = Schema.from_json(schema_json)
    if is_archived(transaction.connection, name):
        raise Conflict(f"stream {name} is archived; restore it first")
    newest = _find(transaction.connection, name, 0)
    if newest is not None:
        if newest.schema_json == schema.to_json():
            return newest
        check_compatible(Schema.from_json(newest.schema_json), schema)
    before = newest.schema_version if newest else _versions_before(transaction.connection, name)
    log_number = newest.log_number if newest else before + 1
    stream = Stream(name, before + 1, schema.to_json(), transaction.now, log_number=log_number)
    transaction.connection.execute(
        insert(streams).values(
            name=name,
            schema_version=stream.schema_version,
            schema_json=stream.schema_json,
            created_at=stream.created_at,
            log_number=stream.log_number,
            created_by=creator(),
        )
    )
    transaction.record(ChangeKind.STREAM, name)
    return stream


def check_source(stream: Stream, hosts: Sequence[str]) -> None:
    """Raises InvalidInput: the stream's source is at another host than these patterns permit; none: any."""
    source = Schema.from_json(stream.schema_json).source
    for host in source.hosts if source and hosts else ():
        if not any(fnmatchcase(host.lower(), pattern) for pattern in hosts):
            raise InvalidInput(
                f"the source of stream {stream.name} names the host {host}, and REGISTRY_SOURCE_HOSTS permits "
                f"{', '.join(hosts)}"
            )


def get_stream(connection: Connection, name: str, schema_version: int = 0) -> Stream:
    """Schema version 0 means the newest. Raises NotFound."""
    stream = _find(connection, name, schema_version)
    if stream is not None:
        return stream
    if schema_version and _find(connection, name, 0) is not None:
        raise NotFound(f"stream {name} has no schema version {schema_version}")
    raise not_registered(connection, "stream", name)


def list_streams(connection: Connection) -> list[Stream]:
    """Each with its newest schema, in order of name."""
    rows = connection.execute(_query().order_by(streams.c.name, streams.c.schema_version))
    return list({row.name: _stream_of(row) for row in rows}.values())


def not_registered(connection: Connection, kind: Literal["model", "stream"], name: str) -> NotFound:
    """With the name that was probably meant, or that the name is of the other kind, as far as the current principal may
    know of them."""
    names = {
        "model": set(filter(may_know(AUTHOR), connection.scalars(select(models.c.name)))),
        "stream": set(filter(may_know(INGEST), connection.scalars(select(streams.c.name)))),
    }
    other = "stream" if kind == "model" else "model"
    is_other = f"; there is a {other} of that name" if name in names[other] else ""
    return NotFound(f"{kind} {name} is not registered{is_other or did_you_mean([name], names[kind])}")


def is_archived(connection: Connection, name: str) -> bool:
    query = select(archived_streams.c.name).where(archived_streams.c.name == name)
    return connection.execute(query).one_or_none() is not None


def _versions_before(connection: Connection, name: str) -> int:
    """Schema versions of a stream of that name which was deleted."""
    query = select(deleted.c.newest_version).where(deleted.c.kind == "stream", deleted.c.name == name)
    return connection.execute(query).scalar_one_or_none() or 0


def _find(connection: Connection, name: str, schema_version: int) -> Stream | None:
    query = _query().where(streams.c.name == name).order_by(streams.c.schema_version.desc()).limit(1)
    if schema_version:
        query = query.where(streams.c.schema_version == schema_version)
    row = connection.execute(query).one_or_none()
    return _stream_of(row) if row is not None else None


def _query() -> Select[Any]:
    is_archived = archived_streams.c.name.is_not(None).label("archived")
    return select(streams, is_archived).outerjoin(archived_streams, archived_streams.c.name == streams.c.name)


def _stream_of(row: Row[tuple[object, ...]]) -> Stream:
    return read_row(row._mapping, Stream, archived=bool(row.archived))
