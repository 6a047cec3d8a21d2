"""Rounds: immutable plans, one successor at a time, and how each ends. Their holders are in leases.py."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, Row, insert, select, tuple_, update

from common.errors import Conflict, InvalidInput, NotFound
from common.process.retry import Backoff
from common.registry.catalog import (
    OPEN_STATES,
    ChangeKind,
    FileEntry,
    JsonMap,
    Model,
    ResumePoint,
    Round,
    RoundPlan,
    RoundState,
    ranges_as_json,
    ranges_from_json,
)
from common.registry.plan_notes import FROM_SCRATCH
from common.registry.wire import json_text
from services.registry.definitions import models, streams
from services.registry.rounds.ranges import check_contiguous, check_forgotten
from services.registry.store.database import Transaction
from services.registry.store.dialects import likely
from services.registry.store.tables import read_row, rounds, versions

RoundRow = Row[tuple[object, ...]]
_MAX_LISTED = 1000
_MAX_SEED = 2**64


def plan_round(transaction: Transaction, plan: RoundPlan) -> Round:
    """Stores the model's next round. The same plan again gives the same round.

    Raises:
        Conflict: another round took this place, one is still open, the parent is not production, the
            definition is not the newest, or the ranges do not follow the parent's.
        InvalidInput: the plan cannot be right for any state.
        NotFound: the model or the schema version is not registered.
    """
    connection = transaction.connection
    model = models.get_model(connection, plan.model)
    plan_json = _plan_json(plan)
    row = connection.execute(
        select(rounds).where(rounds.c.model == plan.model, rounds.c.sequence == plan.sequence)
    ).one_or_none()
    if row is not None:
        if row.plan_json == plan_json:
            return round_of(row)
        raise Conflict(f"round {row.round_id} has been planned already, with other content")
    _check_place(connection, model, plan)
    _check_lineage(connection, model, plan)
    round_id = f"{plan.model}-{plan.sequence:06d}"
    _insert_round(transaction, round_id, plan, plan_json)
    models.change(transaction, plan.model, round_sequence=plan.sequence)
    transaction.record(ChangeKind.ROUND, plan.model, detail=round_id)
    return get_round(connection, round_id)


def add_done_round(transaction: Transaction, plan: RoundPlan, version: int) -> RoundRow:
    """The round of a version that was made elsewhere; it was never open."""
    round_id = f"{plan.model}-{plan.sequence:06d}"
    _insert_round(transaction, round_id, plan, _plan_json(plan))
    done = {"state": str(RoundState.DONE), "version": version}
    transaction.connection.execute(update(rounds).where(rounds.c.round_id == round_id).values(**done))
    models.change(transaction, plan.model, round_sequence=plan.sequence)
    return row_of(transaction.connection, round_id)


def _insert_round(transaction: Transaction, round_id: str, plan: RoundPlan, plan_json: str) -> None:
    transaction.connection.execute(
        insert(rounds).values(
            round_id=round_id,
            model=plan.model,
            sequence=plan.sequence,
            plan_json=plan_json,
            planned_at=transaction.now,
            state=str(RoundState.PLANNED),
        )
    )


def _check_place(connection: Connection, model: Model, plan: RoundPlan) -> None:
    if plan.sequence != model.round_sequence + 1:
        raise Conflict(f"the next round of {model.name} is number {model.round_sequence + 1}, not {plan.sequence}")
    still_open = _open_round(connection, model.name)
    if still_open is not None:
        raise Conflict(f"round {still_open[0]} of {model.name} is still {still_open[1]}")
    if model.paused:
        raise Conflict(f"the training of {model.name} is paused by {model.paused}")
    if model.archived:
        raise Conflict(f"model {model.name} is archived")
    is_from_scratch = plan.parent_version == 0 and plan.configuration.get(FROM_SCRATCH) is True
    if plan.parent_version != model.head_version and not is_from_scratch:
        raise Conflict(
            f"the parent must be the head of {model.name}, version {model.head_version}, not {plan.parent_version}"
        )


def _open_round(connection: Connection, model: str) -> tuple[str, str] | None:
    """Its id and state."""
    open_states = [str(state) for state in OPEN_STATES]
    query = select(rounds.c.round_id, rounds.c.state).where(rounds.c.model == model, rounds.c.state.in_(open_states))
    row = connection.execute(query).first()
    return None if row is None else (row.round_id, row.state)


def refuse_open_round(connection: Connection, model: str, action: str) -> None:
    """Raises Conflict: the model cannot be archived, or the like, while a round is open."""
    found = _open_round(connection, model)
    if found is not None:
        raise Conflict(
            f"model {model} cannot be {action}: round {found[0]} is {found[1]}; "
            f"pause the model and wait for its end, or fail the round"
        )


def _check_lineage(connection: Connection, model: Model, plan: RoundPlan) -> None:
    if plan.stream != model.stream:
        raise InvalidInput(f"model {model.name} learns from stream {model.stream}, not {plan.stream}")
    if plan.definition_digest != model.definition_digest:
        raise Conflict(
            f"the newest definition of {model.name} is {model.definition_digest}, not {plan.definition_digest}"
        )
    if plan.schema_version < 1:
        raise InvalidInput(f"the schema version must be at least 1, got {plan.schema_version}")
    streams.get_stream(connection, plan.stream, plan.schema_version)
    if not 0 <= plan.seed < _MAX_SEED:
        raise InvalidInput(f"the seed must be an unsigned 64-bit number, got {plan.seed}")
    if plan.example_count < 0:
        raise InvalidInput(f"example_count must not be negative, got {plan.example_count}")
    check_contiguous(plan, parent_end_of(connection, plan))
    check_forgotten(plan, models.forgotten_by(connection, plan.model))


def end_of(connection: Connection, model: str, version: int) -> dict[str, int]:
    """{partition: offset} where the version ended, with the keys of JSON; {} where there is no such version."""
    query = select(versions.c.end_position_json).where(versions.c.model == model, versions.c.version == version)
    found: dict[str, int] = json.loads(connection.execute(query).scalar_one_or_none() or "{}")
    return found


def parent_end_of(connection: Connection, plan: RoundPlan) -> dict[int, int]:
    """{partition: offset} where the plan's parent ended; {} without a parent."""
    ends = end_of(connection, plan.model, plan.parent_version)
    return {int(partition): offset for partition, offset in ends.items()}


