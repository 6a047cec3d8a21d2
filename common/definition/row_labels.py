"""What each row of a table is, in words: for TensorBoard's projector."""

from collections.abc import Mapping
from typing import Any


def labels_of(meaning: Mapping[str, Any], path: str, count: int) -> list[str]:
    """What each of `count` rows of a variable is, in their order: the word, the id, or its number where nobody knows.

    One line each: tabs and line ends in words are written as spaces.

    Args:
        meaning: identity.to_mapping's, as a checkpoint holds it.
    """
    stored = meaning.get("variables", {}).get(path)
    labels: list[str] = []
    for run in stored["axes"][0] if stored else ():
        kind = run["label"][0] if run["label"] else ""
        keys = run["keys"] or [f"{kind} {number}" for number in range(run["count"])]
        labels += [" ".join(str(key).split()) or kind for key in keys]
    labels = [label.encode("utf-8", "replace").decode() for label in labels]
    return labels if len(labels) == count else [str(number) for number in range(count)]
