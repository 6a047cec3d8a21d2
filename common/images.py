"""What can be seen of an encoded image without decoding it: its format, whether its end is there, how large it is.

Sources: PNG (ISO/IEC 15948) 5.2 and 11.2.2, JPEG (ITU-T T.81) annex B, GIF89a 17 and 18, Windows BITMAPINFOHEADER.
"""

import re
from collections.abc import Callable, Mapping

FORMATS = ("jpeg", "png", "gif", "bmp")
LARGEST_PIXELS = 64 * 1024 * 1024
"""A larger image is refused: a few kilobytes of PNG can claim to be gigabytes of pixels."""
_MAGIC: Mapping[str, tuple[bytes, ...]] = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "bmp": (b"BM",),
}
_SHOWN_BYTES = 8
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_MARKERS_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd7\x01\xff]")
"""Of a segment or the end; in a scan ff 00 is a byte, and ff d0 to ff d7 separate its parts."""
_END_OF_IMAGE = 0xD9
_NO_PART = frozenset({*range(0x02, 0xC0), 0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xCB, 0xCD, 0xCE, 0xCF})
"""Markers that are reserved (T.81 table B.1), and those of frames that TensorFlow's decoder does not know: lossless and
hierarchical ones."""
_LEAST_BMP_HEADER = 40
"""BITMAPINFOHEADER's; the older one says its size in other places."""
_BITFIELDS, _MASKS = 3, bytes.fromhex("0000ff00 00ff0000 ff000000")
"""The masks of red, green and blue that mean the order in which a BMP lies anyway."""


def format_of_image(value: bytes) -> str | None:
    """By the first bytes; None for none of FORMATS."""
    return next((name for name, starts in _MAGIC.items() if value.startswith(starts)), None)


def fault_of_image(value: bytes, expected: str) -> str | None:
    """The rest of a sentence, None where nothing is seen. `expected` is one of FORMATS or "any"."""
    found = format_of_image(value)
    if found is None or expected not in ("any", found):
        wanted = f"a {expected} image" if expected != "any" else f"an image ({', '.join(FORMATS)})"
        if not value:
            return f"is empty, expected {wanted}"
        got = f"a {found} image" if found else f"{len(value)} bytes that begin with {value[:_SHOWN_BYTES].hex(' ')}"
        return f"is {got}, expected {wanted}"
    if _is_cut_off(value, found):
        return f"is a {found} image that is cut off after {len(value)} bytes"
    if found == "jpeg" and (at := _broken_jpeg(value)) is not None:
        return (
            f"is a jpeg image that is broken inside: {value[at : at + 2].hex(' ')} at byte {at} begins no part of one"
        )
    size = _SIZES[found](value)
    if size is None:
        return f"is a {found} image without a size in its header"
    if min(size) < 1 or size[0] * size[1] > LARGEST_PIXELS:
        return f"is a {found} image of {size[0]} x {size[1]} pixels, expected 1 to {LARGEST_PIXELS} pixels"
    if found == "bmp" and (fault := _bmp_fault(value)):
        return fault
    if found == "gif" and (drawn := _gif_frame_pixels(value)) > LARGEST_PIXELS:
        return f"is a gif image whose frames have {drawn} pixels, expected at most {LARGEST_PIXELS} pixels in all"
    return None


def _is_cut_off(value: bytes, image_format: str) -> bool:
    if image_format == "png":
        return value.rfind(b"IEND") < 0
    if image_format == "jpeg":
        return value.rfind(b"\xff\xd9") < 0
    return image_format == "bmp" and len(value) < int.from_bytes(value[2:6], "little")


def _png_size(value: bytes) -> tuple[int, int] | None:
    if len(value) < 24 or value[12:16] != b"IHDR":
        return None
    return int.from_bytes(value[16:20], "big"), int.from_bytes(value[20:24], "big")


def _gif_size(value: bytes) -> tuple[int, int] | None:
    return (int.from_bytes(value[6:8], "little"), int.from_bytes(value[8:10], "little")) if len(value) >= 13 else None


