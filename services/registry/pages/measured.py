"""What a version's evaluation says beyond single numbers, as tables of a page: rules, slices, curves."""

from collections.abc import Iterator, Mapping
from typing import Any

from common.registry.catalog import Version

_MOST_ROWS = 400
_FEWEST_POINTS = 3
_HEADINGS: Mapping[str, tuple[str, ...]] = {
    "roc": ("false positive rate", "true positive rate"),
    "pr": ("recall", "precision"),
    "calibration": ("mean prediction", "share of positives", "share"),
    "classes": ("class", "precision", "recall", "share of labels"),
    "labels": ("label", "precision", "recall", "share of positives"),
    "error_percentiles": ("percent", "absolute error"),
    "residuals": ("from", "to", "share"),
    "predicted": ("mean prediction", "mean label", "share"),
    "levels": ("level", "share of labels at or below"),
}
_DRAWN = {"roc": (0, 1), "pr": (0, 1), "calibration": (0, 1), "predicted": (0, 1)}
"""Columns that are drawn as a curve; where both are equal is drawn beside it but for pr."""
_EVEN = "with both equal"
Rows = list[list[Any]]


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
                lines = {_HEADINGS[name][up]: {"value": [point[1] for point in points]}}
                even = {} if name == "pr" else {_EVEN: {"value": x}}
                found[f"{name} of {head} ({side})"] = {"x": x, "label": _HEADINGS[name][across], "lines": lines | even}
    return found


def tables_of(version: Version) -> dict[str, Rows]:
    """By title; the first row of each are its headings. docs/guide/evaluate.md says the forms."""
    return dict(_rules(version)) | dict(_slices(version)) | dict(_curves(version))


def _rules(version: Version) -> Iterator[tuple[str, Rows]]:
    told = version.verdict.outcomes
    if told:
        rows = [[str(one["outcome"]).replace("_", " "), one["sentence"]] for one in told]
        yield "rules of the gate", [["outcome", "why"], *rows[:_MOST_ROWS]]


def _slices(version: Version) -> Iterator[tuple[str, Rows]]:
    slices: list[Mapping[str, Any]] = list(version.evaluation.get("slices", ()))
    for by in dict.fromkeys(tuple(one["by"]) for one in slices):
        mine = [one for one in slices if tuple(one["by"]) == by]
        sides = [(side, one["metrics"].get(side, {})) for one in mine for side in ("candidate", "parent")]
        names = list(dict.fromkeys((name, side) for side, values in sides for name in values))
        rows = [[_value(one), one["count"], *(one["metrics"].get(s, {}).get(n) for n, s in names)] for one in mine]
        heading = [" and ".join(by), "held out", *(f"{name} ({side})" for name, side in names)]
        yield f"by {' and '.join(by)}", [heading, *rows[:_MOST_ROWS]]


def _value(one: Mapping[str, Any]) -> str:
    return " and ".join(one["where"].values()) if one["where"] else f"{one['value_count']} others"


def _curves(version: Version) -> Iterator[tuple[str, Rows]]:
    for side, heads in version.evaluation.get("curves", {}).items():
        for head, drawn in heads.items():
            for name, rows in drawn.items():
                title = f"{name} of {head} ({side})"
                if name == "confusion":
                    counts = zip(rows["classes"], rows["counts"], strict=True)
                    yield title, [["label", *rows["classes"]], *([label, *row] for label, row in counts)]
                elif name in _HEADINGS:
                    yield title, [list(_HEADINGS[name]), *rows[:_MOST_ROWS]]
