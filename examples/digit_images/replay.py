"""scikit-learn's digits as image files, PNG and JPEG by turns, events of stream.yaml."""

import base64
import io
from collections.abc import Iterator
from typing import Any

from PIL import Image

from examples.small_digits import replay

_FORMATS = ("PNG", "JPEG")


def events(limit: int | None = None, *, is_turned: bool = False) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None). Turned: columns for rows, and white on black becomes black on white."""
    for number, event in enumerate(replay.events(limit)):
        pixels = [int(value * 255 / 16) for value in event["pixels"]]
        if is_turned:
            pixels = [255 - pixels[8 * column + row] for row in range(8) for column in range(8)]
        file = io.BytesIO()
        Image.frombytes("L", (8, 8), bytes(pixels)).save(file, _FORMATS[number % 2], quality=95)
        yield {"image": {"b64": base64.b64encode(file.getvalue()).decode()}, "digit": event["digit"]}
