"""TFRecord framing: what a record value holds, and what a segment file is.

One framed example, all integers little-endian (tensorflow/core/lib/io/record_writer.cc):

    uint64  length
    uint32  masked CRC32C of the 8 length bytes
    byte    data[length]
    uint32  masked CRC32C of data

The mask (tensorflow/core/lib/hash/crc32c.h, from LevelDB's util/crc32c.h) is a rotation right by 15 bits plus a
constant, so that the CRC of bytes that hold CRCs stays a good CRC:

    masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8   (mod 2**32)

Framing is per-event work, so the loops below hold as little Python as they can: headers come from a table (lengths
repeat), masks are taken by numpy over the whole value.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from common.errors import DataLoss

HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8
_TABLE_LIMIT = 16_384


def masked_crc32c(data: bytes) -> int:
    """The masked CRC32C of `data`, in [0, 2**32)."""
    return masked(crc32c(data))


def masked(crc: int) -> int:
    """Of a CRC32C: how TensorFlow stores it."""
    return int(((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _header(length: int) -> bytes:
    length_bytes = struct.pack("<Q", length)
    return length_bytes + struct.pack("<I", masked_crc32c(length_bytes))


class _HeaderOfLength(dict[int, bytes]):
    def __missing__(self, length: int) -> bytes:
        header = _header(length)
        if len(self) < _TABLE_LIMIT:
            self[length] = header
        return header


class _LengthOfHeader(dict[bytes, int]):
    """Holds checked headers only; raises KeyError for a header whose checksum is wrong or that is cut short."""

    def __missing__(self, header: bytes) -> int:
        length = int.from_bytes(header[:8], "little")
        if header != _header(length):
            raise KeyError(header)
        if len(self) < _TABLE_LIMIT:
            self[header] = length
        return length


_header_of_length = _HeaderOfLength()
_length_of_header = _LengthOfHeader()


def _masked_crcs(examples: Sequence[bytes]) -> NDArray[np.uint32]:
    crcs = np.fromiter(map(crc32c, examples), dtype=np.uint32, count=len(examples))
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)


def frame(examples: Sequence[bytes]) -> bytes:
    """The examples framed one after the other: the value of a record, or a piece of a TFRecord file."""
    parts: list[bytes] = [b""] * (3 * len(examples))
    parts[0::3] = map(_header_of_length.__getitem__, map(len, examples))
    parts[1::3] = examples
    footers = _masked_crcs(examples).astype("<u4", copy=False).tobytes()
    parts[2::3] = chain.from_iterable(struct.iter_unpack("4s", footers))
    return b"".join(parts)


def cut(value: bytes | memoryview) -> tuple[list[bytes], NDArray[np.uint32]]:
    """The examples in `value` and their masked CRC32C, shape [example count], dtype uint32; both checksums verified.
    Raises DataLoss: a checksum is wrong or the value ends inside an example; says at which byte of `value`."""
    data = value if isinstance(value, bytes) else bytes(value)
    examples: list[bytes] = []
    footers: list[bytes] = []
    add_example, add_footer = examples.append, footers.append
    start, total = 0, len(data)
    try:
        while start < total:
            body = start + 12
            end = body + _length_of_header[data[start:body]]
            start = end + 4
            add_example(data[body:end])
            add_footer(data[end:start])
    except KeyError as error:
        raise _bad_header(data, start) from error
    if start != total:
        raise DataLoss(f"TFRecord bytes end at {total}, inside an example that should end at byte {start}")
    crcs = _masked_crcs(examples)
    wrong = np.flatnonzero(crcs != np.frombuffer(b"".join(footers), dtype="<u4"))
    if wrong.size:
        index = int(wrong[0])
        offset = sum(map(len, examples[:index])) + index * (HEADER_BYTES + FOOTER_BYTES)
        raise DataLoss(f"TFRecord example {index} at byte {offset} does not match the checksum of its data")
    return examples, crcs


@dataclass(frozen=True)
class Damaged:
    """A stretch of bytes that is no sound frame.

    Attributes:
        number: of the frame, sound frames counted too, from 0.
        at: the byte of the value at which it begins.
        content: its bytes, header and checksums included.
    """

    number: int
    at: int
    content: bytes

    @property
    def reason(self) -> str:
        place = f"record {self.number} at byte {self.at}"
        return f"{place} is damaged: its {len(self.content)} bytes do not match their checksums"


def cut_sound(value: bytes) -> tuple[dict[int, bytes], list[Damaged]]:
    """The sound examples by their number, and the stretches between them.

    Where a length is damaged, the next frame is looked for byte by byte: it is where a length matches its checksum and
    its data theirs. What lies before it counts as a single damaged record.
    """
    sound: dict[int, bytes] = {}
    damaged: list[Damaged] = []
    start = 0
    while start < len(value):
        end, example = _frame_at(value, start)
        number = len(sound) + len(damaged)
        if example is not None:
            sound[number] = example
        else:
            end = end or _next_frame(value, start + 1)
            damaged.append(Damaged(number, start, value[start:end]))
        start = end
    return sound, damaged


def _frame_at(value: bytes, start: int) -> tuple[int, bytes | None]:
    """Where the frame ends, 0 where that is not known; and its data where they match their checksum."""
    body = start + HEADER_BYTES
    if (length := int.from_bytes(value[start : start + 8], "little")) > len(value) - body - FOOTER_BYTES:
        return 0, None
    if value[start:body] != _header_of_length[length]:
        return 0, None
    end = body + length
    data, footer = value[body:end], value[end : end + FOOTER_BYTES]
    return end + FOOTER_BYTES, data if footer == struct.pack("<I", masked_crc32c(data)) else None


def _next_frame(value: bytes, start: int) -> int:
    """Where the next sound frame begins; the end where there is none."""
    return next(
        (at for at in range(start, len(value) - HEADER_BYTES) if _frame_at(value, at)[1] is not None), len(value)
    )


def count(value: bytes | memoryview) -> int:
    """How many examples `value` holds, from the lengths alone: nothing is copied, the data checksums are not looked at.
    Raises DataLoss: a length fails its checksum or the value ends inside an example; says at which byte of `value`."""
    start, total, examples = 0, len(value), 0
    while start < total:
        try:
            length = _length_of_header[bytes(value[start : start + HEADER_BYTES])]
        except KeyError as error:
            raise _bad_header(value, start) from error
        start += HEADER_BYTES + length + FOOTER_BYTES
        examples += 1
    if start != total:
        raise DataLoss(f"TFRecord bytes end at {total}, inside an example that should end at byte {start}")
    return examples


def _bad_header(value: bytes | memoryview, start: int) -> DataLoss:
    if len(value) - start < HEADER_BYTES:
        return DataLoss(f"TFRecord bytes end at {len(value)}, inside the header of the example at byte {start}")
    return DataLoss(f"TFRecord example at byte {start} has a length that does not match its checksum")
