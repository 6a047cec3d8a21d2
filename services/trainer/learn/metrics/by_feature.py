"""Which part of a slice each example belongs to, as `evaluation.slices` cuts it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.definition.evaluation import SliceBy

Values = tuple[str, ...]
"""One text for each feature of a SliceBy."""
Raw = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Part:
    """Attributes:
    values: empty for the others, those values that are not among the most frequent.
    codes: int32, of the examples that belong to it.
    """

    values: Values
    codes: NDArray[np.int32]


class Cut:
    """The values of one SliceBy over all examples, held out and trained, as numbers."""

    def __init__(self, by: SliceBy, wanted: Sequence[Values] = ()) -> None:
        """`wanted`: values that have their own metrics however rare they are."""
        self.by, self._wanted = by, set(wanted)
        self._known: dict[Values, int] = {}

    def codes(self, raw: Raw) -> NDArray[np.int32]:
        """int32 [n] of n examples' raw features, each [n] or [n, 1]."""
        columns = [self._texts(np.asarray(raw[name]).reshape(-1)) for name in self.by.by]
        each = [np.unique(column, return_inverse=True) for column in columns]
        pairs = np.stack([inverse for _, inverse in each], axis=1)
        rows, inverse = np.unique(pairs, axis=0, return_inverse=True)
        found = [tuple(str(each[place][0][index]) for place, index in enumerate(row)) for row in rows.tolist()]
        codes = [self._known.setdefault(values, len(self._known)) for values in found]
        return np.array(codes, np.int32)[inverse.reshape(-1)] if codes else np.zeros(0, np.int32)

    def parts(self, codes: NDArray[np.int32]) -> Iterator[Part]:
        """Of the held-out examples' codes: the most frequent values, then the others together if there are any."""
        counts = np.bincount(codes, minlength=len(self._known))
        often = sorted(self._known, key=lambda values: (-counts[self._known[values]], values))
        often = [values for values in often if counts[self._known[values]]]
        own = often[: self.by.most] + [values for values in often[self.by.most :] if values in self._wanted]
        for values in own:
            yield Part(values, np.array([self._known[values]], np.int32))
        rest = [self._known[values] for values in self._known if values not in own]
        if len(often) > len(own):
            yield Part((), np.array(rest, np.int32))

    def _texts(self, column: NDArray[np.generic]) -> NDArray[np.str_]:
        if self.by.boundaries:
            names = np.array([*self.by.parts, "not a number"])
            numbers = column.astype(np.float64)
            places = np.searchsorted(np.array(self.by.boundaries), numbers, side="right")
            return names[np.where(np.isnan(numbers), len(names) - 1, places)]
        if column.dtype.kind in "OS":
            return np.array([_text(value) for value in column.tolist()], str)
        return column.astype(str)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
