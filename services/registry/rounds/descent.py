"""Which version the next round starts from: the head of the line.

The head is production, or a canary or a version held back by a pin that came after production: rounds go on from it, so
that canaries build on each other's events. Moving production by hand anywhere but forward along that line brings the
head back to production; so does taking the canary away.
"""

import json

from sqlalchemy import Connection, select

from common.registry.catalog import PRODUCTION, Model
from common.registry.plan_notes import PUSHED
from services.registry.definitions import models
from services.registry.rounds.line import is_on_line
from services.registry.store.database import Transaction
from services.registry.store.tables import rounds, versions


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
