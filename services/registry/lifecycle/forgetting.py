"""Forgetting: no later version has learned the events, nor descends from a version that has.

The places are kept with the model, versions that learned them are marked, and the next round starts from the newest
ancestor of the head without them that has its files. Production stays until a version without them has passed the gate;
a canary that has learned them goes. It is one transaction.
"""

import json
from typing import Any, cast

from sqlalchemy import Connection, select

from common.counted import counted
from common.errors import InvalidInput
from common.registry.catalog import CANARY, LEARN, PRODUCTION, ChangeKind, JsonMap, Model, VersionStatus
from common.registry.forgotten import MOST_PIECES, Forgotten, forgotten_from_json, forgotten_of
from common.registry.plan_notes import PUSHED
from services.registry.definitions import models
from services.registry.rounds.line import ancestor_at_most
from services.registry.rounds.plans import RoundRow, end_of, plan_of, refuse_open_round
from services.registry.store.database import Transaction
from services.registry.store.history import remember
from services.registry.store.tables import lineage, rounds, versions
from services.registry.versions.aliases import follow_predecessor, take_off


def outcome(connection: Connection, name: str, selection: JsonMap) -> dict[str, Any]:
    """The effects of forgetting.

    Args:
        selection: {"pieces": places as common/registry/forgotten.py has them, "examples": how many events they are}.

    Returns:
        {"examples", "learned_by": versions that have learned them, "head_version": where the next round starts,
        "end_position": where that ended, "was": the head before, "production_version"}.

    Raises:
        Conflict: a round is open. InvalidInput: the places are none, or too many. NotFound.
    """
    before = models.get_model(connection, name)
    refuse_open_round(connection, name, "made to forget")
    learned, archived = _learned(connection, name, _all_of(connection, name, selection)[0])
    head = before.head_version
    while head in learned or (head != before.head_version and head in archived):
        head = ancestor_at_most(connection, name, head, head - 1)
    return {
        "examples": selection["examples"], "learned_by": sorted(learned),
        "head_version": head, "was": before.head_version,
        "production_version": before.aliases.get(PRODUCTION, 0), "end_position": end_of(connection, name, head),
    }  # fmt: skip


def forget(transaction: Transaction, name: str, selection: JsonMap, *, by: str, reason: str) -> dict[str, Any]:
    """Forgets. Returns and raises as `outcome`."""
    connection = transaction.connection
    found = outcome(connection, name, selection)
    before, head, learned = models.get_model(connection, name), found["head_version"], found["learned_by"]
    kept = _all_of(connection, name, selection)[1].as_json()
    values: dict[str, Any] = {"forgotten_examples": before.forgotten_examples + found["examples"]}
    values["forgotten_pieces"] = json.dumps(kept, separators=(",", ":"))
    if head != before.head_version:
        values["head_version"] = head or -1
        values["rolled_back_json"] = json.dumps(
            _behind(connection, before, head, found["end_position"]), sort_keys=True
        )
    models.change(transaction, name, **values)
    for numbers in (learned[at : at + 500] for at in range(0, len(learned), 500)):
        chosen = (versions.c.model == name) & versions.c.version.in_(numbers)
        connection.execute(versions.update().where(chosen).values(forgotten_at=transaction.now))
    follow_predecessor(transaction, name)
    if (canary := before.aliases.get(CANARY, 0)) in learned:
        take_off(transaction, name, CANARY, canary, by=by, reason=f"version {canary} has learned what is forgotten")
    detail = counted(found["examples"], "event")
    remember(transaction, "forget", by=by, reason=reason, model=name, version=head, detail=detail)
    transaction.record(ChangeKind.MODEL, name)
    return found


def _all_of(connection: Connection, name: str, selection: JsonMap) -> tuple[Forgotten, Forgotten]:
    """(the new events, all forgotten events with them)."""
    new, examples = forgotten_from_json(selection.get("pieces")), selection.get("examples")
    if not new or type(examples) is not int or examples < 0:
        raise InvalidInput(f"to forget needs places of events, and how many they are, got {str(selection)[:100]}")
    kept = Forgotten((*models.forgotten_by(connection, name).pieces, *new.pieces))
    if len(kept.pieces) > MOST_PIECES:
        raise InvalidInput(f"{name} would forget {len(kept.pieces):,} places, at most {MOST_PIECES:,} are kept")
    return new, kept


def _learned(connection: Connection, name: str, new: Forgotten) -> tuple[set[int], set[int]]:
    """Versions whose round had one of the events, trained or held out, or an ancestor's; and those without files. What
    was pushed was made elsewhere: the version before it is not its origin."""
    query = (
        select(lineage.c.version, lineage.c.parent_version, rounds.c.plan_json, versions.c.status)
        .join(versions, (versions.c.model == lineage.c.model) & (versions.c.version == lineage.c.version))
        .join(rounds, rounds.c.round_id == versions.c.round_id)
        .where(lineage.c.model == name)
        .order_by(lineage.c.version)
    )
    found, archived = set[int](), set[int]()
    for row in connection.execute(query):
        plan = plan_of(cast(RoundRow, row))
        if row.status == VersionStatus.ARCHIVED:
            archived.add(row.version)
        learned = row.parent_version in found or new.within(plan.ranges).goes_beyond(forgotten_of(plan))
        if learned and plan.trigger != PUSHED:
            found.add(row.version)
    return found, archived


def _behind(connection: Connection, before: Model, head: int, end: JsonMap) -> JsonMap:
    """Model.rolled_back: all behind the new head waits to be learned again, in the order of the log."""
    ends = {**end, **end_of(connection, before.name, before.head_version)}
    return {"head_version": head, "newest_version": before.newest_version, "events": LEARN,
            "examples": 0, "end_position": ends, "forgot": True}  # fmt: skip
