"""What each row of a table is, in words: for TensorBoard's projector."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any


def labels_of(meaning: Mapping[str, Any], path: str, count: int, *, most: int | None = None) -> list[str]:
    """What each of `count` rows of a variable is, in their order: the word, the id, or its number where neither is
    known.

    One line each: tabs and line ends in words are written as spaces.

    Args:
        meaning: identity.to_mapping's, as a checkpoint holds it.
        most: how many of the first rows have a label; a table may have more rows than names fit into memory.
    """
    stored = meaning.get("variables", {}).get(path)
    runs = stored["axes"][0] if stored else ()
    if sum(run["count"] for run in runs) != count:
        return [str(number) for number in range(count if most is None else min(count, most))]
    return list(islice(_labels(runs), most))


def _labels(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run in runs:
        kind, keys = run["label"][0] if run["label"] else "", run["keys"]
        for number in range(run["count"]):
            label = " ".join(str(keys[number]).split()) or kind if keys else f"{kind} {number}"
            yield label.encode("utf-8", "replace").decode()
