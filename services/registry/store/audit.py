"""The audit log: each call that changes something, and each that was refused, as an entry at its end. Only `prune`
removes, from its beginning.

An entry is written in the transaction of its change: there is no change without an entry, and no entry without a
change. Frequent calls of trainers and replicas (leases, resume points, reports, files by their
digest) changes no model and has none. common/registry/audit.py says the form.
"""

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from common.access.principal import author_of, current
from common.errors import HeadraceError, Overloaded, Unavailable
from common.examples.values import EXACT_FLOATS
from common.registry.audit import EMPTY, PRUNED, Head, head_of, line_after
from services.registry.store.database import Database, Transaction
from services.registry.store.tables import audit

logger = logging.getLogger(__name__)
BY_REGISTRY = "registry"
"""`by` of decisions that the registry makes by itself."""
DONE, DENIED = "done", "denied"
_MAX_TEXT = 300
_PAGE = 1000
_DENIED_A_MINUTE = 120


@dataclass
class Call:
    """Attributes:
    about: model, stream, version, alias and the parameters, without secrets; long text is cut, empty text is left out.
    outcome: the result.
    only_changes: nothing is written where nothing was changed, or it was refused: a call that machines repeat.
    """

    action: str
    by: str
    about: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    only_changes: bool = False


class AuditLog:
    """Thread-safe: the database is."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._denied_at = deque[float](maxlen=_DENIED_A_MINUTE)
        self._unwritten = 0
        self._later = ThreadPoolExecutor(1, thread_name_prefix="audit")

    @contextmanager
    def change(self, call: Call) -> Iterator[Transaction]:
        """A writing transaction with the call's entry at its end."""
        with self._database.write() as transaction:
            yield transaction
            if transaction.revision or not call.only_changes:
                append(transaction, call, DONE)

    @contextmanager
    def refusals(self, call: Call) -> Iterator[None]:
        """Writes an entry where the request is refused; Unavailable and Overloaded are repeated."""
        try:
            yield
        except (Unavailable, Overloaded):
            raise
        except HeadraceError as error:
            if not call.only_changes and self._is_due(call, error):
                self._write_denied(call)
            raise

    def note_denied(self, call: Call, error: HeadraceError) -> None:
        """For a door that must not wait for the disk: written soon."""
        if self._is_due(call, error):
            try:
                self._later.submit(self._write_denied, call)
            except RuntimeError:  # The log is closed: the doors of a registry that ends may still refuse.
                logger.warning("a refusal came too late for the audit log", extra={"action": call.action})

    def close(self) -> None:
        self._later.shutdown()

    @contextmanager
    def call(self, action: str, *, by: str, **about: Any) -> Iterator[Transaction]:
        """Both `refusals` and `change`, of a call that is a transaction."""
        call = Call(action, by, about)
        with self.refusals(call), self.change(call) as transaction:
            yield transaction

    def lines(self, after: int, limit: int) -> Iterator[str]:
        """Entries behind that sequence number, the oldest first, each with its line end."""
        while limit > 0:
            with self._database.read() as connection:
                query = select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence)
                rows = connection.execute(query.limit(min(limit, _PAGE))).all()
            yield from (f"{row.line}\n" for row in rows)
            if not rows:
                return
            after, limit = rows[-1].sequence, limit - len(rows)

    def head(self) -> Head:
        with self._database.read() as connection:
            return _head(connection)

    def prune(self, keep: int) -> int:
        """Removes the oldest entries once there are a tenth more than are to be kept; returns how many. An entry says
        which, so that the rest still verifies."""
        with self._database.read() as connection:
            oldest = connection.execute(
                select(audit.c.sequence).order_by(audit.c.sequence).limit(1)
            ).scalar_one_or_none()
            newest = _head(connection).sequence
        if oldest is None or newest - oldest + 1 <= keep + keep // 10:
            return 0
        with self._database.write() as transaction:
            last = select(audit.c.line).where(audit.c.sequence == newest - keep)
            removed = head_of(transaction.connection.execute(last).scalar_one())
            gone = transaction.connection.execute(delete(audit).where(audit.c.sequence <= removed.sequence))
            append(
                transaction, Call(PRUNED, BY_REGISTRY, {"through": removed.sequence, "removed": removed.digest}), DONE
            )
        return int(gone.rowcount)

    def _is_due(self, call: Call, error: HeadraceError) -> bool:
        """At most _DENIED_A_MINUTE: repeated refusals must not fill the disk. The next entry counts those left out."""
        with self._lock:
            now = self._database.now
            if len(self._denied_at) == _DENIED_A_MINUTE and now - self._denied_at[0] < 60:
                self._unwritten += 1
                return False
            self._denied_at.append(now)
            unwritten, self._unwritten = self._unwritten, 0
        call.outcome = {"error": type(error).__name__, "message": error.message, "unwritten": unwritten or ""}
        return True

    def _write_denied(self, call: Call) -> None:
        try:
            with self._database.write() as transaction:
                append(transaction, call, DENIED)
        except HeadraceError:  # The caller gets the reason of the refusal, not this error.
            logger.exception("a refusal is not in the audit log", extra={"action": call.action})


def append(transaction: Transaction, call: Call, result: str) -> None:
    connection = transaction.connection
    head = _head(connection)
    at = datetime.fromtimestamp(transaction.now, UTC).isoformat(timespec="microseconds")
    principal = current()
    by = call.by if call.by == BY_REGISTRY else author_of(call.by)
    about = call.about | call.outcome
    if principal.is_identified and principal.name != by:
        about["principal"] = principal.name
    entry = {"at": at, "by": by, "action": call.action, "result": result, **_shown(about)}
    connection.execute(insert(audit).values(sequence=head.sequence + 1, line=line_after(head, _plain(entry))))


def _head(connection: Connection) -> Head:
    newest = connection.execute(select(audit.c.line).order_by(audit.c.sequence.desc()).limit(1)).scalar_one_or_none()
    return head_of(newest) if newest else EMPTY


def _shown(about: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if value not in ("", None, (), [], {})}


def _plain(value: Any) -> Any:
    """As the canonical form takes it: text that UTF-8 can write, whole numbers that every reader keeps."""
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < EXACT_FLOATS):
        return value
    text = str(value).encode(errors="replace").decode()
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… (SHA-256 of {len(text)} characters: {hashlib.sha256(text.encode()).hexdigest()})"