def _gif_frame_pixels(value: bytes) -> int:
    """Of all frames, as far as they are there: each says its own size, not what the header says, and the decoder holds
    all of them at once (GIF89a 15, 20 and 23)."""
    pixels, at = 0, 13 + _gif_colour_bytes(value[10])
    while at + 1 < len(value):
        if value[at] == 0x2C and at + 10 < len(value):
            width, height = (int.from_bytes(value[at + side : at + side + 2], "little") for side in (5, 7))
            pixels += width * height
            at += 11 + _gif_colour_bytes(value[at + 9])
        elif value[at] == 0x21:
            at += 2
        else:
            break
        while at < len(value) and value[at]:
            at += 1 + value[at]
        at += 1
    return pixels


def _gif_colour_bytes(flags: int) -> int:
    return 3 << ((flags & 0x07) + 1) if flags & 0x80 else 0


def _bmp_size(value: bytes) -> tuple[int, int] | None:
    if len(value) < 26:
        return None
    width = int.from_bytes(value[18:22], "little", signed=True)
    return width, abs(int.from_bytes(value[22:26], "little", signed=True))


def _bmp_fault(value: bytes) -> str | None:
    """TensorFlow's decoder looks at no table of colours and at no compression: it would see other pixels."""
    header, bits, compression, colours = (_number(value, at, size) for at, size in ((14, 4), (28, 2), (30, 4), (46, 4)))
    is_plain = compression == 0 or (compression == _BITFIELDS and bits == 32 and value[54:66] == _MASKS)
    if header < _LEAST_BMP_HEADER:
        return f"is a bmp image with a header of {header} bytes, expected {_LEAST_BMP_HEADER} or more"
    if bits not in (8, 24, 32) or not is_plain:
        return f"is a bmp image of {bits} bits a pixel in form {compression}, expected 8, 24 or 32 bits, not compressed"
    table = value[14 + header :][: 4 * min(colours or 256, 256)] if bits == 8 else b""
    if any(table[part::4] != bytes(range(len(table[part::4]))) for part in range(3)):
        return "is a bmp image with a table of colours, expected one of grays in order, or 24 or 32 bits a pixel"
    return None


def _number(value: bytes, at: int, size: int) -> int:
    return int.from_bytes(value[at : at + size], "little")


def jpeg_components(value: bytes) -> int:
    """Of the first frame: 1 for gray, 3 for colours, 4 for inks (CMYK); 0 where it does not say."""
    at = _jpeg_frame(value)
    return value[at + 9] if at is not None and at + 9 < len(value) else 0


def _jpeg_size(value: bytes) -> tuple[int, int] | None:
    at = _jpeg_frame(value)
    if at is None:
        return None
    return int.from_bytes(value[at + 7 : at + 9], "big"), int.from_bytes(value[at + 5 : at + 7], "big")


def _jpeg_frame(value: bytes) -> int | None:
    """Where the first frame header begins; walks the segments before it."""
    at = 2
    while at + 9 <= len(value) and value[at] == 0xFF:
        marker = value[at + 1]
        if marker == 0xFF:  # filling bytes may precede a marker
            at += 1
            continue
        if marker == 0x00:  # no segment: a decoder goes on behind these two bytes, wherever a length would lead
            return None
        if marker in _FRAME_MARKERS:
            return at
        at += 2 if marker in _MARKERS_WITHOUT_LENGTH else 2 + int.from_bytes(value[at + 2 : at + 4], "big")
    return None


def _broken_jpeg(value: bytes) -> int | None:
    """Where a marker stands that no decoder goes on behind, before the end of the image; None for nowhere seen.

    Between segments, and in a scan, whose bytes have 00 behind each ff (T.81 B.1.1.5), the next marker is looked for as
    a decoder does. What a scan's bits say stays unread.
    """
    at = 2
    while (found := _MARKER.search(value, at)) is not None:
        at, marker = found.start(), value[found.end() - 1]
        if marker == _END_OF_IMAGE:
            return None
        length = int.from_bytes(value[found.end() : found.end() + 2], "big")
        at = found.end() + length
        if marker in _NO_PART or length < 2 or at > len(value):
            return found.end() - 2
    return None


_SIZES: Mapping[str, Callable[[bytes], tuple[int, int] | None]] = {
    "png": _png_size,
    "jpeg": _jpeg_size,
    "gif": _gif_size,
    "bmp": _bmp_size,
}
