"""scikit-learn's 1,797 digits as events of stream.yaml, in the file's order (writers mixed)."""

import gzip
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None); pixels as 64 floats from 0 to 16, row by row.

    Raises:
        FileNotFoundError: scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("scikit-learn is not installed; `make install` installs it")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as lines:
        for _, line in zip(range(limit or 1_000_000), lines, strict=False):
            *pixels, digit = line.split(",")
            yield {"pixels": [float(pixel) for pixel in pixels], "digit": int(digit)}
