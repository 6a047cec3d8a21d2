"""How many of the held-out events were trained on as well. Events are equal where every feature of the stream is;
labels, the weight and the event time do not count."""

import math

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.schema import Feature, Schema
from services.trainer.data.holdout import Keys, splitmix64
from services.trainer.features.parsing import Raw, is_padding
from services.trainer.rounds.prepared import PreparedBlock

_HASHES = 2**63 - 1
_MOST_DISTINCT = 4_000_000


class EqualEvents:
    """Adds up the blocks of one pass. Memory holds 64 bits for each held-out event, and for each distinct
    trained event; past four million of these the counts are too small."""

    def __init__(self) -> None:
        self._trained = {name: _Distinct() for name in ("features", "event")}
        self._held_out: dict[str, list[Keys]] = {name: [] for name in self._trained}

    def add(self, block: PreparedBlock) -> None:
        of_block = {"features": block.equal, "event": splitmix64(block.equal ^ block.crcs)}
        for name, keys in of_block.items():
            self._held_out[name].append(keys[block.held_out_rows])
            self._trained[name].add(keys[block.trained_rows])

    def counts(self) -> dict[str, int]:
        """Of the held-out events, those that equal a trained one in their features, and in labels and all else too."""
        return {
            f"same_{name}": sum(int(np.isin(keys, trained.all()).sum()) for keys in self._held_out[name])
            for name, trained in self._trained.items()
        }


class _Distinct:
    """Keys that differ; sorted anew whenever they have doubled."""

    def __init__(self) -> None:
        self._known: Keys = np.zeros(0, np.uint64)
        self._new: list[Keys] = []
        self._new_count = 0

    def add(self, keys: Keys) -> None:
        if len(self._known) >= _MOST_DISTINCT:
            return
        self._new.append(keys)
        self._new_count += len(keys)
        if self._new_count > len(self._known):
            self.all()

    def all(self) -> Keys:
        if self._new:
            self._known = np.unique(np.concatenate([self._known, *self._new]))
            self._new, self._new_count = [], 0
        return self._known


def equal_keys(raw: Raw, schema: Schema, count: int) -> Keys:
    """uint64 [count]: the same for equal events, and hardly ever for others. Of features that are not decoded yet."""
    keys = np.zeros(count, np.uint64)
    for feature in schema.features:
        if feature.name not in (schema.weight, schema.event_time):
            keys = splitmix64(keys ^ _hashes(raw[feature.name], feature))
    return keys


def _hashes(values: tf.Tensor, feature: Feature) -> Keys:
    """uint64 [n]; the same for an event however far the lists of other events pad its own."""
    bits = _bits(values)
    if feature.is_scalar:
        return bits[:, 0].astype(np.uint64)
    lengths = np.full(len(bits), bits.shape[1])
    if feature.is_variable_length:
        lengths = np.logical_not(is_padding(values).numpy().reshape(bits.shape)).sum(axis=1)
    whole, row_bytes = bits.tobytes(), bits.shape[1] * bits.itemsize
    begins = (np.arange(len(bits)) * row_bytes).tolist()
    sizes = (lengths * bits.itemsize).tolist()
    rows = [whole[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    return _hashes_of_strings(tf.constant(rows, tf.string, shape=[len(rows)]))


def _bits(values: tf.Tensor) -> NDArray[np.unsignedinteger]:
    """Unsigned integers, two of any dtype equal where the values are: [n, values]."""
    if values.dtype == tf.string:
        found: NDArray[np.unsignedinteger] = _hashes_of_strings(values)
    elif values.dtype == tf.int64:
        found = values.numpy().view(np.uint64)
    else:
        found = (values.numpy() + np.float32(0)).view(np.uint32)  # the two zeros are equal
    return found.reshape(len(found), math.prod(found.shape[1:]))


def _hashes_of_strings(values: tf.Tensor) -> Keys:
    return np.asarray(tf.strings.to_hash_bucket_fast(values, _HASHES).numpy()).view(np.uint64)
