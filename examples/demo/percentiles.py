"""Percentiles of latencies."""

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of ascending values, with three places; None of nothing."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)
