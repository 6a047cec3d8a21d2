"""Who trains a round: one holder at a time, fenced by a token that grows with every lease of the round.

A token is the number of the lease, which grows, above 44 random bits, which cannot be guessed: a trainer without the
lease can neither end the round nor publish in its name.

A running round goes back to its holder at once, which a trainer needs that was killed and started again. As everybody
may read the holder's name, it has to show the secret of its first lease; only the secret's SHA-256 is stored.

A renewal only shows that the holder lives: it is stored, but it is no entry of the change log.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, select, update

from common.errors import Conflict, InvalidInput
from common.process.retry import Backoff
from common.registry.catalog import OPEN_STATES, FileEntry, JsonMap, Lease, Round, RoundState
from common.registry.wire import json_text
from services.registry.rounds.plans import (
    RoundRow,
    change_round,
    end_failed,
    get_round,
    resume_point_json,
    resume_point_of,
    round_of,
    row_of,
)
from services.registry.store.database import Transaction
from services.registry.store.documents import check_documents
from services.registry.store.history import remember
from services.registry.store.tables import rounds

_MAX_TTL_SECONDS = 3600.0
_MAX_TEXT = 10_000
_MAX_JSON = 1024 * 1024
_HOLDER_SECRET_CHARACTERS = range(16, 257)
_SECRET_BITS = 44
"""Of a token's 63: the other 19 count the leases of one round."""


@dataclass(frozen=True)
class LeaseRules:
    """max_lost_leases: a round that was lost this often (its holder died or fell silent) fails at the next."""

    max_lost_leases: int
    backoff: Backoff


@dataclass(frozen=True)
class Holder:
    """The trainer that requests a round.

    Attributes:
        name: shown with the round.
        secret: known to this holder only, so never shown; "" for a holder that takes no round back.
    """

    name: str
    secret: str = field(default="", repr=False)


def lease_round(
    transaction: Transaction, *, holder: Holder, ttl_seconds: float, models: Sequence[str], rules: LeaseRules
) -> Lease | None:
    """The holder's own running round (the process before it is gone), else the oldest planned or expired round.

    None when there is nothing to do. Raises InvalidInput.
    """
    secret_sha256 = _checked(holder)
    _check_ttl(ttl_seconds)
    for row in _candidates(transaction, holder.name, secret_sha256, models):
        lost = row.lost_leases + (row.state == RoundState.RUNNING)
        if lost > rules.max_lost_leases:
            reason = f"given up after {lost} lost leases, the last one held by {row.lease_holder}"
            end_failed(transaction, row, reason, rules.backoff)
            continue
        expires_at = transaction.now + ttl_seconds
        token = (lease_number(row.token) + 1) << _SECRET_BITS | secrets.randbits(_SECRET_BITS)
        change_round(
            transaction,
            row,
            state=str(RoundState.RUNNING),
            lease_holder=holder.name,
            holder_secret_sha256=secret_sha256,
            lease_expires_at=expires_at,
            token=token,
            attempts=row.attempts + 1,
            lost_leases=lost,
        )
        leased = get_round(transaction.connection, row.round_id)
        return Lease(leased, token, expires_at, resume_point_of(row))
    return None


def lease_number(token: int) -> int:
    """How many leases the round has had, this lease included; no secret."""
    return token >> _SECRET_BITS


def _checked(holder: Holder) -> str:
    """The SHA-256 of the holder's secret, "" where it shows none. Raises InvalidInput."""
    if not holder.name or len(holder.name) > 256:
        raise InvalidInput(f"the holder must be a name of 1 to 256 characters, got {holder.name[:50]!r}")
    if not holder.secret:
        return ""
    if len(holder.secret) not in _HOLDER_SECRET_CHARACTERS:
        raise InvalidInput(f"the holder's secret must have 16 to 256 characters, got {len(holder.secret)}")
    return hashlib.sha256(holder.secret.encode()).hexdigest()


def _candidates(transaction: Transaction, holder: str, secret_sha256: str, models: Sequence[str]) -> list[RoundRow]:
    running = rounds.c.state == str(RoundState.RUNNING)
    shown = (rounds.c.holder_secret_sha256 == secret_sha256) & (rounds.c.holder_secret_sha256 != "")
    own = running & (rounds.c.lease_holder == holder) & shown
    expired = running & (rounds.c.lease_expires_at <= transaction.now)
    planned = rounds.c.state == str(RoundState.PLANNED)
    query = (
        select(rounds)
        .where(own | expired | planned, rounds.c.stopped_by == "")
        .order_by(own.desc(), rounds.c.planned_at, rounds.c.round_id)
        .limit(100)
    )
    if models:
        query = query.where(rounds.c.model.in_(models))
    return list(transaction.connection.execute(query))


def renew_lease(transaction: Transaction, round_id: str, token: int, *, ttl_seconds: float, progress: JsonMap) -> Lease:
    """Holds the round for another ttl_seconds from now, also when it has run out and no other holder has taken it.
    Raises Conflict: the lease has ended or another has the round; InvalidInput, NotFound."""
    _check_ttl(ttl_seconds)
    row = held_row(transaction.connection, round_id, token)
    expires_at = transaction.now + ttl_seconds
    check_documents(progress=progress)
    progress_json = _bounded_json("progress", progress)
    transaction.connection.execute(
        update(rounds)
        .where(rounds.c.round_id == round_id)
        .values(lease_expires_at=expires_at, progress_json=progress_json)
    )
    return Lease(get_round(transaction.connection, round_id), token, expires_at, resume_point_of(row))


