"""A catalog in PostgreSQL, and which of several registries writes it.

One registry leads: it holds an advisory lock on a separate connection, and has counted up `leadership.epoch`. Every
writing transaction begins by locking that row and looks whether the epoch is still its own, so that a registry that was
superseded while it stood still writes nothing, and writers follow each other as with SQLite. PostgreSQL gives the lock
back when the leader's connection ends; TCP's keepalives bound how long a lost machine holds it.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Column, Connection, Engine, MetaData, Table, create_engine, func, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError

from common.errors import InvalidInput, Unavailable
from common.peers import password_in
from services.registry.store.dialects import upsert
from services.registry.store.tables import FORMAT, NAME, NUMBER

logger = logging.getLogger(__name__)
_LOCK = 0x4865616472616365
"""Of pg_try_advisory_lock: "Headrace"."""
_LOOK_SECONDS = 0.5
_CONNECT_SECONDS = 5
_STATEMENT_MILLISECONDS = 30_000
_LOST_SECONDS = 4
"""Without an answer for this long, a machine is taken as lost, by either side."""
_SCHEMES = ("postgresql", "postgres")

_metadata = MetaData()
"""The registries' own tables, no part of the catalog: no backup has them."""
_leadership = Table(
    "leadership",
    _metadata,
    Column("id", NUMBER, primary_key=True),
    Column("epoch", NUMBER, nullable=False),
    Column("format", NUMBER, nullable=False),
    Column("holder", NAME, nullable=False),
    # Of the files at REGISTRY_BLOBS: the catalog's, whichever registry leads.
    Column("owner", NAME, nullable=False),
    # Of the pages' forms and sessions, which outlive a leader.
    Column("secret", NAME, nullable=False),
)
_webhook_places = Table(
    "webhook_places", _metadata, Column("hook", NAME, primary_key=True), Column("revision", NUMBER, nullable=False)
)


def url_of(address: str, password_file: Path | None) -> URL:
    """`postgresql://user@host:port/database?sslmode=...`, as libpq takes it.

    Raises:
        InvalidInput: it is none, or it holds a password. Unavailable: the file cannot be read.
    """
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise InvalidInput(f"REGISTRY_DATABASE is no URL: {error}") from error
    if url.drivername not in _SCHEMES or not url.database:
        raise InvalidInput("REGISTRY_DATABASE must be postgresql://user@host:port/database")
    if url.password:
        raise InvalidInput("REGISTRY_DATABASE holds a password: REGISTRY_DATABASE_PASSWORD_FILE names a file with it")
    if password_file is not None:
        url = url.set(password=password_in(password_file, "PostgreSQL"))
    return url.set(drivername="postgresql+psycopg")


def open_engine(url: URL) -> Engine:
    waits = {"keepalives_idle": _LOST_SECONDS // 2, "keepalives_interval": 1, "keepalives_count": _LOST_SECONDS // 2}
    return create_engine(
        url,
        pool_size=8,
        max_overflow=24,
        pool_timeout=_CONNECT_SECONDS,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "tcp_user_timeout": _LOST_SECONDS * 1000,
            "application_name": "headrace-registry",
            "options": f"-c statement_timeout={_STATEMENT_MILLISECONDS} -c lock_timeout={_STATEMENT_MILLISECONDS} "
            + " ".join(f"-c tcp_{name}={value}" for name, value in waits.items()),
            **waits,
        },
    )


