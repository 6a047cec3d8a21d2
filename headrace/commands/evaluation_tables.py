"""For `headrace show`: losses, rules, slices and classes of a version's evaluation."""

from collections.abc import Mapping
from typing import Any

from common.definition.class_words import Words, class_word, words_of
from common.errors import HeadraceError
from common.registry.catalog import Version
from common.schema import Schema
from headrace.client.platform import Client
from headrace.commands.session import print_table
from headrace.commands.terminal import echo

_MOST_CLASSES = 20
_CANDIDATE = "candidate"
_SHARES = {"classes": "share of labels", "labels": "share of positives"}
"""Tables of classes, and what their last column is."""


def class_words(client: Client, version: Version) -> Words:
    """Nothing where the version has no table of classes, or its definition is of a release that allowed more."""
    from common.definition.model import parse_definition

    if not any(drawn.get(kind) for drawn in _curves(version).values() for kind in ("confusion", *_SHARES)):
        return {}
    schema = Schema.from_json(client.stream(version.stream, schema_version=version.schema_version).schema_json)
    try:
        return words_of(parse_definition(client.definition(version.definition_digest)).heads, schema)
    except HeadraceError:
        return {}


def print_classes(version: Version, words: Words) -> None:
    """Of the candidate on held-out events."""
    for head, drawn in _curves(version).items():
        known = words.get(head, ())
        if confusion := drawn.get("confusion"):
            names = [class_word(number, known) for number in confusion["classes"]]
            counts = zip(names, confusion["counts"], strict=True)
            columns = ("label", *(f">{name}" for name in names))
            rows = [[name, *(f"{count:,.6g}" for count in row)] for name, row in counts]
            print_table(f"confusion of {head}: labels down, predictions across", columns, rows)
        for kind, share in _SHARES.items():
            if drawn.get(kind):
                columns = ("class", ">precision", ">recall", f">{share}")
                rows = [[class_word(number, known), *map(_share, shares)] for number, *shares in drawn[kind]]
                print_table(f"classes of {head}", columns, rows[:_MOST_CLASSES])
                if len(rows) > _MOST_CLASSES:
                    echo(f"and {len(rows) - _MOST_CLASSES:,} more; --json has them all")


def print_losses(training: Mapping[str, float]) -> None:
    """Of the last pass over the range."""
    if "regularization_loss" in training:
        data, added = number_of(training["data_loss"]), number_of(training["regularization_loss"])
        echo(f"loss      {number_of(training['loss'])} in training: data {data}, regularization {added}")


def print_slices(version: Version) -> None:
    """A table for each way of cutting: a line per value and metric."""
    slices: list[Mapping[str, Any]] = list(version.evaluation.get("slices", ()))
    for by in dict.fromkeys(tuple(part["by"]) for part in slices):
        rows = [row for part in slices if tuple(part["by"]) == by for row in _slice_rows(part)]
        print_table("", (" and ".join(by), ">held out", "metric", ">candidate", ">parent"), rows)


def _slice_rows(part: Mapping[str, Any]) -> list[list[object]]:
    value = " and ".join(part["where"].values()) if part["where"] else f"{part['value_count']} others"
    sides = (part["metrics"].get("candidate", {}), part["metrics"].get("parent", {}))
    names = list(dict.fromkeys(name for side in sides for name in side)) or ["-"]
    shown = [[name, *(number_of(side.get(name)) for side in sides)] for name in names]
    return [[value if not place else "", f"{part['count']:,}" if not place else "", *row]
            for place, row in enumerate(shown)]  # fmt: skip


def print_rules(version: Version) -> None:
    """The outcome of each rule, where there are several or a rule was judged by its interval."""
    outcomes = version.verdict.outcomes
    if len(outcomes) < 2 and version.verdict.rule.confidence is None:
        return
    rows = [[outcome["outcome"].replace("_", " "), outcome["sentence"]] for outcome in outcomes]
    print_table("", ("rule", "why"), rows)


def _curves(version: Version) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = version.evaluation.get("curves", {}).get(_CANDIDATE, {})
    return found


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def number_of(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
