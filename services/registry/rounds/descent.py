"""Who is whose parent, and which version the next round starts from: the head of the line.

The head is production, or a canary or a version held back by a pin that came after production: rounds go on from it, so
that canaries build on each other's events. Moving production by hand anywhere but forward along that line brings the
head back to production; so does taking the canary away.
"""

import json
from collections.abc import Mapping

from sqlalchemy import Connection, select

from common.registry.catalog import PRODUCTION, PUSHED, Model
from services.registry.definitions import models
from services.registry.store.database import Transaction
from services.registry.store.tables import rounds, versions


def parents_of(connection: Connection, model: str) -> dict[int, int]:
    """{version: parent}; 0 stands for none."""
    query = (
        select(versions.c.version, rounds.c.plan_json)
        .join(rounds, rounds.c.round_id == versions.c.round_id)
        .where(versions.c.model == model)
    )
    return {row.version: int(json.loads(row.plan_json)["parent_version"]) for row in connection.execute(query)}


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


def line_of(parents: Mapping[int, int], version: int) -> list[int]:
    """The version, its parent and so on, down to the first."""
    line: list[int] = []
    while version and version in parents:
        line.append(version)
        version = parents[version]
    return line


def follow_production(transaction: Transaction, before: Model, version: int) -> None:
    """Production has gone from where it was in `before` to `version`: settles where the next round starts."""
    version = trained_version(transaction.connection, before.name, version)
    production = trained_version(transaction.connection, before.name, before.aliases.get(PRODUCTION, 0))
    line = line_of(parents_of(transaction.connection, before.name), before.head_version)
    went_forward = version in line and production in line[line.index(version) :]
    if version and not went_forward:
        models.change(transaction, before.name, head_version=version)


def follow_canary(transaction: Transaction, before: Model, version: int) -> None:
    """The canary was moved to `version` (0: away) by hand; a head that is not below it starts from production again."""
    connection = transaction.connection
    version = trained_version(connection, before.name, version)
    production = trained_version(connection, before.name, before.aliases.get(PRODUCTION, 0))
    line = line_of(parents_of(transaction.connection, before.name), before.head_version)
    if before.head_version != production and version not in line:
        models.change(transaction, before.name, head_version=production)
