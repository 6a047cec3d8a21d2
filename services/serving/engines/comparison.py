"""How far two engines' outputs are from each other."""

from collections.abc import Mapping

import numpy as np


def compare(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    *,
    relative_tolerance: float,
    absolute_tolerance: float,
) -> tuple[float, str]:
    """The largest difference between two numbers, and the fault in words; "" when they agree.

    Names, shapes and types must be the same; whole numbers, booleans and strings too. NaN equals NaN, and an infinity
    itself; other numbers may differ by absolute_tolerance + relative_tolerance x |expected|.
    """
    if expected.keys() != found.keys():
        return 0.0, f"its outputs are {sorted(found)}, TensorFlow's {sorted(expected)}"
    largest = 0.0
    for name, array in expected.items():
        other = found[name]
        if (array.shape, array.dtype) != (other.shape, other.dtype):
            return largest, f"output {name} is {other.dtype} {other.shape}, TensorFlow's {array.dtype} {array.shape}"
        if array.dtype.kind not in "fcV":
            if array.tolist() != other.tolist():
                return largest, f"output {name} has other values"
            continue
        wide = np.complex128 if array.dtype.kind == "c" else np.float64
        a, b = array.astype(wide), other.astype(wide)
        finite = np.isfinite(a)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
            return largest, f"output {name} is not finite in other places"
        distances = np.abs(a[finite] - b[finite])
        distance = float(distances.max(initial=0.0))
        largest = max(largest, distance)
        if np.any(distances > absolute_tolerance + relative_tolerance * np.abs(a[finite])):
            return largest, f"output {name} differs by {distance:.2g}"
    return largest, ""
