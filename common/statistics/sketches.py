"""Counts, moments, quantiles, distinct values and frequent words of one field after another, in bounded memory.

Sketches are Apache DataSketches': KLL for quantiles, HyperLogLog for distinct values, frequent items for words; all of
them merge, so that the statistics of two windows are those of both. KLL draws at random: quantiles of the same values
may differ in the last places.
"""

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasketches
import numpy as np
from numpy.typing import NDArray

GRID = 100
"""Quantiles are given at 0, 1/GRID, ... 1."""
TOP_WORDS = 20
_KLL_K, _HLL_LOG_K, _WORDS_LOG_K = 200, 12, 10
"""Errors: about 1.3 % of rank, 1.6 % of a count, and words of a share above 1 in 500."""
_LONGEST_WORD = 100
Numbers = NDArray[np.number[Any]]


@dataclass
class FieldStatistics:
    """Of one field.

    Attributes:
        examples: that were looked at.
        missing: of these, without a value.
        values: more than the examples where it is a list.
        not_finite: values that are no finite number; in none of the others.
        mean, squares: of the values, and the sum of squared differences from it.
    """

    is_text: bool
    examples: int = 0
    missing: int = 0
    values: int = 0
    not_finite: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    quantiles: Any = field(default_factory=lambda: datasketches.kll_doubles_sketch(_KLL_K))
    distinct: Any = field(default_factory=lambda: datasketches.hll_sketch(_HLL_LOG_K))
    words: Any = field(default_factory=lambda: datasketches.frequent_strings_sketch(_WORDS_LOG_K))

    def add_examples(self, count: int, *, missing: int) -> None:
        self.examples += count
        self.missing += missing

    def add_words(self, words: Sequence[bytes]) -> None:
        self.values += len(words)
        for word, count in Counter(words).items():
            text = word[:_LONGEST_WORD].decode("utf-8", "replace")
            self.distinct.update(text)
            self.words.update(text, count)

    def add_numbers(self, given: Numbers) -> None:
        """Of any shape; distinct values are counted where they are whole numbers."""
        flat = np.asarray(given).ravel()
        if flat.dtype.kind in "iu":
            for number in np.unique(flat).tolist():
                self.distinct.update(number)
        values = flat.astype(np.float64)
        kept = values[np.isfinite(values)]
        self.not_finite += len(values) - len(kept)
        if not len(kept):
            return
        self.minimum, self.maximum = min(self.minimum, float(kept.min())), max(self.maximum, float(kept.max()))
        mean = float(kept.mean())
        self._merge_moments(len(kept), mean, float(np.square(kept - mean).sum()))
        self.quantiles.update(kept)

    def _merge_moments(self, count: int, mean: float, squares: float) -> None:
        """Chan, Golub, LeVeque: Updating formulae ... for computing sample variances (1979)."""
        if not count:
            return
        total, delta = self.values + count, mean - self.mean
        self.squares += squares + delta * delta * self.values * count / total
        self.mean += delta * count / total
        self.values = total

    def merge(self, other: "FieldStatistics") -> None:
        self.examples, self.missing = self.examples + other.examples, self.missing + other.missing
        self.not_finite += other.not_finite
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        if self.is_text:
            self.values += other.values
            self.words.merge(other.words)
        else:
            self._merge_moments(other.values, other.mean, other.squares)
            self.quantiles.merge(other.quantiles)
        both = datasketches.hll_union(_HLL_LOG_K)
        both.update(self.distinct)
        both.update(other.distinct)
        self.distinct = both.get_result()

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready: what people read, and under `sketches` what merges."""
        distinct = round(self.distinct.get_estimate())
        document: dict[str, Any] = {
            "kind": "text" if self.is_text else "number",
            "examples": self.examples,
            "missing": self.missing,
            "values": self.values,
            "sketches": {"distinct": _text_of(self.distinct.serialize_compact())},
        }
        if self.is_text:
            found = self.words.get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES)
            document |= {"distinct": distinct, "top": [[word, count] for word, count, *_ in found[:TOP_WORDS]]}
            document["sketches"]["words"] = _text_of(self.words.serialize())
            return document
        document |= {"not_finite": self.not_finite} | ({"distinct": distinct} if distinct else {})
        if self.values:
            shares = [place / GRID for place in range(GRID + 1)]
            document |= {
                "min": self.minimum,
                "max": self.maximum,
                "mean": self.mean,
                "deviation": math.sqrt(self.squares / self.values),
                "quantiles": [float(value) for value in self.quantiles.get_quantiles(shares)],
            }
        document["sketches"] |= {"quantiles": _text_of(self.quantiles.serialize()), "squares": self.squares}
        return document

    @classmethod
    def from_mapping(cls, document: Mapping[str, Any]) -> "FieldStatistics":
        """The inverse of to_mapping."""
        sketches, is_text = document["sketches"], document["kind"] == "text"
        found = cls(
            is_text, document["examples"], document["missing"], document["values"], document.get("not_finite", 0)
        )
        found.distinct = datasketches.hll_sketch.deserialize(base64.b64decode(sketches["distinct"]))
        if is_text:
            found.words = datasketches.frequent_strings_sketch.deserialize(base64.b64decode(sketches["words"]))
            return found
        found.quantiles = datasketches.kll_doubles_sketch.deserialize(base64.b64decode(sketches["quantiles"]))
        found.minimum, found.maximum = document.get("min", math.inf), document.get("max", -math.inf)
        found.mean, found.squares = document.get("mean", 0.0), sketches["squares"]
        return found


def to_document(fields: Mapping[str, FieldStatistics]) -> dict[str, Any]:
    """{"fields": {name: as to_mapping says}}."""
    return {"fields": {name: statistics.to_mapping() for name, statistics in fields.items()}}


def of_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, FieldStatistics]:
    """Of arrays whose first axis is the examples; texts are bytes or str."""
    fields = dict[str, FieldStatistics]()
    for name, array in arrays.items():
        is_text = array.dtype.kind in "OSU"
        statistics = fields[name] = FieldStatistics(is_text)
        statistics.add_examples(len(array), missing=0)
        if is_text:
            statistics.add_words(
                [word if isinstance(word, bytes) else str(word).encode() for word in array.ravel().tolist()]
            )
        else:
            statistics.add_numbers(array)
    return fields


def _text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()
