"""SQLite in WAL mode, or PostgreSQL, behind one writer: each state change is one durable transaction with its entry in
the change log.

A crash at any line leaves the state before or after a transaction, never between; no watcher hears of a change before
it is on disk.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, delete, event, insert, inspect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateColumn

from common.errors import DataLoss, Unavailable
from common.registry.catalog import ChangeKind
from services.registry.store import tables
from services.registry.store.postgres import Leadership, format_of

_BUSY_TIMEOUT_SECONDS = 5.0
_WRITER_TIMEOUT_SECONDS = 10.0
_COMPACT_EVERY = 256
KEEP_CHANGES = 100_000
"""Newest entries of the change log that are kept for watchers."""
_READS, _WRITES = "REPEATABLE READ", "READ COMMITTED"
"""PostgreSQL's levels. Writers follow each other (Leadership.check), so each sees the commits before."""
Clock = Callable[[], float]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass
class Transaction:
    """A writing transaction. Every function that changes the catalog takes it.

    Attributes:
        now: epoch seconds, read once, so that all its rows carry the same time.
        revision: of the newest change recorded; 0 while there is none.
    """

    connection: Connection
    now: float
    keep_changes: int
    revision: int = field(default=0)

    def record(self, kind: ChangeKind, name: str, *, version: int = 0, detail: str = "") -> None:
        """Appends to the change log; watchers see it when the transaction is committed."""
        row = insert(tables.changes).values(kind=str(kind), name=name, version=version, detail=detail, at=self.now)
        self.revision = self.connection.execute(row.returning(tables.changes.c.revision)).scalar_one()
        if self.revision % _COMPACT_EVERY == 0:
            oldest = self.revision - self.keep_changes
            self.connection.execute(delete(tables.changes).where(tables.changes.c.revision <= oldest))


class Database:
    """Thread-safe. Reads see a consistent state and never wait for the writer."""

    def __init__(self, engine: Engine, *, keep_changes: int, leadership: Leadership | None, clock: Clock) -> None:
        self._keep_changes = keep_changes
        self._clock = clock
        self._writer = threading.Lock()
        self._listeners: list[Callable[[int], None]] = []
        self._engine, self._leadership = engine, leadership
        with self.write() as transaction:
            _check_format(transaction.connection)
            _complete(transaction.connection)

    @classmethod
    def in_file(cls, path: Path, *, keep_changes: int = KEEP_CHANGES, clock: Clock = time.time) -> "Database":
        """Opens or creates the file of SQLite.

        Raises:
            DataLoss: the file is not a catalog, or of another format.
            Unavailable: it cannot be opened.
        """
        engine = create_engine(f"sqlite:///{path}", pool_size=8, max_overflow=24, pool_timeout=_BUSY_TIMEOUT_SECONDS)
        _use_wal(engine)
        return cls(engine, keep_changes=keep_changes, leadership=None, clock=clock)

    @classmethod
    def in_postgres(
        cls, leadership: Leadership, *, keep_changes: int = KEEP_CHANGES, clock: Clock = time.time
    ) -> "Database":
        """Raises DataLoss: the catalog is of another format. Unavailable: PostgreSQL cannot be reached."""
        return cls(leadership.engine, keep_changes=keep_changes, leadership=leadership, clock=clock)

    @property
    def now(self) -> float:
        """Epoch seconds, as transactions carry them."""
        return self._clock()

    def on_commit(self, listener: Callable[[int], None]) -> None:
        """Calls `listener` with the newest revision after each commit that recorded a change."""
        self._listeners.append(listener)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _storage_errors(), self._connected(_READS) as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Commits when the block ends, rolls back when it raises. Raises Unavailable: another writer took too long, the
        disk refused (full, read-only), or another registry leads."""
        if not self._writer.acquire(timeout=_WRITER_TIMEOUT_SECONDS):
            raise Unavailable(f"the catalog was busy for {_WRITER_TIMEOUT_SECONDS:.0f} s")
        try:
            with _storage_errors(), self._connected(_WRITES) as connection, connection.begin():
                if self._leadership:
                    self._leadership.check(connection)
                transaction = Transaction(connection, self._clock(), self._keep_changes)
                yield transaction
        finally:
            self._writer.release()
        if transaction.revision:
            for listener in self._listeners:
                listener(transaction.revision)

    def close(self) -> None:
        self._engine.dispose()

    def _connected(self, how: str) -> Connection:
        connection = self._engine.connect()
        if self._leadership:
            return connection.execution_options(isolation_level=how)
        return connection.execution_options(writes=how == _WRITES)


def _use_wal(engine: Engine) -> None:
    """Durable at commit (synchronous=FULL), and transactions that begin explicitly."""

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: object) -> None:
        connection.isolation_level = None  # else the driver begins transactions by itself, and too late
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"busy_timeout={int(_BUSY_TIMEOUT_SECONDS * 1000)}",
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _check_format(connection: Connection) -> None:
    is_file = connection.dialect.name == "sqlite"
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one() if is_file else format_of(connection)
    if found not in (0, tables.FORMAT):
        raise DataLoss(f"the catalog is of format {found}, this registry reads format {tables.FORMAT}")
    if is_file:
        connection.exec_driver_sql(f"PRAGMA user_version={tables.FORMAT}")


def _complete(connection: Connection) -> None:
    """Makes the tables that are missing, and gives those of an older catalog the columns and indexes that they lack.

    The format stays: a registry of before reads and writes such a catalog too, and fills columns that it does not know
    with the same defaults.
    """
    existing = inspect(connection)
    there = set(existing.get_table_names())
    for table in tables.metadata.sorted_tables:
        if table.name not in there:
            table.create(connection, checkfirst=False)
            continue
        known = {column["name"] for column in existing.get_columns(table.name)}
        for column in (column for column in table.columns if column.name not in known):
            words = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {words}")
        indexes = {index["name"] for index in existing.get_indexes(table.name)}
        for index in (index for index in table.indexes if index.name not in indexes):
            index.create(connection)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except PoolTimeoutError as error:
        raise Unavailable("the catalog has too many readers at once") from error
    except OperationalError as error:
        raise Unavailable(f"the catalog cannot be read or written: {error.orig}") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable(f"the catalog's connection has ended: {error.orig}") from error
        raise DataLoss(f"the catalog is damaged or was used wrongly: {error.orig}") from error


class HasDatabase(Protocol):
    _database: Database


def reading(
    question: Callable[Concatenate[Connection, Given], Answer],
) -> Callable[Concatenate[HasDatabase, Given], Answer]:
    """The question as a method of a class, in a transaction that reads."""

    def method(holder: HasDatabase, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        with holder._database.read() as connection:
            return question(connection, *given, **named)

    method.__doc__ = question.__doc__
    return method


def writing(
    change: Callable[Concatenate[Transaction, Given], Answer],
) -> Callable[Concatenate[HasDatabase, Given], Answer]:
    """The change as a method of a class, in a transaction: what machines repeat, which the audit log leaves out."""

    def method(holder: HasDatabase, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        with holder._database.write() as transaction:
            return change(transaction, *given, **named)

    method.__doc__ = change.__doc__
    return method
