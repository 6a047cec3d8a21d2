"""Who did what to a model or a stream, when and why: what people decided, and what the registry decided by itself.

Moves of aliases have a table of their own, since rolling back reads it; here they stand among everything else.
"""

from unicodedata import category

from sqlalchemy import ColumnElement, Connection, Row, insert, select

from common.errors import InvalidInput
from common.registry.catalog import PRODUCTION, HistoryEntry
from services.registry.store.database import Transaction
from services.registry.store.tables import alias_history, history

_MAX_LISTED = 10_000
_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
"""Of Unicode's categories: control, format (which turns text around), half surrogate pairs."""
_MAX_TEXT = 2000


def check_author(by: str, reason: str) -> None:
    """Raises InvalidInput when nobody is named, and for characters that would not show as themselves in a terminal."""
    if not by.strip():
        raise InvalidInput("by must name who makes the change")
    if len(by) > _MAX_TEXT or len(reason) > _MAX_TEXT:
        raise InvalidInput(f"by and reason may have {_MAX_TEXT} characters each")
    hidden = {char for char in by + reason if category(char) in _HIDDEN and char not in "\n\t"}
    if hidden:
        named = ", ".join(f"U+{ord(char):04X}" for char in sorted(hidden)[:5])
        raise InvalidInput(f"by and reason are shown in terminals, which would obey {named} in them")


def remember(
    transaction: Transaction,
    action: str,
    *,
    by: str,
    reason: str,
    model: str = "",
    stream: str = "",
    version: int = 0,
    detail: str = "",
) -> None:
    """Appends an entry."""
    transaction.connection.execute(
        insert(history).values(
            at=transaction.now,
            changed_by=by,
            action=action,
            model=model,
            stream=stream,
            version=version,
            detail=detail,
            reason=reason,
        )
    )


def list_history(
    connection: Connection, *, model: str = "", stream: str = "", by: str = "", action: str = "", limit: int = 100
) -> list[HistoryEntry]:
    """The newest first; an empty filter lets everything pass. Raises InvalidInput."""
    if not 0 < limit <= _MAX_LISTED:
        raise InvalidInput(f"limit must be 1 to {_MAX_LISTED}, got {limit}")
    wanted = {history.c.model: model, history.c.stream: stream, history.c.changed_by: by, history.c.action: action}
    conditions = [column == value for column, value in wanted.items() if value]
    query = select(history).where(*conditions).order_by(history.c.id.desc()).limit(limit)
    found = [_entry_of(row) for row in connection.execute(query)]
    if not stream:
        found += _moves(connection, model=model, by=by, action=action, limit=limit)
    return sorted(found, key=lambda entry: entry.at, reverse=True)[:limit]


def _moves(connection: Connection, *, model: str, by: str, action: str, limit: int) -> list[HistoryEntry]:
    wanted = {alias_history.c.model: model, alias_history.c.changed_by: by}
    conditions: list[ColumnElement[bool]] = [column == value for column, value in wanted.items() if value]
    is_production = alias_history.c.alias == PRODUCTION
    is_rollback = alias_history.c.move == "rollback"
    if action:
        chosen = {
            "rollback": is_production & is_rollback,
            "promote": is_production & ~is_rollback,
            "alias": ~is_production,
        }.get(action)
        if chosen is None:
            return []
        conditions.append(chosen)
    query = select(alias_history).where(*conditions).order_by(alias_history.c.id.desc()).limit(limit)
    return [_move_of(row) for row in connection.execute(query)]


def _move_of(row: Row[tuple[object, ...]]) -> HistoryEntry:
    action = "alias" if row.alias != PRODUCTION else "rollback" if row.move == "rollback" else "promote"
    return HistoryEntry(
        at=row.at,
        by=row.changed_by,
        action=action,
        model=row.model,
        stream="",
        version=row.to_version,
        detail=f"{row.alias}: {row.from_version} -> {row.to_version}",
        reason=row.reason,
    )


def _entry_of(row: Row[tuple[object, ...]]) -> HistoryEntry:
    return HistoryEntry(
        at=row.at,
        by=row.changed_by,
        action=row.action,
        model=row.model,
        stream=row.stream,
        version=row.version,
        detail=row.detail,
        reason=row.reason,
    )
