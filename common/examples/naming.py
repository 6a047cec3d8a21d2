"""What a schema declares besides names and numbers: aliases of a feature, and words for 1 and 0."""

from collections.abc import Iterable, Mapping
from typing import Any

from common.examples.cells import flattened
from common.examples.values import TRUTHS
from common.schema import Feature

NameOf = Mapping[str, str]
"""{alias: the feature's name}."""


def name_of_alias(features: Iterable[Feature]) -> dict[str, str]:
    """A schema has each alias once."""
    return {alias: feature.name for feature in features for alias in feature.aliases}


def under_names(values: Mapping[str, Any], name_of: NameOf) -> Mapping[str, Any]:
    """The values under their features' names; the mapping itself where none has an alias.

    An alias with points is found in objects, too: `user.id` in {"user": {"id": 1}}.

    Raises:
        ValueError: a value is there under two names; a sentence.
        InvalidInput: objects are nested too deeply, or hold a value twice.
    """
    outermost = {alias.partition(".")[0] for alias in name_of if "." in alias}
    if any(isinstance(values.get(name), Mapping) for name in outermost):
        values = flattened(values, values.keys() - outermost)
    if name_of.keys().isdisjoint(values):
        return values
    given: dict[str, str] = {}
    for key in values:
        name = name_of.get(key, key)
        if name in given:
            both = " and ".join(repr(original) for original in (given[name], key))
            raise ValueError(f"{name} is there twice, as {both}; send one of them")
        given[name] = key
    return {name: values[key] for name, key in given.items()}


def numbers_of_words(words: Iterable[bytes]) -> list[int] | None:
    """1 and 0 for yes, no, true, false ...; None where another word is among them."""
    numbers = [TRUTHS.get(word.decode(errors="replace").strip().lower()) for word in words]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None


def with_truths(value: Any) -> Any:
    """yes, no, true and false, words or JSON's, as 1 and 0, in lists too; anything else as it is."""
    if isinstance(value, list):
        return [with_truths(item) for item in value]
    if isinstance(value, str):
        return TRUTHS.get(value.strip().lower(), value)
    return int(value) if isinstance(value, bool) else value
