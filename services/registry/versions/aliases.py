"""Aliases: which version `production` (or any other label) names, and the full record of its moves.

Rolling back undoes the last move of production that has not been undone: moves form a stack, a rollback takes the top
off and production goes to what is below. So the next rollback walks further back, a version that was rolled back is
not returned to by another rollback, and a move made by hand (also one to an older version) is undone like any other.
Versions whose files are gone, or that have learned events forgotten since, are passed over.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import Connection, delete, insert, select

from common.errors import Conflict, NotFound
from common.feature_keys import check_name
from common.registry.catalog import (
    CANARY,
    MOST_LISTED,
    PREDECESSOR,
    PRODUCTION,
    AliasChange,
    ChangeKind,
    Model,
    VersionStatus,
)
from services.registry.definitions import models
from services.registry.rounds.rolled_back import check_events, follow_canary, follow_production, note
from services.registry.store.database import Transaction
from services.registry.store.dialects import upsert
from services.registry.store.tables import alias_history, aliases, read_row, versions
from services.registry.versions.stages import follow_stages

SET = "set"
ROLLBACK = "rollback"
JUDGE = "judge"
"""`by` of the move back from a version that answers worse than its predecessor."""


def set_alias(transaction: Transaction, model: str, alias: str, version: int, *, by: str, reason: str) -> Model:
    """Points the alias at a kept version; version 0 removes it. Setting what is set already leaves no trace.

    A rejected version may be named by a person: moved to production it counts as accepted from then on, its verdict
    stays as it was.

    Raises:
        NotFound: there is no such model, version, or alias to remove.
        Conflict: the version's files are gone, it has learned events forgotten since, or production would be removed.
        InvalidInput: the name is not valid.
    """
    check_name("alias", alias)
    if alias == PREDECESSOR:
        raise Conflict(
            f"alias {PREDECESSOR} follows production where the definition's rollout has a judge; it cannot be set"
        )
    before = models.get_model(transaction.connection, model)
    current = before.aliases.get(alias, 0)
    if version == 0:
        return _remove(transaction, model, alias, current, by=by, reason=reason)
    status = _status(transaction.connection, model, version)
    if status == VersionStatus.ARCHIVED:
        raise Conflict(f"version {version} of {model} is archived, its files are gone; {alias} {_stays(current)}")
    if current == version:
        return before
    if not _is_kept(transaction.connection, model, version):
        raise Conflict(
            f"version {version} of {model} has learned events that were forgotten since; {alias} {_stays(current)}"
        )
    if alias == PRODUCTION:
        refuse_pinned(before)
    if alias == PRODUCTION and status == VersionStatus.REJECTED:
        set_status(transaction, model, version, VersionStatus.ACCEPTED)
    move(transaction, model, alias, current, version, how=SET, by=by, reason=reason)
    if alias == PRODUCTION:
        follow_production(transaction, before, version)
        note(transaction, before, events="")
    if alias == CANARY:
        follow_canary(transaction, before, version)
    return models.get_model(transaction.connection, model)


def rollback(transaction: Transaction, model: str, *, by: str, reason: str, events: str = "") -> Model:
    """Moves production back to the version it named before (see the module's text).

    Args:
        events: LEARN or LEAVE_OUT: the fate of events that only rolled-back versions have learned; "": as
            gate.on_reject of the definition has it.

    Raises:
        Conflict: there is no version to go back to.
        NotFound, InvalidInput.
    """
    check_events(events)
    before = models.get_model(transaction.connection, model)
    refuse_pinned(before)
    _roll_back(transaction, before, by=by, reason=reason, events=events)
    return models.get_model(transaction.connection, model)


def _roll_back(transaction: Transaction, before: Model, *, by: str, reason: str, events: str = "") -> int:
    """Where production went. Raises Conflict when there is nowhere to go."""
    model, current = before.name, before.aliases.get(PRODUCTION, 0)
    target = back_to(transaction.connection, before)
    move(transaction, model, PRODUCTION, current, target, how=ROLLBACK, by=by, reason=reason)
    follow_production(transaction, before, target)
    note(transaction, before, events=events)
    return target


def back_to(connection: Connection, before: Model) -> int:
    """Where a rollback would lead. Raises Conflict when there is nowhere to go."""
    model, current = before.name, before.aliases.get(PRODUCTION, 0)
    moves = connection.execute(
        select(alias_history.c.move, alias_history.c.to_version)
        .where(alias_history.c.model == model, alias_history.c.alias == PRODUCTION)
        .order_by(alias_history.c.id.desc())
    )
    target = rollback_target(
        ((row.move, row.to_version) for row in moves), lambda version: _is_kept(connection, model, version)
    )
    if target is None:
        raise Conflict(f"there is no version of {model} to roll back to; production {_stays(current)}")
    return target


def leave(transaction: Transaction, before: Model, *, by: str, reason: str) -> int:
    """Production goes back by itself from a version that no replica can load, or that the judge found worse than its
    predecessor; the version counts as rejected.

    Returns where production went. Raises Conflict when there is nowhere to go, or production is pinned.
    """
    refuse_pinned(before)
    target = _roll_back(transaction, before, by=by, reason=reason)
    set_status(transaction, before.name, before.aliases[PRODUCTION], VersionStatus.REJECTED)
    return target


def moved_at(connection: Connection, model: str) -> float:
    """When production was moved last, epoch seconds; 0 when it never was."""
    query = select(alias_history.c.at).where(alias_history.c.model == model, alias_history.c.alias == PRODUCTION)
    return float(connection.execute(query.order_by(alias_history.c.id.desc()).limit(1)).scalar_one_or_none() or 0.0)


def refuse_pinned(model: Model) -> None:
    """Raises Conflict when production is pinned: a pin holds for people, too."""
    if model.pinned_version:
        raise Conflict(f"production of {model.name} is pinned to version {model.pinned_version}; unpin it first")


def _stays(current: int) -> str:
    return f"stays at {current}" if current else "still names no version"


def rollback_target(moves: Iterable[tuple[str, int]], is_kept: Callable[[int], bool]) -> int | None:
    """Where a rollback leads after these (move, to_version) of production, newest first; None when nowhere.

    Reads no further than to the answer.
    """
    current = 0
    for version in _stack(moves):
        current = current or version
        if version != current and is_kept(version):
            return version
    return None


def _stack(moves: Iterable[tuple[str, int]]) -> Iterator[int]:
    """What lies on the stack after the moves, the top first: a rollback took off the versions above its own."""
    rolled_back_to: list[int] = []
    for how, version in moves:
        if how == ROLLBACK:
            rolled_back_to.append(version)
            continue
        while rolled_back_to and rolled_back_to[-1] == version:
            rolled_back_to.pop()
        if not rolled_back_to:
            yield version


def move(
    transaction: Transaction, model: str, alias: str, current: int, version: int, *, how: str, by: str, reason: str
) -> None:
    """Points the alias at the version, with the entry in its history; the caller has checked that it may."""
    row = {"model": model, "alias": alias, "version": version}
    upsert(transaction.connection, aliases, ["model", "alias"], row, {"version": version})
    _remember(transaction, model, alias, current, version, how=how, by=by, reason=reason)
    if alias == PRODUCTION:
        follow_predecessor(transaction, model)
    if alias in (PRODUCTION, CANARY):
        follow_stages(transaction, model)


def follow_predecessor(transaction: Transaction, model: str) -> None:
    """Points PREDECESSOR at where production would go back, where the definition's rollout has a judge; else removes
    it."""
    connection = transaction.connection
    known = models.get_model(connection, model)
    current, wanted = known.aliases.get(PREDECESSOR, 0), 0
    if models.rollout_of(connection, known.definition_digest):
        with contextlib.suppress(Conflict):
            wanted = back_to(connection, known)
    if wanted == current:
        return
    chosen = (aliases.c.model == model) & (aliases.c.alias == PREDECESSOR)
    connection.execute(delete(aliases).where(chosen))
    if wanted:
        connection.execute(insert(aliases).values(model=model, alias=PREDECESSOR, version=wanted))
    transaction.record(ChangeKind.ALIAS, model, version=wanted, detail=PREDECESSOR)


def list_history(connection: Connection, model: str, *, limit: int = MOST_LISTED) -> list[AliasChange]:
    """The newest `limit` moves, oldest first. Raises NotFound."""
    models.get_model(connection, model)
    query = select(alias_history).where(alias_history.c.model == model).order_by(alias_history.c.id.desc())
    rows = reversed(connection.execute(query.limit(limit)).all())
    return [read_row(row._mapping, AliasChange, by=row.changed_by) for row in rows]


def _remove(transaction: Transaction, model: str, alias: str, current: int, *, by: str, reason: str) -> Model:
    if alias == PRODUCTION:
        raise Conflict(f"production of {model} cannot be removed, only moved")
    if current == 0:
        raise NotFound(f"model {model} has no alias {alias}")
    before = models.get_model(transaction.connection, model)
    if alias == CANARY:
        follow_canary(transaction, before, 0)
    take_off(transaction, model, alias, current, by=by, reason=reason)
    return models.get_model(transaction.connection, model)


def take_off(transaction: Transaction, model: str, alias: str, current: int, *, by: str, reason: str) -> None:
    """Removes the alias from the version, with the entry in its history; where the next round starts stays."""
    transaction.connection.execute(delete(aliases).where(aliases.c.model == model, aliases.c.alias == alias))
    _remember(transaction, model, alias, current, 0, how=SET, by=by, reason=reason)
    if alias == CANARY:
        follow_stages(transaction, model)


def _remember(
    transaction: Transaction, model: str, alias: str, current: int, version: int, *, how: str, by: str, reason: str
) -> None:
    transaction.connection.execute(
        insert(alias_history).values(
            model=model,
            alias=alias,
            from_version=current,
            to_version=version,
            move=how,
            changed_by=by,
            reason=reason,
            at=transaction.now,
        )
    )
    transaction.record(ChangeKind.ALIAS, model, version=version, detail=alias)


def _is_kept(connection: Connection, model: str, version: int) -> bool:
    """Whether it has its files, and has learned nothing that was forgotten since. Also of a version that there is not:
    moves of a deleted model of that name stay on record."""
    query = select(versions.c.status, versions.c.forgotten_at)
    row = connection.execute(query.where(versions.c.model == model, versions.c.version == version)).one_or_none()
    return row is not None and row.status != VersionStatus.ARCHIVED and not row.forgotten_at


def _status(connection: Connection, model: str, version: int) -> str:
    query = select(versions.c.status).where(versions.c.model == model, versions.c.version == version)
    status = connection.execute(query).scalar_one_or_none()
    if status is None:
        raise NotFound(f"model {model} has no version {version}")
    return str(status)


def set_status(transaction: Transaction, model: str, version: int, status: VersionStatus) -> None:
    chosen = (versions.c.model == model) & (versions.c.version == version)
    transaction.connection.execute(versions.update().where(chosen).values(status=str(status)))
    transaction.record(ChangeKind.VERSION, model, version=version)
