"""Every model at a glance, in as many queries as a single model takes."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, func, select

from common.registry.catalog import PRODUCTION, JsonMap, Model, RoundState, Version
from common.registry.round_words import hindrance_of
from services.registry.definitions import models
from services.registry.rounds import plans as rounds
from services.registry.store.dialects import unlikely
from services.registry.store.tables import alias_history, aliases
from services.registry.store.tables import models as models_table
from services.registry.store.tables import rounds as rounds_table
from services.registry.store.tables import versions as versions_table
from services.registry.versions import published

_HOUR_SECONDS = 3600.0


def overview(connection: Connection, now: float) -> list[tuple[Model, float, JsonMap]]:
    """(model, when its production moved, facts of its versions and its open round), by name."""
    produced = published.find_versions(
        connection,
        (aliases.c.model == versions_table.c.model)
        & (aliases.c.version == versions_table.c.version)
        & (aliases.c.alias == PRODUCTION),
    )
    # Models come first, and the last hour: without a hint SQLite reads every version for either.
    newest = published.find_versions(
        connection,
        (models_table.c.name == versions_table.c.model)
        & (models_table.c.newest_version == versions_table.c.version)
        & unlikely(models_table.c.newest_version > 0),
    )
    recent = unlikely(versions_table.c.created_at > now - _HOUR_SECONDS)
    counts = dict(_by_model(connection, versions_table.c.model, func.count(), recent))
    moves = _moves(connection)
    by_model = {model: {found.model: found for found in list_} for model, list_ in (("p", produced), ("n", newest))}
    open_rounds = _open_rounds(connection)
    return [
        (
            model,
            float(moves.get(model.name, 0.0)),
            {
                "production": _version(by_model["p"].get(model.name), now),
                "newest": _version(by_model["n"].get(model.name), now),
                "versions_last_hour": counts.get(model.name, 0),
                "open_round": open_rounds.get(model.name),
            },
        )
        for model in models.list_models(connection)
    ]


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """{("rounds" or "versions", state or status): how many there are}."""
    states = {"rounds": rounds_table.c.state, "versions": versions_table.c.status}
    return {
        (kind, state): count
        for kind, column in states.items()
        for state, count in connection.execute(select(column, func.count()).group_by(column))
    }


def _by_model(connection: Connection, model: Any, value: Any, condition: Any) -> list[tuple[str, Any]]:
    query = select(model.label("model"), value.label("value")).where(condition).group_by(model)
    return [(row.model, row.value) for row in connection.execute(query)]


def _moves(connection: Connection) -> dict[str, float]:
    """{model: when its production moved last}."""
    every = alias_history.alias()
    of_model = (every.c.model == models_table.c.name) & (every.c.alias == PRODUCTION)
    newest = select(func.max(every.c.id)).where(of_model).correlate(models_table).scalar_subquery()
    query = select(alias_history.c.model, alias_history.c.at).join(models_table, alias_history.c.id == newest)
    return {row.model: row.at for row in connection.execute(query)}


def _open_rounds(connection: Connection) -> dict[str, JsonMap]:
    states = [str(RoundState.PLANNED), str(RoundState.RUNNING)]
    found: dict[str, JsonMap] = {}
    for row in connection.execute(select(rounds_table).where(rounds_table.c.state.in_(states))):
        open_round = rounds.round_of(row)
        shown = {key: value for key, value in asdict(open_round).items() if key not in ("plan", "failure")}
        found[open_round.plan.model] = {
            **shown,
            "examples": open_round.plan.example_count,
            "trigger": open_round.plan.trigger,
            "hindrance": hindrance_of(open_round),
        }
    return found


def _version(found: Version | None, now: float) -> JsonMap | None:
    if found is None:
        return None
    return {
        "version": found.version,
        "status": str(found.status),
        "created_at": found.created_at,
        "last_event_at": found.last_event_at,
        "freshness_seconds": round(max(0.0, now - found.last_event_at), 3) if found.last_event_at else None,
        "newest_event_time": found.newest_event_time,
        "event_time_freshness_seconds": None
        if found.newest_event_time is None
        else round(max(0.0, now - found.newest_event_time), 3),
        "decision": str(found.verdict.decision),
        "reasons": list(found.verdict.reasons),
        "metric": found.verdict.rule.shown_metric,
        "value": found.metrics.get("candidate", {}).get(found.verdict.rule.shown_metric),
    }