class Leadership:
    """This registry writes the catalog until `lost` is set. Close it after the catalog."""

    def __init__(self, engine: Engine, connection: Connection, row: Any) -> None:
        self.engine, self.owner = engine, str(row.owner)
        self.secret = bytes.fromhex(row.secret)
        self.lost = threading.Event()
        self._connection, self._epoch = connection, int(row.epoch)
        self._end = threading.Event()
        self._watcher: threading.Thread | None = None

    def check(self, connection: Connection) -> None:
        """At the beginning of a writing transaction: no other may follow it before it ends. Raises Unavailable."""
        row = connection.execute(select(_leadership).with_for_update()).one()
        if row.epoch != self._epoch or self.lost.is_set():
            self.lost.set()
            raise Unavailable(f"another registry leads ({row.holder})")

    def place_of(self, hook: str) -> int | None:
        """As webhooks/sender.py's Places. Raises Unavailable."""
        with _unavailable_errors(), self.engine.connect() as connection:
            found = select(_webhook_places.c.revision).where(_webhook_places.c.hook == hook)
            return connection.execute(found).scalar_one_or_none()

    def keep_place(self, hook: str, revision: int) -> None:
        with _unavailable_errors(), self.engine.begin() as connection:
            self.check(connection)
            place = {"revision": revision}
            upsert(connection, _webhook_places, ["hook"], {"hook": hook, **place}, place)

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Looks after the lock's connection, in a thread, until closed."""
        self._watcher = threading.Thread(target=self._look_after, args=(on_loss,), name="leadership", daemon=True)
        self._watcher.start()

    def _look_after(self, on_loss: Callable[[], None]) -> None:
        while not self._end.wait(_LOOK_SECONDS) and not self.lost.is_set():
            try:
                self._connection.execute(select(1))
            except DBAPIError as error:
                logger.error("the connection that holds the catalog's lock is lost", extra={"reason": str(error.orig)})
                self.lost.set()
        if self.lost.is_set():
            on_loss()

    def close(self) -> None:
        self._end.set()
        if self._watcher:
            self._watcher.join(timeout=_CONNECT_SECONDS)
        self._connection.invalidate()
        self.engine.dispose()


def lead(
    engine: Engine, new_owner: str, *, is_stopped: Callable[[float], bool], report: Callable[[str], None]
) -> Leadership:
    """Waits until this registry leads.

    Args:
        new_owner: of the files, where the catalog is new.
        is_stopped: waits this number of seconds; true where the wait is to end.
        report: takes the reason for which it does not lead yet.

    Raises:
        Unavailable: it was stopped before.
    """
    while True:
        try:
            if found := _tried(engine, new_owner):
                return found
            report("standby: another registry leads")
        except DBAPIError as error:
            report(f"PostgreSQL cannot be reached: {str(error.orig).strip()}")
        if is_stopped(_LOOK_SECONDS):
            raise Unavailable("stopped before this registry led")


def _tried(engine: Engine, new_owner: str) -> Leadership | None:
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        if not connection.execute(select(func.pg_try_advisory_lock(_LOCK))).scalar_one():
            connection.close()
            return None
        row = _counted_up(engine, new_owner)
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return Leadership(engine, connection, row)


def _counted_up(engine: Engine, new_owner: str) -> Any:
    """The row of this leadership."""
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    _metadata.create_all(engine)
    with engine.begin() as connection:
        first = {"id": 1, "epoch": 1, "format": FORMAT, "holder": holder, "owner": new_owner,
                 "secret": secrets.token_hex(32)}  # fmt: skip
        next_epoch = {"epoch": _leadership.c.epoch + 1, "holder": holder}
        upsert(connection, _leadership, ["id"], first, next_epoch)
        return connection.execute(select(_leadership)).one()


@contextmanager
def _unavailable_errors() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(f"PostgreSQL cannot be reached: {str(error.orig).strip()}") from error


def format_of(connection: Connection) -> int:
    return int(connection.execute(select(_leadership.c.format)).scalar_one())


def reset_sequences(connection: Connection, metadata: MetaData) -> None:
    """After rows were copied with their numbers: the next rows go on behind them."""
    for table in metadata.tables.values():
        if (column := table.autoincrement_column) is not None and column.autoincrement is True:
            newest = func.coalesce(select(func.max(column)).scalar_subquery(), 0)
            connection.execute(
                select(func.setval(func.pg_get_serial_sequence(table.name, column.name), newest + 1, False))
            )
