"""Batches of lists that are about as long (`training.bucket_by_sequence_length`), as tf.data makes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.batches import Bucketing
from services.trainer.families.model import BuiltModel
from services.trainer.families.module_inputs import is_list
from services.trainer.families.port import Columns
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.features.transform import ids_of


class Buckets:
    """Which rows go together, and where their lists end.

    A list's length is that up to its last value which is no filler. Columns that are as wide as the feature's in a
    block are cut with it, to the longest of them in the batch: lists which belong together stay so. Raises
    DefinitionFailedError: the network takes no such list, or one that is not filled up."""

    def __init__(self, section: Bucketing, model: BuiltModel) -> None:
        self._section, specs, inputs = section, model.definition.features, model.wiring.columns
        self._feature = ids_of(specs, section.feature) if section.feature in specs else section.feature
        lists = {
            name
            for name, tensor in inputs.items()
            if len(tensor.shape) > 1 and tensor.shape[1] is None and not is_list(tensor)
        }
        if self._feature not in lists:
            raise DefinitionFailedError(
                f"training: bucket_by_sequence_length names {section.feature!r}, expected an input that is filled up: "
                f"{', '.join(sorted(lists)) or 'there is none'}"
            )
        self._lists = sorted(lists)
        self.begin()

    def begin(self) -> None:
        self._batches = self._filled = self._computed = self._without = 0

    def batches(self, columns: Columns, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Rows and bounds: a bucket's batch comes where its last row does, in the given order, and what is left at the
        end by bucket."""
        column = columns[self._feature]
        lengths = _lengths(column).numpy()[order]
        places, bounds = by_length(lengths, self._section.boundaries, self._section.batch_sizes)
        longest = np.maximum.reduceat(np.maximum(lengths[places], 1), bounds[:-1]) if len(places) else places
        self._batches += len(bounds) - 1
        self._filled += int(lengths.sum())
        self._computed += int((longest * np.diff(bounds)).sum())
        self._without += len(order) * max(1, int(column.shape[1]))
        return order[places], bounds

    def cut(self, parts: list[dict[str, tf.Tensor]]) -> list[dict[str, tf.Tensor]]:
        """A batch's columns, labels and weights, without what only longer lists of the block need."""
        columns, *rest = parts
        widths = {name: tf.shape(columns[name])[1] for name in self._lists}
        width = widths[self._feature]
        needed = [tf.where(widths[name] == width, tf.reduce_max(_lengths(columns[name])), 0) for name in self._lists]
        longest = tf.maximum(tf.reduce_max(tf.stack(needed)), 1)
        cut = {name: columns[name][:, : tf.where(widths[name] == width, longest, widths[name])] for name in self._lists}
        return [{**columns, **cut}, *rest]

    def facts(self) -> dict[str, Any]:
        """Of the round: batches, steps of lists that hold values, steps that were computed, and those that lists filled
        up to the longest of their block would have been."""
        return {
            "feature": self._feature,
            "batches": self._batches,
            "steps": self._filled,
            "padded_steps": self._computed - self._filled,
            "padded_steps_saved": self._without - self._computed,
        }


def by_length(
    lengths: NDArray[Any], boundaries: Sequence[int], batch_sizes: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Places in `lengths` and bounds of the batches, as tf.data.Dataset.bucket_by_sequence_length gives them."""
    waiting = [list[int]() for _ in batch_sizes]
    order, bounds = list[int](), [0]

    def give(number: int) -> None:
        order.extend(waiting[number])
        bounds.append(len(order))
        waiting[number] = []

    for place, number in enumerate(np.searchsorted(boundaries, lengths, side="right").tolist()):
        waiting[number].append(place)
        if len(waiting[number]) == batch_sizes[number]:
            give(number)
    for number in range(len(waiting)):
        if waiting[number]:
            give(number)
    return np.array(order, np.int64), np.array(bounds, np.int32)


def _lengths(column: tf.Tensor) -> tf.Tensor:
    """int32 [n]: up to the last step that holds a value; a filler is -1, 0.0, NaN, "" or False."""
    dtype = column.dtype
    filler = "" if dtype == tf.string else False if dtype == tf.bool else 0.0 if dtype.is_floating else -1
    is_there = tf.not_equal(column, tf.constant(filler, dtype))
    if dtype.is_floating:
        is_there &= ~tf.math.is_nan(column)
    if is_there.shape.rank > 2:
        is_there = tf.reduce_any(is_there, axis=list(range(2, is_there.shape.rank)))
    places = tf.range(1, tf.shape(column)[1] + 1)
    return tf.maximum(tf.reduce_max(tf.where(is_there, places, 0), axis=1), 0)  # of no step at all the lowest number
