"""Which examples are held out: each has a key of 64 bits, and those whose seeded hash of it is small enough are.

The key is of where an example is in the log, or of what it has to stay together with. So an example that is read
again, in other blocks or by another trainer, falls on the same side; nothing about it needs saving.
"""

from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidInput

Keys = NDArray[np.uint64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def position_keys(records: Sequence[tuple[int, int, int]]) -> Keys:
    """One for each example of records that are given as (partition, offset, examples), in their order.

    Of the partition, the offset, and the example's place within the record.
    """
    places = np.array(records, np.int64).reshape(-1, 3)
    partitions, offsets, counts = places.T
    of_records = splitmix64(splitmix64(partitions.view(np.uint64)) ^ offsets.astype(np.uint64))
    begins = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(begins, counts)
    return splitmix64(np.repeat(of_records, counts) ^ within.astype(np.uint64))


def group_keys(values: NDArray[Any]) -> Keys:
    """Of each int64 its bits, of each string its CRC32C."""
    flat = values.reshape(-1)
    if flat.dtype == np.int64:
        return flat.view(np.uint64)
    return np.array([google_crc32c.value(text) for text in flat.tolist()], np.uint64)


def holdout_mask(keys: Keys, *, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which examples are held out: splitmix64(key XOR seed) < fraction * 2^64. Shape of `keys`.

    splitmix64 as in Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014). Raises InvalidInput: the
    fraction is not in [0, 1)."""
    if not 0.0 <= fraction < 1.0:
        raise InvalidInput(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    threshold = np.uint64(int(fraction * 2.0**64))
    return splitmix64(keys ^ np.uint64(seed % 2**64)) < threshold


def splitmix64(states: Keys) -> Keys:
    """The first output of a splitmix64 generator for each state, same shape."""
    mixed = states + _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
