"""Whether a model's rows depend on each other: a running sum, a share of the whole, a normalisation over the batch.

Requests to such a signature must not share a call, since each would be answered from the rows of strangers. A few rows
are run alone and together when a version is loaded; outputs that differ by more than rounding tell. Nothing found is no
proof: the rows tried may be too alike.
"""

from collections.abc import Mapping

import numpy as np

from services.serving.batching.models import Model
from services.serving.wire.prediction import Arrays, RequestFailed

MOST_ROWS = 3
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-2, 1e-3
"""Wide enough for kernels that round differently by batch size, in half precision too."""


def dependent_output(model: Model, signature: str, inputs: Arrays) -> str:
    """The name of an output whose rows differ between together and alone; "" for none, or where it is undecided.

    Args:
        inputs: two rows or more of a signature that takes any number of them.
    """
    rows = min(len(next(iter(inputs.values()))), MOST_ROWS)
    try:
        together = model.run(signature, {name: array[:rows] for name, array in inputs.items()})
        alone = [
            model.run(signature, {name: array[row : row + 1] for name, array in inputs.items()}) for row in range(rows)
        ]
        again = model.run(signature, {name: array[:1] for name, array in inputs.items()})
    except RequestFailed:
        return ""
    compared = [name for name, array in together.items() if array.dtype.kind == "f"] or list(together)
    for name in compared:
        parts = [outputs[name] for outputs in alone]
        if together[name].shape[:1] != (rows,) or any(part.shape != (1, *together[name].shape[1:]) for part in parts):
            continue  # Without rows there is nothing to merge, which is found out when it is tried.
        if not _is_same(again[name], parts[0]):
            continue  # It draws its answers.
        if not _is_same(together[name], np.concatenate(parts)):
            return name
    return ""


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    return bool(
        np.allclose(
            first.astype(np.float64),
            second.astype(np.float64),
            rtol=_RELATIVE_TOLERANCE,
            atol=_ABSOLUTE_TOLERANCE,
            equal_nan=True,
        )
    )


def varied(zeros: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Made-up inputs of the same shapes whose rows differ: small numbers, 0 and 1; strings stay empty."""
    random = np.random.default_rng(11)
    found: dict[str, np.ndarray] = {}
    for name, array in zeros.items():
        if array.dtype.kind in "iub":
            found[name] = random.integers(0, 2, array.shape).astype(array.dtype)
        elif array.dtype.kind in "fV":
            found[name] = random.standard_normal(array.shape).astype(array.dtype)
        else:
            found[name] = array
    return found
