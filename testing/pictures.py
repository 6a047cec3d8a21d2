"""Small images made by hand, for tests without an image library."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An 8-bit PNG of gray [height, width] or coloured [height, width, 3] pixels (ISO/IEC 15948)."""
    height, width = pixels.shape[:2]
    colour = 0 if pixels.ndim == 2 else 2
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, chunks))


def chunk(part: tuple[bytes, bytes]) -> bytes:
    """(name, data) as it stands in a PNG."""
    name, data = part
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def broken_inside(image: bytes) -> bytes:
    """The same with its middle overwritten: begin and end look right, and no decoder reads it."""
    middle = len(image) // 2
    return image[: middle - 4] + b"\x00" * 8 + image[middle + 4 :]
