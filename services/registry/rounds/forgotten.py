"""Places of events that a model never learns again: kept with the model, and carried by each plan whose ranges have
some."""

import json

from sqlalchemy import Connection, select

from common.errors import Conflict
from common.registry.catalog import WINDOW, RoundPlan, ranges_from_json
from common.registry.forgotten import Forgotten, forgotten_from_json, forgotten_of, read_ranges
from services.registry.definitions import models
from services.registry.store.tables import models as models_table


def forgotten_by(connection: Connection, model: str) -> Forgotten:
    """Raises NotFound."""
    models.get_model(connection, model)
    query = select(models_table.c.forgotten_pieces).where(models_table.c.name == model)
    return forgotten_from_json(json.loads(connection.execute(query).scalar_one()))


def check_forgotten(connection: Connection, plan: RoundPlan) -> None:
    """Raises Conflict: the plan would learn, or be judged on, what the model has forgotten since it was drafted."""
    known = forgotten_by(connection, plan.model)
    window = ranges_from_json(plan.configuration.get(WINDOW, []))
    if known.within(read_ranges(plan)).pieces != forgotten_of(plan).pieces or known.within(window):
        raise Conflict(
            f"round {plan.sequence} of {plan.model} does not leave out the events that the model has forgotten"
        )
