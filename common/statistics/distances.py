"""How far two statistics of a field are apart. Plain Python over what sketches.py writes, so that it needs no library.

| distance       | numbers                                                     | texts                               |
|----------------|-------------------------------------------------------------|-------------------------------------|
| psi            | sum of (q - p) ln(q / p) over the tenths of the reference   | over its frequent words, and others |
| jensen_shannon | of the same shares, base 2: from 0 to 1                     | the same                            |
| wasserstein    | mean distance of equal quantiles, in the reference's        | -                                   |
|                | standard deviations                                         |                                     |

`drift` is none, some or large: PSI above 0.1 and 0.25, as is usual, and above three times what chance alone gives two
samples of these sizes (about (bins - 1) (1/n + 1/m): B. Yurdakul, Statistical properties of population stability index,
2018). `compare` takes other bounds of `large` by field.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from common.counted import counted

_SOME, _LARGE, _CHANCE = 0.1, 0.25, 3.0
_TENTHS, _MISSING = 10, 0.1
DRIFTS = ("none", "some", "large")
_LEAST = 1e-4
"""A share that stands for none, so that a logarithm is finite."""
Document = Mapping[str, Any]
Bounds = Mapping[str, float | None]
_NO_BOUNDS: Bounds = {}


def compare(reference: Document, other: Document, *, large: Bounds = _NO_BOUNDS) -> dict[str, dict[str, Any]]:
    """By field of either document (sketches.to_document): distances, and what is in one of them alone.

    Args:
        large: by field, the PSI above which its drift is large; None or no entry: 0.25.
    """
    ours, theirs = reference["fields"], other["fields"]
    names = dict.fromkeys((*ours, *theirs))
    return {name: _field(ours.get(name), theirs.get(name), large.get(name) or _LARGE) for name in names}


def sentences(distances: Mapping[str, Document], *, most: int = 8) -> list[str]:
    """What a person should know of `compare`, the furthest first: a sentence for each field that has drifted, or is
    missing in a tenth of the examples more or less; one sentence where there is none."""
    news = [(name, distance) for name, distance in distances.items() if _has_news(distance)]
    news.sort(key=lambda item: (-DRIFTS.index(item[1].get("drift", "none")), -item[1].get("psi", 0.0), item[0]))
    if news:
        more = [f"and {counted(len(news) - most, 'field')} more"] if len(news) > most else []
        return [_sentence(name, distance) for name, distance in news[:most]] + more
    known = [(distance["psi"], name) for name, distance in distances.items() if "psi" in distance]
    if not known:
        return ["no field has values on both sides, so nothing can be compared"]
    psi, name = max(known)
    return [f"no field has drifted: of {len(known)} the furthest is {name}, with a PSI of {psi:.2g}"]


def _has_news(distance: Document) -> bool:
    before, after = distance.get("missing", (0.0, 0.0))
    return distance.get("drift", "none") != "none" or "kinds" in distance or abs(after - before) > _MISSING


def _sentence(name: str, distance: Document) -> str:
    if "kinds" in distance:
        return f"{name} has changed its kind from {distance['kinds'][0]} to {distance['kinds'][1]}"
    parts = []
    if distance.get("drift", "none") != "none":
        much = "largely" if distance["drift"] == "large" else "somewhat"
        above = _LARGE if distance["drift"] == "large" else _SOME
        apart = (
            f", values lie {distance['wasserstein']:.2g} standard deviations apart" if "wasserstein" in distance else ""
        )
        parts.append(f"has drifted {much}: PSI {distance['psi']:.2g}, above {above:g}{apart}")
    before, after = distance["missing"]
    if abs(after - before) > _MISSING:
        parts.append(f"is missing in {after:.0%} of the examples, before in {before:.0%}")
    return f"{name} {', and '.join(parts)}"


def _field(reference: Document | None, other: Document | None, large: float) -> dict[str, Any]:
    if reference is None or other is None:
        return {"only_in": "other" if reference is None else "reference"}
    if reference["kind"] != other["kind"]:
        return {"kinds": [reference["kind"], other["kind"]]}
    missing = {"missing": [_share(document["missing"], document["examples"]) for document in (reference, other)]}
    if not reference["values"] or not other["values"]:
        return missing
    before, after = (_words if reference["kind"] == "text" else _tenths)(reference, other)
    psi = sum((q - p) * math.log(q / p) for p, q in zip(_positive(before), _positive(after), strict=True))
    chance = _CHANCE * (len(before) - 1) * (1 / reference["values"] + 1 / other["values"])
    drift = "large" if psi > max(large, chance) else "some" if psi > max(_SOME, chance) else "none"
    found: dict[str, Any] = {"psi": psi, "jensen_shannon": _jensen_shannon(before, after), "drift": drift, **missing}
    if reference["kind"] == "number":
        found["wasserstein"] = _wasserstein(reference, other)
    return found


def _tenths(reference: Document, other: Document) -> tuple[list[float], list[float]]:
    """Shares of both in the bins between the reference's tenths."""
    grid: Sequence[float] = reference["quantiles"]
    step = (len(grid) - 1) // _TENTHS
    edges = sorted(set(grid[step:-1:step]))
    found = []
    for document in (reference, other):
        below = [share_below(document["quantiles"], edge) for edge in edges]
        found.append([after - before for before, after in zip([0.0, *below], [*below, 1.0], strict=True)])
    return found[0], found[1]


def share_below(grid: Sequence[float], value: float) -> float:
    """Share of the values that are at most `value`, between two quantiles in a straight line."""
    place = bisect_right(grid, value)
    if place in (0, len(grid)):
        return float(place > 0)
    low, high = grid[place - 1], grid[place]
    return (place - 1 + (value - low) / (high - low)) / (len(grid) - 1)


def _words(reference: Document, other: Document) -> tuple[list[float], list[float]]:
    counts = [dict(document["top"]) for document in (reference, other)]
    named = list(dict.fromkeys((*counts[0], *counts[1])))
    shares = []
    for document, known in zip((reference, other), counts, strict=True):
        listed = [_share(known.get(word, 0), document["values"]) for word in named]
        shares.append([*listed, max(0.0, 1.0 - sum(listed))])
    return shares[0], shares[1]


def _positive(shares: Sequence[float]) -> list[float]:
    return [max(share, _LEAST) for share in shares]


def _jensen_shannon(reference: Sequence[float], other: Sequence[float]) -> float:
    def to_middle(shares: Sequence[float]) -> float:
        pairs = zip(shares, reference, other, strict=True)
        return sum(share * math.log2(2 * share / (p + q)) for share, p, q in pairs if share > 0)

    return max(0.0, (to_middle(reference) + to_middle(other)) / 2)


def _wasserstein(reference: Document, other: Document) -> float:
    pairs = list(zip(reference["quantiles"], other["quantiles"], strict=True))
    distance = sum(abs(p - q) for p, q in pairs) / len(pairs)
    return float(distance / (reference["deviation"] or 1.0))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
