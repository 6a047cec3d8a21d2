"""A version's evaluation beyond single numbers, as tables of a page: rules, slices, curves."""

from collections.abc import Iterator, Mapping
from typing import Any

from common.definition.class_words import Words
from common.registry.catalog import Version
from common.registry.evaluation_tables import HEADINGS, MOST_ROWS, Table, curves, rules, title_of

_FEWEST_POINTS = 3
_DRAWN = {"roc": (0, 1), "pr": (0, 1), "calibration": (0, 1), "predicted": (0, 1)}
"""Columns that are drawn as a curve; where both are equal is drawn beside it but for pr."""
_EVEN = "with both equal"


def curves_of(version: Version) -> dict[str, dict[str, Any]]:
    """By title what pages.js draws: {"x", "label", "lines": {name: {"value": [...]}}}; each has its table beside it."""
    found = {}
    for side, heads in version.evaluation.get("curves", {}).items():
        for head, drawn in heads.items():
            for name, (across, up) in _DRAWN.items():
                points = sorted(
                    (row[across], row[up]) for row in drawn.get(name, ()) if None not in (row[across], row[up])
                )
                if len(points) < _FEWEST_POINTS:
                    continue
                x = [point[0] for point in points]
                lines = {HEADINGS[name][up]: {"value": [point[1] for point in points]}}
                even = {} if name == "pr" else {_EVEN: {"value": x}}
                found[title_of(name, head, side)] = {"x": x, "label": HEADINGS[name][across], "lines": lines | even}
    return found


def tables_of(version: Version, words: Words) -> dict[str, Table]:
    """By title."""
    return dict(rules(version)) | dict(_slices(version)) | dict(curves(version, words))


def _slices(version: Version) -> Iterator[tuple[str, Table]]:
    slices: list[Mapping[str, Any]] = list(version.evaluation.get("slices", ()))
    for by in dict.fromkeys(tuple(slice_["by"]) for slice_ in slices):
        mine = [slice_ for slice_ in slices if tuple(slice_["by"]) == by]
        sides = [(side, slice_["metrics"].get(side, {})) for slice_ in mine for side in ("candidate", "parent")]
        names = list(dict.fromkeys((name, side) for side, values in sides for name in values))
        rows = [
            [_value(slice_), slice_["count"], *(slice_["metrics"].get(s, {}).get(n) for n, s in names)]
            for slice_ in mine
        ]
        heading = [" and ".join(by), "held out", *(f"{name} ({side})" for name, side in names)]
        yield f"by {' and '.join(by)}", Table(heading, rows[:MOST_ROWS])


def _value(slice_: Mapping[str, Any]) -> str:
    return " and ".join(slice_["where"].values()) if slice_["where"] else f"{slice_['value_count']} others"
