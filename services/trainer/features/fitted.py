"""What rounds have fitted, as the variables that a transform reads: its graph is the same whatever they hold.

| of                       | variables                                                                          |
|--------------------------|------------------------------------------------------------------------------------|
| a normalized numeric     | offset, scale: float32 [columns]                                                   |
| quantiles                | boundaries: float32 [a power of 2, less 1], infinite past the last; count: int32   |
| words that are learned   | fingerprints int64, words string, ids int32: [capacity], by rising fingerprint      |
| words by how rare they are | weights: float32 [ids]                                                           |

A vocabulary's capacity is a power of 2, at least 4096, or the most words that the definition allows where that is less.
So the shapes change once a vocabulary has doubled, and those of a small one never. A place past the last word holds the
largest fingerprint, no word and the id -1.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from common.definition.features import FeatureSpec, Indicator, Numeric, Quantiles
from common.definition.identity import learned_words_of
from common.errors import InvalidInput
from services.trainer.features.frequencies import Frequencies
from services.trainer.features.statistics import Boundaries, Fitted, Moments, Statistics
from services.trainer.features.words import Words

FINGERPRINTS = 2**63 - 1
_LEAST_CAPACITY = 4096
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
Arrays = dict[str, NDArray[np.generic]]


def capacity(count: int, most: int, *, least: int = _LEAST_CAPACITY) -> int:
    """How many words there is room for: enough for `count`, at least one."""
    return max(1, min(most, max(least, 1 << (count - 1).bit_length() if count else 1)))


class FittedValues:
    """The variables of some features. Those of others, and words that the definition gives, are not there."""

    def __init__(self, specs: Mapping[str, FeatureSpec], names: Iterable[str], statistics: Statistics) -> None:
        self._specs = {name: specs[name] for name in sorted(names) if name in statistics}
        self._by_path = {path: fitted_variable(path, array) for path, array in self._arrays(statistics).items()}

    @property
    def variables(self) -> list[tf.Variable]:
        """In order of name."""
        return [self._by_path[path] for path in sorted(self._by_path)]

    def of(self, name: str, part: str) -> tf.Tensor:
        return tf.convert_to_tensor(self._by_path[f"{name}/{part}"])

    def restate(self, statistics: Statistics) -> bool:
        """Has the variables hold these statistics. False where they have other shapes: then nothing changes."""
        arrays = self._arrays(statistics)
        if any(array.shape != tuple(self._by_path[path].shape) for path, array in arrays.items()):
            return False
        for path, array in arrays.items():
            self._by_path[path].assign(array)
        return True

    def _arrays(self, statistics: Statistics) -> Arrays:
        return {
            f"{name}/{part}": array
            for name, spec in self._specs.items()
            for part, array in _arrays_of(spec, statistics[name]).items()
        }


def fitted_variable(path: str, array: NDArray[np.generic]) -> tf.Variable:
    """One that no optimizer and no checkpoint knows of, and that is no parameter of the model: made past the scopes in
    which variables are counted and taken for a module's. Strings lie on the processor."""
    with tf.init_scope(), tf.device("CPU:0" if array.dtype == object else None):
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        name = "/".join(_NO_NAME.sub("_", part) for part in ("fitted", *path.split("/")))
        return ResourceVariable(tf.constant(array, dtype), trainable=False, name=name)


def word_ids(words: tf.Tensor, fingerprints: tf.Tensor, known: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Words to int32 ids by binary search over fingerprints, then a comparison with the word; -1 for an unknown one."""
    flat = tf.reshape(words, [-1])
    found = tf.searchsorted(fingerprints, tf.strings.to_hash_bucket_fast(flat, FINGERPRINTS))
    found = tf.minimum(found, fingerprints.shape[0] - 1)
    is_known = tf.equal(tf.gather(known, found), flat)
    return tf.reshape(tf.where(is_known, tf.gather(ids, found), -1), tf.shape(words))


def word_arrays(words: Sequence[bytes], size: int) -> Arrays:
    """What `word_ids` looks words up in, `size` places, at least as many as there are words. Raises InvalidInput: two
    words have the same fingerprint."""
    given = tf.constant(list(words), tf.string, shape=[len(words)])
    keys = tf.strings.to_hash_bucket_fast(given, FINGERPRINTS).numpy()
    if len(np.unique(keys)) != len(words):
        raise InvalidInput("two words of a vocabulary have the same fingerprint, remove one of them")
    order = np.argsort(keys)
    fingerprints = np.full(size, FINGERPRINTS, np.int64)
    fingerprints[: len(words)] = keys[order]
    known = np.full(size, b"", object)
    known[: len(words)] = [words[index] for index in order]
    ids = np.full(size, -1, np.int32)
    ids[: len(words)] = order
    return {"fingerprints": fingerprints, "words": known, "ids": ids}


def buckets(values: tf.Tensor, boundaries: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """int32: how many of the first `count` boundaries are at most the value; all of them for NaN, as Bucketize has it.

    A binary search whose steps any engine has. Whole numbers are compared as float32, as by Bucketize.
    """
    values = values if values.dtype.is_floating else tf.cast(values, tf.float32)
    boundaries = tf.cast(boundaries, values.dtype)
    found = tf.zeros_like(values, tf.int32)
    step = (boundaries.shape[0] + 1) // 2
    while step:
        is_below = tf.less(values, tf.gather(boundaries, found + (step - 1)))
        found = tf.where(is_below, found, found + step)
        step //= 2
    return tf.minimum(found, count)


def _arrays_of(spec: FeatureSpec, fitted: Fitted) -> Arrays:
    match spec, fitted:
        case Numeric(), Moments():
            is_zscore = spec.normalize == "zscore"
            offset = fitted.mean if is_zscore else fitted.minimum
            size = fitted.deviation if is_zscore else fitted.maximum - fitted.minimum
            scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
            return {"offset": offset.astype(np.float32), "scale": scale.astype(np.float32)}
        case Quantiles(), Boundaries(values):
            boundaries = np.full((1 << (spec.quantiles - 1).bit_length()) - 1, np.inf, np.float32)
            boundaries[: len(values)] = values
            return {"boundaries": boundaries, "count": np.array(len(values), np.int32)}
        case Indicator(), Frequencies():
            return {"weights": fitted.weights}
    learned = learned_words_of(spec)
    assert learned is not None, f"nothing is fitted of {spec.name}"
    assert isinstance(fitted, Words)
    return word_arrays(fitted.words, capacity(len(fitted.words), learned.max_words))
