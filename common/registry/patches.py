"""The difference between two files of equal size, for a table of which a round touched some rows.

A patch is the zlib stream of: the count of blocks that differ (uint64); for each, its distance from the block before,
in blocks of 64 bytes (uint32); their bytes, the last block of a file filled up with zeros. All little-endian.
"""

import hashlib
import os
import zlib
from collections.abc import Sequence
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss

SMALLEST_FILE_BYTES = 4 * 1024 * 1024
"""A smaller file travels whole: to look for a patch takes longer than it saves."""
GENTLE_BYTES = 32 * 1024
"""Of one write. Linux keeps what one write(2) brings in one piece of memory (a folio), up to megabytes, and copies
several of them to a process that later reads a big part of the file at once, during which no other thread gets
the core, of any priority: 31 ms for a file written by the megabyte, 1.4 ms for a file written like this. TensorFlow
reads a variable with one call."""
SAME = zlib.compress(bytes(8), 0)
"""The patch between equal files."""
BLOCK_BYTES, _LOOKS = 64, 64
PIECE_BYTES = 1024 * 1024
_SAMPLE_BYTES, _WORTH_IT = 16 * 1024, 0.8
"""Weights hardly get smaller: to try it with all of them takes longer than the comparison."""
_LARGEST_SHARE = 4
_LARGEST_PATCH_BYTES = 64 * 1024 * 1024


