"""Statistics of fields as rows of a page, each with a small picture of how its values are spread."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from common.errors import HeadraceError
from common.registry.catalog import Version
from common.statistics.distances import compare, share_below
from services.registry.catalog import Catalog
from services.registry.pages import charts

_PATH, _MOST_BYTES, _MOST_FIELDS = "statistics/round.json", 8 * 1024 * 1024, 200
_BARS, _WORDS = 16, 3


def of_version(catalog: Catalog, version: Version) -> Mapping[str, Any] | None:
    """What the version's round has of its fields; None where it has none."""
    entry = next((file for file in version.files if file.path == _PATH), None)
    if entry is None or entry.size_bytes > _MOST_BYTES:
        return None
    try:
        found: Mapping[str, Any] = json.loads(b"".join(catalog.read_file(entry.digest)))
    except (ValueError, HeadraceError):
        return None
    return found


def rows(told: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """By field; `drift` is there where there is something to compare with."""
    if told is None:
        return []
    drifts = compare(before, told) if before else {}
    return [
        {
            "name": name,
            "examples": one["examples"],
            "missing": one["missing"] / one["examples"] if one["examples"] else 0.0,
            "distinct": one.get("distinct"),
            "min": one.get("min"),
            "mean": one.get("mean"),
            "max": one.get("max"),
            "words": [f"{word[:40]} {count / one['values']:.0%}" for word, count in one.get("top", ())[:_WORDS]],
            "bars": charts.bars(_shares(one)),
            "drift": drifts.get(name, {}).get("drift", "") if before else None,
            "psi": drifts.get(name, {}).get("psi"),
        }
        for name, one in list(told["fields"].items())[:_MOST_FIELDS]
    ]


def _shares(one: Mapping[str, Any]) -> list[float]:
    """Of even parts from the least to the greatest number, or of the most frequent words."""
    if one["kind"] == "text":
        return [count / one["values"] for _, count in one.get("top", ())[:_BARS]] if one["values"] else []
    grid = one.get("quantiles")
    if not grid or grid[-1] <= grid[0]:
        return [1.0] if grid else []
    edges = [grid[0] + (grid[-1] - grid[0]) * place / _BARS for place in range(_BARS + 1)]
    below = [0.0, *(share_below(grid, edge) for edge in edges[1:-1]), 1.0]
    return [after - first for first, after in pairwise(below)]
