"""Whether what an example is answered depends on the others of its batch: serving makes it of requests as they come."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.export.arrays import Arrays


def by_neighbours(together: Arrays, alone: Sequence[Arrays], tolerance: float) -> str:
    """A sentence about the output that differs most; empty where none does.

    Args:
        together: the outputs of all examples, [examples, ...]; others are not looked at.
        alone: those of each by itself, [1, ...], in the same order.
        tolerance: relative and absolute.
    """
    found = [
        (float(distance[place]), name, float(ours[place]), float(theirs[place]))
        for name, theirs in sorted(together.items())
        for ours in [_rows(name, alone)]
        if theirs.dtype.kind == "f" and ours.shape == theirs.shape and theirs.size
        for distance in [np.nan_to_num(np.abs(ours - theirs) - tolerance * np.abs(ours))]
        for place in [np.unravel_index(np.argmax(distance), distance.shape)]
    ]
    distance, name, ours, theirs = max(found, default=(0.0, "", 0.0, 0.0))
    if distance <= tolerance:
        return ""
    return (
        f"{name} of an example is {ours:.4g} alone and {theirs:.4g} beside {len(alone) - 1} others: serving puts the "
        f"requests of many into a batch, so an answer would depend on who else asks. Have a list's mask or length be "
        f"an input, give an Embedding with mask_zero ids + 1 (what a list lacks is -1), and take no mean, maximum or "
        f"softmax over the batch"
    )


def _rows(name: str, alone: Sequence[Arrays]) -> NDArray[Any]:
    """[examples, ...]; of none, where they do not fit together."""
    parts = [rows[name] for rows in alone]
    if any(part.shape[:1] != (1,) or part.shape != parts[0].shape for part in parts):
        return np.zeros(0)
    return np.concatenate(parts)
