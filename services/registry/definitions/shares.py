"""How many streams, models and versions a principal may create, where identity is on."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, func, select

from common.access.principal import current
from common.errors import Conflict
from services.registry.store.tables import models, streams, versions

_COUNTED = {"model": models.c.created_by, "schema": streams.c.created_by, "version": versions.c.pushed_by}
_DONE = {"model": "registered", "schema": "registered", "version": "pushed"}
_HOLDS = {"model": "models", "schema": "streams", "version": "models"}
CREATED, PUSHED = ("model", "schema"), ("version",)


def creator() -> str:
    """The principal of the current registration; "" without identity."""
    principal = current()
    return principal.name if principal.is_identified else ""


@contextmanager
def within_share(connection: Connection, most: Mapping[str, int], kinds: Collection[str] = CREATED) -> Iterator[None]:
    """Raises Conflict at the end where the principal then has more than `most` of a kind, and something new among them:
    models, schemas of streams (each of their versions counts), versions that it has pushed."""
    name = creator()
    before = {kind: _count(connection, kind, name) for kind in kinds if name}
    yield
    for kind, had in before.items():
        if had < _count(connection, kind, name) > most[kind]:
            raise Conflict(
                f"{name} has {_DONE[kind]} {most[kind]} {kind}s, which is all that one principal may "
                f"(REGISTRY_MAX_{kind.upper()}S_PER_PRINCIPAL); delete {_HOLDS[kind]}, or request a higher limit"
            )


def _count(connection: Connection, kind: str, name: str) -> int:
    by = _COUNTED[kind]
    return connection.execute(select(func.count()).select_from(by.table).where(by == name)).scalar_one()
