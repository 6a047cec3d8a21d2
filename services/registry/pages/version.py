"""One version: its origin, metrics, files and answers."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from common.registry.catalog import PRODUCTION
from common.registry.evaluation_tables import class_words
from common.registry.jobs import Job, JobKind
from common.registry.plan_notes import FIRED, PUSHED
from common.registry.scored_outside import SCORED_OUTSIDE, in_words
from services.registry.pages import actions, charts, statistics
from services.registry.pages.curves import loss_curve
from services.registry.pages.live import evidence
from services.registry.pages.measured import curves_of, tables_of
from services.registry.pages.model import main_metric, scalars
from services.registry.pages.reading import Place, Reading
from services.registry.pages.rounds import in_order
from services.registry.pages.trying import offered, signature_rows


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name, number = place.names["model"], place.number("version")
    catalog = reading.catalog
    model, version = catalog.get_model(name), catalog.get_version(name, number)
    production = model.aliases.get(PRODUCTION, 0)
    served_by = catalog.observed.served_by(name).get(number, [])
    live = {
        "model": model,
        "at": f"/models/{quote(name, safe='')}",
        "version": version,
        "rebuild": _rebuild(reading, name, number),
        "shape": f"{version.status} {production == number} {any(row['state'] == 'AVAILABLE' for row in served_by)}",
    }
    if place.is_live:
        return live
    plan = catalog.get_round(name, version.round_id).plan
    offer = offered(reading, version)
    parts = {part: scalars(version, part) for part in version.metrics}
    parent = catalog.get_version(name, version.parent_version) if version.parent_version else None
    stream = catalog.get_stream(version.stream, version.schema_version)
    words = class_words(catalog.get_definition(version.definition_digest), stream.schema_json)
    document, before = (statistics.of_version(catalog, other) if other else None for other in (version, parent))
    return {
        **live,
        "notice": actions.notice(place),
        "can_be_rebuilt": plan.trigger != PUSHED,
        "production": production,
        "aliases": [alias for alias, named in model.aliases.items() if named == number],
        "metric": main_metric(version),
        "evidence": evidence(reading, name, number),
        "metrics": _table(parts),
        "metric_parts": [part for part in ("candidate", "parent", "progressive") if part in parts],
        "tables": tables_of(version, words),
        "curves": curves_of(version),
        "timings": charts.shares(dict(in_order(version.timings))),
        "loss": loss_curve(catalog, version.files),
        "statistics": statistics.rows(document, before),
        "drift": statistics.against_parent(document, before),
        "configuration": json.dumps(plan.configuration, indent=2, sort_keys=True, ensure_ascii=False),
        "trigger": plan.trigger,
        "fired": version.environment.get(FIRED, {}),
        "plan": plan,
        "warnings": list(dict(version.environment.get("warnings", {})).values()),
        "scored": list(in_words(version.environment, version.verdict.rule)),
        "environment": {
            key: value for key, value in version.environment.items() if key not in ("warnings", FIRED, SCORED_OUTSIDE)
        },
        "other": version.parent_version or production or number,
        "served_by": served_by,
        "signatures": list(signature_rows(version)),
        "request": json.dumps(offer.request, indent=2, ensure_ascii=False),
        "request_from": offer.origin,
        "request_line": json.dumps(offer.request).replace("'", "\\u0027"),
        "serving_url": reading.service_links.serving,
        "size": sum(file.size_bytes for file in version.files),
    }


def _rebuild(reading: Reading, model: str, version: int) -> Job | None:
    """The newest of the version, also where it failed."""
    jobs = reading.catalog.jobs.listed(model=model)
    return next((job for job in jobs if job.version == version and job.kind is JobKind.REBUILD), None)


def _table(parts: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    names: dict[str, None] = {}
    for part in ("candidate", "parent", "progressive"):
        names |= dict.fromkeys(parts.get(part, {}))
    return [{"name": name, **{part: values.get(name) for part, values in parts.items()}} for name in names]
