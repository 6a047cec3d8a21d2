"""Events are equal where every feature of the stream is; labels, the weight and the event time do not count."""

import math

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.schema import Feature, Schema
from services.trainer.data.holdout import Keys, splitmix64
from services.trainer.features.parsing import Raw, is_padding

_HASHES = 2**63 - 1


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