def patch_between(base: BinaryIO, file: BinaryIO, size_bytes: int) -> bytes | None:
    """What makes `file` of `base`, both of that size and at their start. None where more than a quarter of the file, or
    64 MiB, differs: then the whole file travels. Holds 8 MiB and the patch in memory."""
    if _are_apart(base, file, size_bytes):
        return None
    limit = _largest(size_bytes) // BLOCK_BYTES
    places: list[NDArray[np.int64]] = []
    blocks: list[NDArray[np.uint8]] = []
    count = 0
    old, new = (np.zeros(PIECE_BYTES, np.uint8) for _ in range(2))
    words = np.zeros(PIECE_BYTES // 8, np.bool_)
    for start in range(0, size_bytes, PIECE_BYTES):
        if _read(base, old) != _read(file, new):
            return None
        np.not_equal(old.view(np.uint64), new.view(np.uint64), out=words)
        differing = np.flatnonzero(words.view(np.uint64))  # of a block's eight words, eight bytes, one is true
        count += differing.size
        if count > limit:
            return None
        places.append(differing + start // BLOCK_BYTES)
        blocks.append(new.reshape(-1, BLOCK_BYTES)[differing])
    return _packed(np.concatenate(places), np.concatenate(blocks)) if places else SAME


def joined(patches: Sequence[bytes], size_bytes: int) -> bytes | None:
    """The patch that does what these do one after the other, of files of that size. None where it would be too large.
    Raises DataLoss: one of them is no patch of such a file."""
    unpacked = [blocks_of(patch, size_bytes) for patch in reversed(patches)]
    places, first = np.unique(np.concatenate([each for each, _ in unpacked]), return_index=True)
    if places.size > _largest(size_bytes) // BLOCK_BYTES:
        return None
    return _packed(places, np.concatenate([each for _, each in unpacked])[first])


def _packed(places: NDArray[np.int64], blocks: NDArray[np.uint8]) -> bytes:
    """Of blocks in ascending order."""
    distances = np.diff(places, prepend=0).astype("<u4")
    content = b"".join([places.size.to_bytes(8, "little"), distances.tobytes(), blocks.tobytes()])
    sample = content[len(content) // 2 :][:_SAMPLE_BYTES]
    is_worth_it = len(zlib.compress(sample, 1)) < _WORTH_IT * len(sample)
    return zlib.compress(content, 1 if is_worth_it else 0)


def _are_apart(base: BinaryIO, file: BinaryIO, size_bytes: int) -> bool:
    """Whether most of some blocks differ. To find that out from a quarter of 300 MB takes 0.1 s of a core."""
    differing = 0
    for number in range(_LOOKS):
        offset = size_bytes // BLOCK_BYTES * number // _LOOKS * BLOCK_BYTES
        base.seek(offset)
        file.seek(offset)
        differing += base.read(BLOCK_BYTES) != file.read(BLOCK_BYTES)
    base.seek(0)
    file.seek(0)
    return differing > _LOOKS // 2


def patched(
    file: BufferedRandom, base: BinaryIO, patch: bytes, size_bytes: int, *, write_bytes: int = GENTLE_BYTES
) -> str:
    """Makes of an empty file, open to be read and written, the file of that size that the patch makes of the base.
    Returns its SHA-256 in hex.

    Args:
        write_bytes: of one write; PIECE_BYTES where no process reads much of the file at once takes a fifth less time.

    Raises:
        DataLoss: this is no patch of such a file.
    """
    places, blocks = blocks_of(patch, size_bytes)
    piece, hashed = np.zeros(PIECE_BYTES, np.uint8), hashlib.sha256()
    for start in range(0, size_bytes, PIECE_BYTES):
        count = min(_read(base, piece), size_bytes - start)
        first, end = np.searchsorted(places, [start // BLOCK_BYTES, (start + PIECE_BYTES) // BLOCK_BYTES])
        piece.reshape(-1, BLOCK_BYTES)[places[first:end] - start // BLOCK_BYTES] = blocks[first:end]
        hashed.update(piece.data[:count])
        for written in range(0, count, write_bytes):
            file.write(piece.data[written : min(count, written + write_bytes)])
    file.flush()
    return hashed.hexdigest()


def apply(file: BinaryIO, patch: bytes, size_bytes: int) -> None:
    """Makes of a base, which is open to be read and written, the file of that size, in its place. Raises DataLoss: this
    is no patch of such a file."""
    places, blocks = blocks_of(patch, size_bytes)
    ends = np.flatnonzero(np.diff(places) != 1) + 1
    file.flush()
    for some, content in zip(np.split(places, ends), np.split(blocks, ends), strict=True):
        if len(some):
            start = int(some[0]) * BLOCK_BYTES
            _write_at(file.fileno(), content.tobytes()[: size_bytes - start], start)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def blocks_of(patch: bytes, size_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """What a patch of a file of that size changes. Raises DataLoss: it is no such patch.

    Returns:
        The numbers of the blocks, ascending, (n,); their bytes, (n, BLOCK_BYTES), of which the last block of the file
        may have more than the file.
    """
    try:
        content = zlib.decompressobj().decompress(patch, 8 + 2 * _largest(size_bytes))
    except zlib.error as error:
        raise DataLoss(f"a patch of {len(patch)} bytes cannot be unpacked: {error}") from error
    count = int.from_bytes(content[:8], "little")
    if len(content) != 8 + count * (4 + BLOCK_BYTES):
        raise DataLoss(f"a patch of {count} blocks unpacks to {len(content)} bytes")
    places = np.cumsum(np.frombuffer(content, "<u4", count, 8).astype(np.int64))
    blocks = np.frombuffer(content, np.uint8, offset=8 + 4 * count).reshape(count, BLOCK_BYTES)
    if count and int(places[-1]) * BLOCK_BYTES >= size_bytes:
        raise DataLoss(f"a patch has blocks behind the {size_bytes} bytes of its file")
    return places, blocks


def patch_beside(version: Path) -> Path:
    """Where a replica keeps the patch that makes the version's variables of those of any of the last versions: beside
    the version's folder."""
    return version.with_name(f"{version.name}.patch")


def largest_patch_bytes(size_bytes: int) -> int:
    """Of a file of that size: its blocks with their places, where they cannot be compressed."""
    return 1024 + _largest(size_bytes) * 9 // 8


def _largest(size_bytes: int) -> int:
    return min(size_bytes // _LARGEST_SHARE, _LARGEST_PATCH_BYTES)


def _read(file: BinaryIO, into: NDArray[np.uint8]) -> int:
    """Fills the array, whose rest becomes zeros at the end of the file; returns the bytes that were read."""
    count: int = file.readinto(into.data)  # type: ignore[attr-defined]  # every binary file has it, typing's has not
    into[count:] = 0
    return count
