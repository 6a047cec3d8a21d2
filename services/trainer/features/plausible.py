"""Which values of a column may shape its statistics. One event of 3.4e38 must not squash a feature for ever.

A value is left out when it is no finite number, when its square no float32 holds, or when it lies more than FARTHEST
times farther from the column's median than 99 % of the values that are not at the median. Heavy tails stay in: of
100,000 log-normal values with a deviation of 2 the farthest lies about 50 times farther. What a single short block
cannot show is judged by what earlier blocks were like.
"""

import numpy as np
from numpy.typing import NDArray

FARTHEST = 1000.0
LARGEST = 1e18
_USUAL_SHARE = 0.99
_ENOUGH = 10
"""Values away from the median from which a block can judge alone."""
_SUSPICIOUS = 20.0
"""Deviations from the mean below which nothing of a long column can be implausible."""
_LONG = 1000
_DEVIATIONS_OF_USUAL = 2.5
"""About where 99 % of a normal column lies."""
Spread = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""(count, mean, standard deviation) of each column before."""


def plausible(values: NDArray[np.float64], before: Spread | None = None) -> NDArray[np.bool_]:
    """Values [n, columns] to a mask of the same shape."""
    with np.errstate(invalid="ignore"):
        taken: NDArray[np.bool_] = np.abs(values) <= LARGEST
    for column in _suspicious(values, taken):
        rows = np.flatnonzero(taken[:, column])
        known = tuple(float(part[column]) for part in before) if before else (0.0, 0.0, 0.0)
        taken[rows[~_near(values[rows, column], *known)], column] = False
    return taken


def _suspicious(values: NDArray[np.float64], taken: NDArray[np.bool_]) -> list[int]:
    """Columns that need a closer look: of a long plain one the farthest value says that nothing is wrong."""
    if not len(values):
        return []
    if len(values) < _LONG:
        return list(range(values.shape[1]))
    sure = values if taken.all() else np.where(taken, values, 0.0)
    mean, deviation = sure.mean(axis=0), sure.std(axis=0)
    farthest = np.maximum(sure.max(axis=0) - mean, mean - sure.min(axis=0))
    return [int(column) for column in np.flatnonzero((farthest > _SUSPICIOUS * deviation) | ~taken.all(axis=0))]


def _near(values: NDArray[np.float64], count: float, mean: float, deviation: float) -> NDArray[np.bool_]:
    if not len(values):
        return np.zeros(0, np.bool_)
    ordered = np.sort(values)
    away = np.abs(values - ordered[(len(ordered) - 1) // 2])
    unequal = np.sort(away[away > 0])
    if not len(unequal):
        return np.ones(len(values), np.bool_)
    usual = unequal[int(_USUAL_SHARE * (len(unequal) - 1))]
    near: NDArray[np.bool_] = away <= FARTHEST * usual
    if len(unequal) < _ENOUGH and count >= _LONG and deviation > 0:
        near &= np.abs(values - mean) <= FARTHEST * _DEVIATIONS_OF_USUAL * deviation
    return near
