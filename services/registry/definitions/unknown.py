"""The sentence about a model or a stream that is not registered."""

from typing import Literal

from sqlalchemy import Connection, select

from common.access.principal import AUTHOR, INGEST, may_know
from common.errors import NotFound
from common.suggestions import did_you_mean
from services.registry.store.tables import models, streams


def not_registered(connection: Connection, kind: Literal["model", "stream"], name: str) -> NotFound:
    """With the name that was probably meant, or that it is one of the other kind, as far as the current principal may
    know of them."""
    names = {
        "model": set(filter(may_know(AUTHOR), connection.scalars(select(models.c.name)))),
        "stream": set(filter(may_know(INGEST), connection.scalars(select(streams.c.name)))),
    }
    other = "stream" if kind == "model" else "model"
    is_other = f"; there is a {other} of that name" if name in names[other] else ""
    return NotFound(f"{kind} {name} is not registered{is_other or did_you_mean([name], names[kind])}")