def end_done(transaction: Transaction, row: RoundRow, version: int) -> None:
    """The round has become a version."""
    change_round(
        transaction,
        row,
        state=str(RoundState.DONE),
        version=version,
        reason="",
        lease_expires_at=0.0,
        resume_point_json="",
    )


def end_failed(
    transaction: Transaction, row: RoundRow, reason: str, backoff: Backoff, *, failure: JsonMap | None = None
) -> None:
    """The round will not be tried again; production stays, and the model backs off.

    Args:
        failure: facts beside the reason: stage, place, events, advice, log (its last lines).
    """
    stage = dict(json.loads(row.progress_json)).get("stage", "") or str(row.state)
    known: JsonMap = {
        "stage": stage,
        "place": "",
        "events": [],
        "advice": "",
        "log": [],
        **(failure or {}),
        "message": reason,
        "round_id": row.round_id,
        "attempts": row.attempts,
        "at": transaction.now,
    }
    model = models.get_model(transaction.connection, row.model)
    failures = model.consecutive_failures + 1
    change_round(
        transaction,
        row,
        state=str(RoundState.FAILED),
        reason=reason,
        lease_expires_at=0.0,
        failure_json=json_text(known),
    )
    models.change(
        transaction,
        model.name,
        consecutive_failures=failures,
        retry_at=transaction.now + backoff.seconds_after(failures),
        last_failure=reason,
        failure_json=json_text(known),
    )
    transaction.record(ChangeKind.MODEL, model.name)


def change_round(transaction: Transaction, row: RoundRow, **values: int | float | str) -> None:
    """Sets columns of the round and records the change."""
    transaction.connection.execute(update(rounds).where(rounds.c.round_id == row.round_id).values(**values))
    transaction.record(ChangeKind.ROUND, row.model, detail=row.round_id)


def list_rounds(connection: Connection, model: str, limit: int) -> list[Round]:
    """Newest first. Raises NotFound, InvalidInput."""
    if not 0 < limit <= _MAX_LISTED:
        raise InvalidInput(f"limit must be 1 to {_MAX_LISTED}, got {limit}")
    models.get_model(connection, model)
    query = select(rounds).where(rounds.c.model == model).order_by(rounds.c.sequence.desc()).limit(limit)
    return [round_of(row) for row in connection.execute(query)]


def recent_rounds(connection: Connection, names: Sequence[str], limit: int, *, before: str = "") -> list[Round]:
    """Of all these models together, the newest first; `before`: those planned before this round. Raises NotFound."""
    # The newest of most models are near the end: SQLite would sort every round of them all (sqlite.org/lang_corefunc).
    query = select(rounds).where(likely(rounds.c.model.in_(names)))
    if before:
        place = tuple_(rounds.c.planned_at, rounds.c.round_id)
        query = query.where(place < (row_of(connection, before).planned_at, before))
    query = query.order_by(rounds.c.planned_at.desc(), rounds.c.round_id.desc())
    return [round_of(row) for row in connection.execute(query.limit(limit))]


def get_round(connection: Connection, round_id: str) -> Round:
    """Raises NotFound."""
    return round_of(row_of(connection, round_id))


def get_round_of(connection: Connection, model: str, round_id: str) -> Round:
    """Raises NotFound, also when the round is another model's."""
    found = get_round(connection, round_id)
    if found.plan.model != model:
        raise NotFound(f"there is no round {round_id} of {model}")
    return found


def row_of(connection: Connection, round_id: str) -> RoundRow:
    """Raises NotFound."""
    row = connection.execute(select(rounds).where(rounds.c.round_id == round_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no round {round_id}")
    return row


def round_of(row: RoundRow) -> Round:
    return read_row(row._mapping, Round, plan=plan_of(row), state=RoundState(row.state))


def plan_of(row: RoundRow) -> RoundPlan:
    values = json.loads(row.plan_json)
    return RoundPlan(**{**values, "ranges": ranges_from_json(values["ranges"])})


def _plan_json(plan: RoundPlan) -> str:
    return json_text({**asdict(plan), "ranges": ranges_as_json(plan.ranges)})


def resume_point_json(state: JsonMap, files: Sequence[FileEntry], saved_at: float) -> str:
    return json_text({"state": state, "files": [asdict(file) for file in files], "saved_at": saved_at})


def resume_point_of(row: RoundRow) -> ResumePoint | None:
    if not row.resume_point_json:
        return None
    point = json.loads(row.resume_point_json)
    return ResumePoint(point["state"], tuple(FileEntry(**file) for file in point["files"]), point["saved_at"])
