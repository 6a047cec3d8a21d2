"""The history of models and streams: changes with author, time and reason, by people and by the registry itself.

Moves of aliases have a separate table, since rolling back reads it; here they stand among everything else.
"""

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

from sqlalchemy import ColumnElement, Connection, Row, insert, select

from common.errors import InvalidInput
from common.registry.catalog import PRODUCTION, HistoryEntry
from services.registry.store.database import Transaction
from services.registry.store.tables import alias_history, history, read_row

_MAX_LISTED = 10_000
_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
"""Of Unicode's categories: control, format (which turns text around), half surrogate pairs."""
_MAX_TEXT = 2000
_BEFORE = re.compile(r"(\d{1,18})\.(\d{1,18})")


@dataclass(frozen=True)
class HistoryPage:
    """Entries, the newest first, each with its name; `older`: the beginning of the page before these, "" where
    there is none. It names rows, not a count, so it stays the same page also where entries come meanwhile."""

    entries: Sequence[tuple[str, HistoryEntry]]
    older: str


def check_author(by: str, reason: str) -> None:
    """Raises InvalidInput: no author, or characters that would not show as themselves in a terminal."""
    if not by.strip():
        raise InvalidInput("by must name the author of the change")
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
    connection: Connection,
    *,
    model: str = "",
    stream: str = "",
    by: str = "",
    action: str = "",
    limit: int = 100,
    before: str = "",
) -> HistoryPage:
    """An empty filter lets everything pass; `before` is the `older` of another page. Raises InvalidInput."""
    if not 0 < limit <= _MAX_LISTED:
        raise InvalidInput(f"limit must be 1 to {_MAX_LISTED}, got {limit}")
    ends = _ends(before)
    wanted = {history.c.model: model, history.c.stream: stream, history.c.changed_by: by, history.c.action: action}
    conditions = [column == value for column, value in wanted.items() if value]
    conditions += [history.c.id < ends["h"]] if ends["h"] else []
    query = select(history).where(*conditions).order_by(history.c.id.desc()).limit(limit + 1)
    found = [
        ("h", row.id, read_row(row._mapping, HistoryEntry, by=row.changed_by)) for row in connection.execute(query)
    ]
    moved = [] if stream else _moves(connection, model=model, by=by, action=action, limit=limit + 1, end=ends["a"])
    # Each table in the order of its ids, so that a page ends at one place in each, also where a clock was set back.
    merged = list(heapq.merge(found, moved, key=lambda row: row[2].at, reverse=True))
    shown = merged[:limit]
    ends |= {table: number for table, number, _ in shown}
    newest = {table: rows[0][1] + 1 for table, rows in (("h", found), ("a", moved)) if rows}
    older = ".".join(str(ends[table] or newest.get(table, 1)) for table in "ha") if len(merged) > limit else ""
    return HistoryPage([(f"{table}{number}", entry) for table, number, entry in shown], older)


def _ends(before: str) -> dict[str, int]:
    """The ids behind the page's last of the history (h) and of the moves of aliases (a); 0: from the newest on."""
    if not before:
        return {"h": 0, "a": 0}
    named = _BEFORE.fullmatch(before)
    if named is None:
        raise InvalidInput(f"before is {before[:40]!r}, expected another page's `older`, such as 12.3")
    return {"h": int(named[1]), "a": int(named[2])}


def _moves(
    connection: Connection, *, model: str, by: str, action: str, limit: int, end: int
) -> list[tuple[str, int, HistoryEntry]]:
    wanted = {alias_history.c.model: model, alias_history.c.changed_by: by}
    conditions: list[ColumnElement[bool]] = [column == value for column, value in wanted.items() if value]
    conditions += [alias_history.c.id < end] if end else []
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
    return [("a", row.id, _move_of(row)) for row in connection.execute(query)]


def _move_of(row: Row[tuple[object, ...]]) -> HistoryEntry:
    action = "alias" if row.alias != PRODUCTION else "rollback" if row.move == "rollback" else "promote"
    moved = f"{row.alias}: {row.from_version} -> {row.to_version}"
    return read_row(
        row._mapping, HistoryEntry, by=row.changed_by, action=action, stream="", version=row.to_version, detail=moved
    )
