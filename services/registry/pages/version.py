"""One version: where it comes from, what it was measured at, what it consists of, and what it answers."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from common.errors import HeadraceError, InvalidInput
from common.registry.catalog import PRODUCTION, PUSHED, JsonMap, Version
from common.registry.jobs import Job, JobKind
from common.schema import Feature, Schema
from services.registry.pages import actions, charts, statistics
from services.registry.pages.curves import loss_curve
from services.registry.pages.measured import curves_of, tables_of
from services.registry.pages.model import main_metric, scalars
from services.registry.pages.reading import Place, Reading
from services.registry.pages.rounds import in_order

_MAX_SHAPE = 64
_MAX_REQUEST = 200_000
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
)
"""A PNG of one black dot."""


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name, number = place.names["model"], place.number("version")
    catalog = reading.catalog
    model, version = catalog.get_model(name), catalog.get_version(name, number)
    production = model.aliases.get(PRODUCTION, 0)
    served_by = catalog.served_by(name).get(number, [])
    live = {
        "model": model,
        "version": version,
        "rebuild": _rebuild(reading, name, number),
        "shape": f"{version.status} {production == number} {any(one['state'] == 'AVAILABLE' for one in served_by)}",
    }
    if place.is_live:
        return live
    against = place.asked("against", version.parent_version or production or number)
    plan = catalog.get_round(name, version.round_id).plan
    signatures = _signatures(reading, name, number)
    request = _request_for(reading, version, signatures)
    parts = {part: scalars(version, part) for part in version.metrics}
    parent = catalog.get_version(name, version.parent_version) if version.parent_version else None
    told, before = (statistics.of_version(catalog, one) if one else None for one in (version, parent))
    return {
        **live,
        "notice": actions.notice(place),
        "can_be_rebuilt": plan.trigger != PUSHED,
        "production": production,
        "aliases": [alias for alias, named in model.aliases.items() if named == number],
        "metric": main_metric(version),
        "metrics": _table(parts),
        "metric_parts": [part for part in ("candidate", "parent", "progressive") if part in parts],
        "tables": tables_of(version),
        "curves": curves_of(version),
        "timings": charts.shares(dict(in_order(version.timings))),
        "loss": loss_curve(catalog, version.files),
        "statistics": statistics.rows(told, before),
        "drift": statistics.against_parent(told, before),
        "configuration": json.dumps(plan.configuration, indent=2, sort_keys=True, ensure_ascii=False),
        "trigger": plan.trigger,
        "plan": plan,
        "warnings": list(dict(version.environment.get("warnings", {})).values()),
        "environment": {key: value for key, value in version.environment.items() if key != "warnings"},
        "against": against,
        "diff": catalog.compare(name, against, number) if against != number else None,
        "served_by": served_by,
        "signatures": _tensors(signatures),
        "request": json.dumps(request, indent=2),
        "request_line": json.dumps(request).replace("'", "\\u0027"),
        "serving_url": reading.neighbours.serving,
        "size": sum(file.size_bytes for file in version.files),
    }


def _rebuild(reading: Reading, model: str, version: int) -> Job | None:
    """The newest of the version, whatever became of it."""
    jobs = reading.catalog.jobs.listed(model=model)
    return next((job for job in jobs if job.version == version and job.kind is JobKind.REBUILD), None)


def tried(reading: Reading, place: Place, text: str) -> dict[str, Any]:
    """What the version answers to the request that was written into the form."""
    name, number = place.names["model"], place.number("version")
    try:
        if len(text) > _MAX_REQUEST:
            raise InvalidInput(f"the request has {len(text)} characters, expected at most {_MAX_REQUEST}")
        answer = reading.neighbours.predict(name, number, _request(text))
    except HeadraceError as error:
        return {"answer": "", "fault": error.message}
    return {"answer": json.dumps(answer, indent=2, ensure_ascii=False), "fault": ""}


def _request(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is not JSON: {error}") from error


def _table(parts: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    names: dict[str, None] = {}
    for part in ("candidate", "parent", "progressive"):
        names |= dict.fromkeys(parts.get(part, {}))
    return [{"name": name, **{part: values.get(name) for part, values in parts.items()}} for name in names]


def _request_for(reading: Reading, version: Version, signatures: JsonMap) -> JsonMap:
    """One that the version should take: an instance with a value of the kind of every input, as far as is known."""
    schema = Schema.from_json(reading.catalog.get_stream(version.stream, version.schema_version).schema_json)
    known = signatures or _signatures(reading, version.model, 0)
    wanted = set(known.get("serving_default", {}).get("inputs", ()))
    chosen = [feature for feature in schema.features if not feature.rows_of and (not wanted or feature.name in wanted)]
    return {"instances": [{feature.name: example_of(feature) for feature in chosen}]}


def _signatures(reading: Reading, model: str, version: int) -> JsonMap:
    """By name, as TensorFlow Serving's metadata has them; empty when no replica has the version."""
    try:
        answer = reading.neighbours.signatures(model, version)
        return dict(answer["metadata"]["signature_def"]["signature_def"])
    except (HeadraceError, KeyError, TypeError, ValueError):
        return {}


def _tensors(signatures: JsonMap) -> list[dict[str, Any]]:
    """A row for each input and output."""
    return [
        {"signature": name, "side": side, "name": tensor, "dtype": told["dtype"], "shape": _shape(told["tensor_shape"])}
        for name, signature in sorted(signatures.items())
        for side in ("inputs", "outputs")
        for tensor, told in sorted(signature[side].items())
    ]


def _shape(told: JsonMap) -> str:
    if told.get("unknown_rank"):
        return "any"
    return f"[{', '.join('?' if int(dim['size']) < 0 else str(dim['size']) for dim in told.get('dim', ()))}]"


def example_of(feature: Feature) -> object:
    """A value that an event may have, as JSON: the first word, the least number, a picture of one dot."""
    if feature.dtype == "bytes":
        known = b"\0" * (feature.tensor.byte_count or 0) if feature.tensor else _PIXEL if feature.image else b""
        return {"b64": base64.b64encode(known).decode()}
    scalar: object = feature.vocabulary[0] if feature.vocabulary else "" if feature.dtype == "string" else 0
    if feature.dtype != "string":
        scalar = feature.minimum if feature.minimum is not None else 0
        scalar = float(scalar) if feature.dtype == "float32" else int(scalar)
    value = scalar
    for dimension in reversed(feature.shape):
        value = [value] * min(dimension or 1, _MAX_SHAPE**2)
    return value
