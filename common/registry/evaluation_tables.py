"""A version's evaluation beyond single numbers, as tables of a page and of `headrace show`: rules, classes, curves."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.definition.class_words import Words, class_word, words_of
from common.errors import HeadraceError
from common.registry.catalog import Version
from common.schema import Schema

MOST_ROWS = 400
HEADINGS: Mapping[str, tuple[str, ...]] = {
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
OF_CLASSES = ("classes", "labels")
"""Tables whose rows begin with the number of a class."""
CONFUSION = "confusion"


@dataclass(frozen=True)
class Table:
    """`above`: the common heading of all columns but the first."""

    headings: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    above: str = ""


def class_words(files: Mapping[str, bytes], schema_json: str) -> Words:
    """Of the heads of a definition whose label is a word; none where a release that allowed more wrote it."""
    from common.definition.model import parse_definition  # here: the command line starts without it

    try:
        return words_of(parse_definition(files).heads, Schema.from_json(schema_json))
    except HeadraceError:
        return {}


def title_of(kind: str, head: str, side: str) -> str:
    return f"{kind.replace('_', ' ')} of {head} ({side})"


def rules(version: Version) -> Iterator[tuple[str, Table]]:
    outcomes = version.verdict.outcomes[:MOST_ROWS]
    if outcomes:
        rows = [[str(outcome["outcome"]).replace("_", " "), outcome["sentence"]] for outcome in outcomes]
        yield "rules of the gate", Table(("outcome", "why"), rows)


def curves(
    version: Version, words: Words, kinds: Collection[str] = (CONFUSION, *HEADINGS)
) -> Iterator[tuple[str, Table]]:
    """By title. The forms are in docs/guide/evaluate.md."""
    for side, heads in version.evaluation.get("curves", {}).items():
        for head, drawn in heads.items():
            of_head = words.get(head, ())
            for name in (name for name in drawn if name in kinds):
                title, rows = title_of(name, head, side), drawn[name]
                if name == CONFUSION:
                    classes = [class_word(number, of_head) for number in rows["classes"]]
                    counts = [[label, *counts] for label, counts in zip(classes, rows["counts"], strict=True)]
                    yield title, Table(("label", *classes), counts, above="predicted")
                elif name in OF_CLASSES:
                    listed = [[class_word(row[0], of_head), *row[1:]] for row in rows[:MOST_ROWS]]
                    yield title, Table(HEADINGS[name], listed)
                else:
                    yield title, Table(HEADINGS[name], rows[:MOST_ROWS])
