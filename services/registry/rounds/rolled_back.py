"""Where the next round starts when production or the canary moves, and the fate of the events behind that place.

The head of the line is production, or a canary or a version held back by a pin that came after production: rounds go on
from it, so that canaries build on each other's events. Moving production by hand anywhere but forward along that line
brings the head back to production; so does taking the canary away.

The fate of events that only rolled-back versions have learned (Model.rolled_back) is decided once, when production
moves: the next round learns them again, or no round does. Plans, the account, the pages and the command line go by it.
"""

import json

from sqlalchemy import Connection, select

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import LEARN, LEAVE_OUT, PRODUCTION, JsonMap, Model
from common.registry.plan_notes import PUSHED
from services.registry.definitions import models
from services.registry.rounds.line import is_on_line, totals_of
from services.registry.rounds.plans import end_of
from services.registry.store.database import Transaction
from services.registry.store.tables import rounds, versions


def check_events(events: str) -> None:
    """Raises InvalidInput: `events` is neither."""
    if events not in ("", LEARN, LEAVE_OUT):
        raise InvalidInput(f"events must be {LEARN} or {LEAVE_OUT}, got {events[:100]!r}")


def note(transaction: Transaction, before: Model, *, events: str) -> None:
    """Production has moved from where it was in `before`: stores the fate of the events that were learned behind it."""
    head = models.get_model(transaction.connection, before.name).head_version
    if head != before.head_version:
        document = outcome(transaction.connection, before, head, events)
        models.change(transaction, before.name, rolled_back_json=json.dumps(document, sort_keys=True))


def outcome(connection: Connection, before: Model, version: int, events: str) -> JsonMap:
    """Model.rolled_back once production is at `version`; {} where that is not back on the line.

    Args:
        events: "": as gate.on_reject of the definition has it.
    """
    head = trained_version(connection, before.name, version)
    if head == before.head_version or not is_on_line(connection, before.name, head, of=before.head_version):
        return {}
    earlier = before.rolled_back_now()
    end: dict[str, int] = dict(earlier.get("end_position", {}))
    for partition, offset in end_of(connection, before.name, before.head_version).items():
        end[partition] = max(offset, end.get(partition, 0))
    learned, stays = (totals_of(connection, before.name, end).accounted for end in (before.head_version, head))
    return {
        "head_version": head,
        "newest_version": before.newest_version,
        "events": events or _usual(connection, before),
        "examples": learned - stays + earlier.get("examples", 0),
        "end_position": end,
    }


def _usual(connection: Connection, model: Model) -> str:
    definition = parse_definition(models.get_definition(connection, model.definition_digest))
    return LEAVE_OUT if definition.gate.on_reject == "skip" else LEARN


def trained_version(connection: Connection, model: str, version: int) -> int:
    """The version itself, or the head of the line when it was pushed: no round starts from what was made elsewhere."""
    query = (
        select(rounds.c.plan_json)
        .join(versions, rounds.c.round_id == versions.c.round_id)
        .where(versions.c.model == model, versions.c.version == version)
    )
    text = connection.execute(query).scalar_one_or_none()
    plan = json.loads(text) if text else {}
    return int(plan["parent_version"]) if plan.get("trigger") == PUSHED else version


def follow_production(transaction: Transaction, before: Model, version: int) -> None:
    """Production has gone from where it was in `before` to `version`: settles where the next round starts."""
    version = trained_version(transaction.connection, before.name, version)
    production = trained_version(transaction.connection, before.name, before.aliases.get(PRODUCTION, 0))
    name, connection = before.name, transaction.connection
    went_forward = is_on_line(connection, name, version, of=before.head_version) and is_on_line(
        connection, name, production, of=version
    )
    if version and not went_forward:
        models.change(transaction, before.name, head_version=version)


def follow_canary(transaction: Transaction, before: Model, version: int) -> None:
    """The canary was moved to `version` (0: away) by hand; a head that is not below it starts from production again."""
    connection = transaction.connection
    version = trained_version(connection, before.name, version)
    production = trained_version(connection, before.name, before.aliases.get(PRODUCTION, 0))
    is_below = is_on_line(connection, before.name, version, of=before.head_version)
    if before.head_version != production and not is_below:
        models.change(transaction, before.name, head_version=production)
