"""How many streams and models one principal may create, where identity is on: what fills the registry is one's own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, func, select

from common.access.principal import current
from common.errors import Conflict
from services.registry.store.tables import models, streams

_COUNTED = {"model": models.c.name, "schema": streams.c.schema_version}


def creator() -> str:
    """Who creates what is registered now; "" without identity."""
    principal = current()
    return principal.name if principal.is_identified else ""


@contextmanager
def within_share(connection: Connection, most: Mapping[str, int]) -> Iterator[None]:
    """Raises Conflict at the end where the principal then has more than `most` models, or schemas of streams (each of
    their versions counts), and something new among them."""
    name = creator()
    before = _created(connection, name) if name else {}
    yield
    for kind, count in _created(connection, name).items() if name else ():
        if before[kind] < count > most[kind]:
            raise Conflict(
                f"{name} has registered {most[kind]} {kind}s, which is all that one principal may "
                f"(REGISTRY_MAX_{kind.upper()}S_PER_PRINCIPAL); delete some, or ask for a higher limit"
            )


def _created(connection: Connection, name: str) -> dict[str, int]:
    return {
        kind: connection.execute(select(func.count(column)).where(column.table.c.created_by == name)).scalar_one()
        for kind, column in _COUNTED.items()
    }
