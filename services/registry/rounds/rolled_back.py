"""The fate of events that only rolled-back versions have learned (Model.rolled_back).

Decided once, when production moves: the next round learns them again, or no round does. Plans, the account, the pages
and the command line go by it.
"""

import json

from sqlalchemy import Connection

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import LEARN, LEAVE_OUT, JsonMap, Model
from services.registry.definitions import models
from services.registry.rounds.descent import trained_version
from services.registry.rounds.line import is_on_line, totals_of
from services.registry.rounds.plans import end_of
from services.registry.store.database import Transaction


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
