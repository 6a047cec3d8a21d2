"""For `headrace show`: losses, rules, slices and classes of a version's evaluation."""

from collections.abc import Mapping
from typing import Any

from common.definition.class_words import Words
from common.registry import evaluation_tables as tables
from common.registry.catalog import Version
from common.registry.evaluation_tables import CONFUSION, OF_CLASSES, curves, rules
from headrace.client.platform import Client
from headrace.commands.session import print_table
from headrace.commands.terminal import echo

_MOST_CLASSES = 20
_SHOWN = (CONFUSION, *OF_CLASSES)


def class_words(client: Client, version: Version) -> Words:
    """Nothing where the version has no table of classes."""
    if not dict(curves(version, {}, _SHOWN)):
        return {}
    schema_json = client.stream(version.stream, schema_version=version.schema_version).schema_json
    return tables.class_words(client.definition(version.definition_digest), schema_json)


def print_classes(version: Version, words: Words) -> None:
    for title, table in curves(version, words, _SHOWN):
        first, *others = table.headings
        columns = (first, *(f">{heading}" for heading in others))
        rows = [[_cell(value) for value in row] for row in table.rows]
        print_table(f"{title}{f', {table.above} across' * bool(table.above)}", columns, rows[:_MOST_CLASSES])
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
    if len(version.verdict.outcomes) > 1 or version.verdict.rule.confidence is not None:
        for title, table in rules(version):
            print_table(title, table.headings, table.rows)


def _cell(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value or "-")


def number_of(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else "-"
