"""Two versions of a model side by side: definition, parameters, data, metrics and curves. The address is the choice."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from common.errors import NotFound
from common.registry.catalog import PRODUCTION, JsonMap, Model, OffsetRange, Version
from services.registry.catalog import Catalog
from services.registry.pages import charts
from services.registry.pages.curves import loss_curve
from services.registry.pages.measured import curves_of
from services.registry.pages.model import main_metric, text_of
from services.registry.pages.reading import Place, Reading

_SIDES = ("left", "right")
_CANDIDATE = " (candidate)"


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name, catalog = place.names["model"], reading.catalog
    model = catalog.get_model(name)
    chosen = [place.query_number(side, default) for side, default in zip(_SIDES, _default(catalog, model), strict=True)]
    left, right = (catalog.get_version(name, number) for number in chosen)
    diff = catalog.compare(name, left.version, right.version)
    return {
        "model": model,
        "at": f"/models/{quote(name, safe='')}",
        "production": model.aliases.get(PRODUCTION, 0),
        "left": left,
        "right": right,
        "diff": diff,
        "swapped": place.link(left=str(right.version), right=str(left.version)),
        "metrics": [
            _row(metric, "number", change["from"], change["to"], is_chosen=metric == main_metric(right))
            for metric, change in diff["metrics"].items()
        ],
        "parameters": [_row(key, "value", *pair) for key, pair in diff["configuration"].items()],
        "environment": [_row(key, "value", *pair) for key, pair in diff["environment"].items()],
        "data": _data(left, right),
        "pictures": _pictures(catalog, left, right),
        "definitions": [text_of(catalog.get_definition(version.definition_digest)) for version in (left, right)],
    }


def _default(catalog: Catalog, model: Model) -> tuple[int, int]:
    """Production and the newest; of the newest and nothing else, its parent."""
    newest = model.newest_version
    if not newest:
        raise NotFound(f"{model.name} has no version yet, so there are no two to compare")
    other = model.aliases.get(PRODUCTION, 0)
    if other in (0, newest):
        other = catalog.get_version(model.name, newest).parent_version or newest
    return other, newest


def _data(left: Version, right: Version) -> list[dict[str, Any]]:
    """The events that each version learned from, row by row."""
    sides = (left, right)
    rows = [
        _row("stream", "text", *(f"{version.stream}, schema {version.schema_version}" for version in sides)),
        _row("newest event", "moment", *(version.last_event_at for version in sides)),
        *(
            _row(name, "count", *(getattr(version, f"events_{field}") for version in sides))
            for name, field in (("trained", "trained"), ("held out", "held_out"), ("unusable", "unusable"))
        ),
        _row("steps", "count", *(version.step for version in sides)),
    ]
    ranges = [{part.partition: part for part in version.ranges} for version in sides]
    partitions = sorted({*ranges[0], *ranges[1]})
    rows += [
        _row(f"records of partition {number}", "text", *(_records(parts.get(number)) for parts in ranges))
        for number in partitions
    ]
    return [*rows, _row("seed", "text", *(str(version.seed) for version in sides))]


def _records(part: OffsetRange | None) -> str:
    return f"{part.from_offset} to {part.to_offset}" if part else ""


def _row(name: str, kind: str, left: Any, right: Any, *, is_chosen: bool = False) -> dict[str, Any]:
    """`is_chosen`: the metric that the gate looks at."""
    are_numbers = all(isinstance(value, int | float) for value in (left, right)) and kind in ("count", "number")
    change = right - left if are_numbers else None
    return {"name": name, "kind": kind, "left": left, "right": right, "change": change, "is_chosen": is_chosen}


def _pictures(catalog: Catalog, left: Version, right: Version) -> dict[str, JsonMap]:
    """By title: losses from the first step of each version's own round, then the curves of both."""
    sides = {f"version {version.version}": version for version in (left, right)}
    losses = {name: loss_curve(catalog, version.files) for name, version in sides.items()}
    tags = dict.fromkeys(tag for curve in losses.values() for tag in curve.get("lines", {}))
    found = {
        tag: charts.overlaid(
            {
                name: ([step - curve["x"][0] for step in curve["x"]], curve["lines"][tag]["value"])
                for name, curve in losses.items()
                if tag in curve.get("lines", {})
            },
            label="steps of the round",
        )
        for tag in tags
    }
    curves = {name: curves_of(version) for name, version in sides.items()}
    for title in (title for title in next(iter(curves.values())) if title.endswith(_CANDIDATE)):
        found[title.removesuffix(_CANDIDATE)] = _curve(
            {name: titles[title] for name, titles in curves.items() if title in titles}
        )
    return {title: picture for title, picture in found.items() if picture}


def _curve(by_version: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The first line of each: the second is where both axes are equal."""
    lines = {name: (curve["x"], next(iter(curve["lines"].values()))["value"]) for name, curve in by_version.items()}
    return charts.overlaid(lines, label=next(iter(by_version.values()))["label"])
