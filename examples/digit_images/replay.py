"""scikit-learn's digits as PNG files (ISO/IEC 15948), events of stream.yaml."""

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from examples.small_digits import replay


def events(limit: int | None = None, *, is_turned: bool = False) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None). Turned: columns for rows, and white on black becomes black on white."""
    for event in replay.events(limit):
        pixels = [int(value * 255 / 16) for value in event["pixels"]]
        if is_turned:
            pixels = [255 - pixels[8 * column + row] for row in range(8) for column in range(8)]
        yield {"image": {"b64": base64.b64encode(_png(pixels)).decode()}, "digit": event["digit"]}


def _png(pixels: Sequence[int]) -> bytes:
    """8 x 8, gray, 8 bits."""
    lines = b"".join(b"\0" + bytes(pixels[row : row + 8]) for row in range(0, 64, 8))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