def release_round(transaction: Transaction, round_id: str, token: int, *, reason: str) -> Round:
    """Gives the round back: it may be leased again at once. A repetition by the same holder changes nothing."""
    row = row_of(transaction.connection, round_id)
    if row.state == RoundState.PLANNED and row.token == token:
        return round_of(row)
    row = held_row(transaction.connection, round_id, token)
    change_round(
        transaction,
        row,
        state=str(RoundState.PLANNED),
        reason=reason[:_MAX_TEXT],
        lease_holder="",
        holder_secret_sha256="",
        lease_expires_at=0.0,
    )
    return get_round(transaction.connection, round_id)


def fail_round(
    transaction: Transaction, *, round_id: str, token: int, reason: str, failure: JsonMap, rules: LeaseRules
) -> Round:
    """Ends the round for good. A repetition by the same holder changes nothing.

    Args:
        failure: {"stage", "place", "events", "advice", "log"}, as far as known.
    """
    check_documents(failure=failure)
    _bounded_json("the failure", failure)
    if not reason:
        raise InvalidInput(f"round {round_id} cannot fail without a reason")
    row = row_of(transaction.connection, round_id)
    if row.state == RoundState.FAILED and row.token == token:
        return round_of(row)
    row = held_row(transaction.connection, round_id, token)
    end_failed(transaction, row, reason[:_MAX_TEXT], rules.backoff, failure=failure)
    return get_round(transaction.connection, round_id)


def fail_round_by_hand(transaction: Transaction, *, round_id: str, by: str, reason: str, rules: LeaseRules) -> Round:
    """A person ends the round of any holder: the holder is refused from then on, and ends what it runs. Raises
    Conflict: the round has ended already; InvalidInput, NotFound."""
    row = row_of(transaction.connection, round_id)
    if row.state not in OPEN_STATES:
        raise Conflict(f"round {round_id} is {row.state} already")
    words = f"failed by {by}" + (f": {reason}" if reason else "")
    advice = f"ask {by}; `headrace train {row.model}` tries the same events again"
    end_failed(transaction, row, words, rules.backoff, failure={"advice": advice})
    remember(transaction, "fail_round", by=by, reason=reason, model=row.model, detail=round_id)
    return get_round(transaction.connection, round_id)


def stop_round(transaction: Transaction, *, round_id: str, by: str, reason: str) -> Round:
    """Its holder hears of it by the change and by its next renewal. A repetition changes nothing. Raises Conflict: the
    round has ended; InvalidInput, NotFound."""
    row = row_of(transaction.connection, round_id)
    if row.state not in OPEN_STATES:
        raise Conflict(f"round {round_id} is {row.state} already")
    if not row.stopped_by:
        change_round(transaction, row, stopped_by=by)
        remember(transaction, "stop_round", by=by, reason=reason, model=row.model, detail=round_id)
    return get_round(transaction.connection, round_id)


def resume_round(transaction: Transaction, *, round_id: str, by: str, reason: str) -> Round:
    """Raises Conflict: the round is not stopped; InvalidInput, NotFound."""
    row = row_of(transaction.connection, round_id)
    if row.state not in OPEN_STATES or not row.stopped_by:
        raise Conflict(f"round {round_id} is {row.state} and not stopped")
    change_round(transaction, row, stopped_by="")
    remember(transaction, "resume_round", by=by, reason=reason, model=row.model, detail=round_id)
    return get_round(transaction.connection, round_id)


def put_resume_point(
    transaction: Transaction, *, round_id: str, token: int, state: JsonMap, files: Sequence[FileEntry]
) -> Round:
    """Replaces the round's resume point; the caller has made sure that the files are there."""
    row = held_row(transaction.connection, round_id, token)
    _bounded_json("the resume point's state", state)
    change_round(transaction, row, resume_point_json=resume_point_json(state, files, transaction.now))
    return get_round(transaction.connection, round_id)


def held_row(connection: Connection, round_id: str, token: int) -> RoundRow:
    """The round, if the token is that of its running lease. Raises Conflict: it is not: the lease has ended, or another
    has the round; NotFound."""
    row = row_of(connection, round_id)
    if row.state != RoundState.RUNNING:
        raise Conflict(f"round {round_id} is {row.state}; no lease of it holds")
    if row.token != token:
        held, shown = lease_number(row.token), lease_number(token)
        fault = f"lease {shown} is stale" if 0 < shown < held else "the token shown is not that of its lease"
        raise Conflict(f"round {round_id} is held by {row.lease_holder} under lease {held}; {fault}")
    return row


def held(connection: Connection, round_id: str, token: int) -> Lease:
    """The running lease, with the newest resume point. Raises as held_row does."""
    row = held_row(connection, round_id, token)
    return Lease(round_of(row), token, row.lease_expires_at, resume_point_of(row))


def is_held(connection: Connection, lease: Lease, now: float) -> bool:
    """Whether it is the round's running lease and has not run out."""
    row = row_of(connection, lease.round.round_id)
    return row.state == RoundState.RUNNING and row.token == lease.token and bool(row.lease_expires_at > now)


def _check_ttl(ttl_seconds: float) -> None:
    if not 0 < ttl_seconds <= _MAX_TTL_SECONDS:
        raise InvalidInput(f"ttl_seconds must be above 0 and at most {_MAX_TTL_SECONDS:.0f}, got {ttl_seconds}")


def _bounded_json(name: str, value: JsonMap) -> str:
    text = json_text(value)
    if len(text) > _MAX_JSON:
        raise InvalidInput(f"{name} is larger than {_MAX_JSON} characters")
    return text
