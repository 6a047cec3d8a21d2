"""A version's evaluation beyond single numbers, as tables of a page: rules, slices, curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.definition.class_words import Words, class_word, words_of
from common.definition.model import parse_definition
from common.errors import HeadraceError
from common.registry.catalog import Version
from common.schema import Schema
from services.registry.catalog import Catalog

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
_OF_CLASSES = ("classes", "labels")
"""Tables whose rows begin with the number of a class."""


@dataclass(frozen=True)
class Table:
    """`above`: the common heading of all columns but the first."""

    headings: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    above: str = ""


def class_words(catalog: Catalog, version: Version) -> Words:
    """Of the heads whose label is a word."""
    schema = Schema.from_json(catalog.get_stream(version.stream, version.schema_version).schema_json)
    try:
        return words_of(parse_definition(catalog.get_definition(version.definition_digest)).heads, schema)
    except HeadraceError:  # A release that allowed more wrote the definition.
        return {}


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
                found[_title(name, head, side)] = {"x": x, "label": _HEADINGS[name][across], "lines": lines | even}
    return found


def _title(kind: str, head: str, side: str) -> str:
    return f"{kind.replace('_', ' ')} of {head} ({side})"


def tables_of(version: Version, words: Words) -> dict[str, Table]:
    """By title. The forms are in docs/guide/evaluate.md."""
    return dict(_rules(version)) | dict(_slices(version)) | dict(_curves(version, words))


def _rules(version: Version) -> Iterator[tuple[str, Table]]:
    outcomes = version.verdict.outcomes[:_MOST_ROWS]
    if outcomes:
        rows = [[str(outcome["outcome"]).replace("_", " "), outcome["sentence"]] for outcome in outcomes]
        yield "rules of the gate", Table(("outcome", "why"), rows)


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
        yield f"by {' and '.join(by)}", Table(heading, rows[:_MOST_ROWS])


def _value(slice_: Mapping[str, Any]) -> str:
    return " and ".join(slice_["where"].values()) if slice_["where"] else f"{slice_['value_count']} others"


def _curves(version: Version, words: Words) -> Iterator[tuple[str, Table]]:
    for side, heads in version.evaluation.get("curves", {}).items():
        for head, drawn in heads.items():
            of_head = words.get(head, ())
            for name, found in drawn.items():
                title = _title(name, head, side)
                if name == "confusion":
                    classes = [class_word(number, of_head) for number in found["classes"]]
                    rows = [[label, *counts] for label, counts in zip(classes, found["counts"], strict=True)]
                    yield title, Table(("label", *classes), rows, above="predicted")
                elif name in _HEADINGS:
                    rows = found[:_MOST_ROWS]
                    if name in _OF_CLASSES:
                        rows = [[class_word(row[0], of_head), *row[1:]] for row in rows]
                    yield title, Table(_HEADINGS[name], rows)
