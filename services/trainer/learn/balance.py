"""Rows of rarer classes, taken again (`training.balance`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer import determinism


def taken_again(
    classes: NDArray[Any], is_labelled: NDArray[np.bool_], *, at_most: int, seed: int, pass_index: int, block_index: int
) -> NDArray[np.int64]:
    """Places that are taken again, so that each class has as many as the most frequent: each of its rows equally often,
    the rest drawn without replacement. A place is taken `at_most` times in all, and one without a label once."""
    random = determinism.drawing(seed, pass_index=pass_index, block_index=block_index)
    codes = np.unique(classes, return_inverse=True)[1]
    members = [np.flatnonzero((codes == code) & is_labelled) for code in range(codes.max(initial=-1) + 1)]
    most = max(map(len, members), default=0)
    found = [np.zeros(0, np.int64)]
    for own in filter(len, members):
        wanted = min(most, at_most * len(own)) - len(own)
        found += [np.tile(own, wanted // len(own)), random.permutation(own)[: wanted % len(own)]]
    return np.concatenate(found)
