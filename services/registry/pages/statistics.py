"""Statistics of fields as rows of a page, each with a small picture of how its values are spread."""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from common.errors import HeadraceError
from common.registry.catalog import Version
from common.statistics.distances import compare, sentences, share_below
from services.registry.catalog import Catalog
from services.registry.pages import charts
from services.registry.pages.reading import Place, Reading

_PATH, _MOST_BYTES, _MOST_FIELDS = "statistics/round.json", 8 * 1024 * 1024, 200
_BARS, _WORDS = 16, 3
_OF_ANOTHER_FORM = (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError)
"""Errors of reading a document of another release's form, or of no form."""
_LAST = 2_000
"""Newest events and predictions that a version is compared with."""


def of_version(catalog: Catalog, version: Version) -> Mapping[str, Any] | None:
    """Statistics of the fields in the version's round; None where it has none."""
    entry = next((file for file in version.files if file.path == _PATH), None)
    if entry is None or entry.size_bytes > _MOST_BYTES:
        return None
    try:
        found: Mapping[str, Any] = json.loads(b"".join(catalog.blobs.read(entry.digest)))
        rows(found)
    except (HeadraceError, RecursionError, *_OF_ANOTHER_FORM):
        return None
    return found


def rows(document: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """By field; `drift` is there where there is something to compare with."""
    if document is None:
        return []
    drifts = _compared(before, document) if before else {}
    return [
        {
            "name": name,
            "examples": field["examples"],
            "missing": field["missing"] / field["examples"] if field["examples"] else 0.0,
            "distinct": field.get("distinct"),
            "min": field.get("min"),
            "mean": field.get("mean"),
            "max": field.get("max"),
            "words": [f"{word[:40]} {count / field['values']:.0%}" for word, count in field.get("top", ())[:_WORDS]],
            "bars": charts.bars(_shares(field)),
            "drift": drifts.get(name, {}).get("drift", "") if before else None,
            "psi": drifts.get(name, {}).get("psi"),
        }
        for name, field in list(document["fields"].items())[:_MOST_FIELDS]
    ]


def against_parent(document: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> list[str]:
    """The changes since the parent's round, in sentences; none where either document is missing."""
    return sentences(_compared(before, document)) if document and before else []


def _compared(before: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Nothing where either is of another form."""
    try:
        return compare(before, document)
    except _OF_ANOTHER_FORM:
        return {}


def since(reading: Reading, place: Place) -> dict[str, Any]:
    """How far the newest events, and serving's requests, are from the events of the version's round: by field, in
    sentences."""
    name, number = place.names["model"], place.number("version")
    version = reading.catalog.get_version(name, number)
    learned = of_version(reading.catalog, version)
    if learned is None:
        return {"others": [], "rows": []}
    service_links = reading.service_links
    others = [
        _other("the newest events", learned, lambda: service_links.stream_statistics(version.stream, _LAST)),
        _other("serving's requests", learned, lambda: service_links.request_statistics(version.stream, name, _LAST)),
    ]
    fields = dict.fromkeys(field for other in others for field in other["distances"])
    shown = [{"name": field, "found": [other["distances"].get(field) for other in others]} for field in fields]
    return {"others": others, "rows": shown[:_MOST_FIELDS]}


def _other(title: str, learned: Mapping[str, Any], fetch: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        document = fetch()
    except HeadraceError as error:
        return {"title": title, "count": "", "sentences": [error.message], "drift": "", "distances": {}}
    found = {field: distance for field, distance in _compared(learned, document).items() if field in document["fields"]}
    drifts = {distance.get("drift", "none") for distance in found.values()}
    return {
        "title": title,
        "count": next((f"{document[unit]:,} {unit}" for unit in ("events", "predictions") if unit in document), ""),
        "sentences": sentences(found),
        "drift": next((drift for drift in ("large", "some") if drift in drifts), "none"),
        "distances": found,
    }


def _shares(field: Mapping[str, Any]) -> list[float]:
    """Of even parts from the least to the greatest number, or of the most frequent words."""
    if field["kind"] == "text":
        return [count / field["values"] for _, count in field.get("top", ())[:_BARS]] if field["values"] else []
    grid = field.get("quantiles")
    if not grid or grid[-1] <= grid[0]:
        return [1.0] if grid else []
    edges = [grid[0] + (grid[-1] - grid[0]) * place / _BARS for place in range(_BARS + 1)]
    below = [0.0, *(share_below(grid, edge) for edge in edges[1:-1]), 1.0]
    return [after - first for first, after in pairwise(below)]
