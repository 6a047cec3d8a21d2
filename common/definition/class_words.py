"""The words of a classifier's classes, where the numbers 0, 1, 2, ... stand in a version's evaluation."""

from collections.abc import Iterable, Mapping, Sequence

from common.definition.heads import Head
from common.schema import Schema

Words = Mapping[str, Sequence[str]]
"""By head the words of its classes, in the order of their numbers."""


def words_of(heads: Iterable[Head], schema: Schema) -> Words:
    """Of the heads whose label has a vocabulary."""
    known = {label.name: label.vocabulary for label in schema.labels if label.vocabulary}
    return {head.name: known[head.label] for head in heads if head.label in known}


def class_word(number: object, words: Sequence[str]) -> str:
    """The number itself where the class has no word; "others" of a confusion table stays."""
    is_known = isinstance(number, int) and 0 <= number < len(words)
    return words[int(str(number))] if is_known else str(number)
