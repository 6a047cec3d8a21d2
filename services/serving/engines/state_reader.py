"""Reads the variables of a version piece by piece, into memory that is kept, while other versions answer in the same
process.

TensorFlow's own restore operation takes a core for as long as the file is large, and new memory, whose pages the kernel
has to clear. In a thread of low priority it would be worse: such a thread keeps Python's lock, or the kernel's for the
process's memory, until it is given a core again, and every prediction waits for that.

Where the memory has the values of an earlier version, and a patch lies beside the new version, only the changed blocks
are written; then the checksum over all bytes of a variable decides whether it is read whole after all.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from io import FileIO
from math import prod
from pathlib import Path

import google_crc32c
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from common.eventlog.tfrecord import masked
from common.process.pace import Pace
from common.registry.patches import BLOCK_BYTES, blocks_of, largest_patch_bytes, patch_beside
from common.saved_model.variables import INDEX_FILE, Variable, read_index
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger(__name__)
SMALL_BYTES = 16 * 1024 * 1024
"""Of a version's variables: up to here TensorFlow takes them at once."""
_PIECE_BYTES = 256 * 1024
_CHECKED_BYTES, _CHECKS_PER_READ = 1024 * 1024, 32
"""The checksum of a piece of memory takes 0.1 ms, and waits as long as a read of a 32nd of it."""
_ALIGNMENT = 64
"""TensorFlow takes an array as a tensor without copying it where its memory begins at such a multiple."""


class StateReader:
    """The values of a program's variables. For one thread."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: of the variables in the files, in the order of the arrays."""
        self._names = names
        self._kept: list[np.ndarray] = []
        self._has_values = False

    def read(self, directory: Path, pace: Pace) -> list[np.ndarray] | None:
        """The values that a SavedModel of the program has. They overwrite those of the last call. None where a variable
        is no plain numbers in one piece.

        Raises:
            RequestFailed: DATA_LOSS, a file is damaged.
            OSError: a file cannot be read.
        """
        try:
            index = read_index((directory / INDEX_FILE).read_bytes())
        except InvalidInput as error:
            raise RequestFailed(Code.DATA_LOSS, error.message) from error
        found = [index.variables.get(name) for name in self._names]
        variables = [variable for variable in found if variable is not None and _is_plain(variable)]
        if len(variables) < len(found):
            return None
        if len(self._kept) != len(variables) or not all(map(_is_alike, variables, self._kept)):
            self._kept, self._has_values = [_aligned(variable) for variable in variables], False
        with ExitStack() as opened:
            files = [opened.enter_context((directory / path).open("rb", buffering=0)) for path in index.data_files()]
            is_patched = len(files) == 1 and self._patch(directory, index.data_files()[0], variables)
            for name, variable, array in zip(self._names, variables, self._kept, strict=True):
                is_there = is_patched and _has(array, variable, pace)
                if is_patched and not is_there:
                    logger.info("a patch does not make a variable; it is read whole", extra={"variable": name})
                if not is_there and not _fill(array, files[variable.shard], variable, pace):
                    raise RequestFailed(Code.DATA_LOSS, f"the values of {name} are damaged: their checksum differs")
        self._has_values = True
        return self._kept

    def _patch(self, directory: Path, path: str, variables: Sequence[Variable]) -> bool:
        """Writes the blocks of the patch beside the version over the last values, of any version; False
        where there is no patch."""
        if not self._has_values:
            return False
        size_bytes = (directory / path).stat().st_size
        try:
            patch = patch_beside(directory)
            if patch.stat().st_size > largest_patch_bytes(size_bytes):
                return False
            places, blocks = blocks_of(patch.read_bytes(), size_bytes)
        except (OSError, DataLoss):
            return False
        for variable, array in zip(variables, self._kept, strict=True):
            _overlay(array, places * BLOCK_BYTES - variable.offset, blocks)
        return True


def _is_plain(variable: Variable) -> bool:
    dtype = _dtype_of(variable)
    return not dtype.hasobject and variable.size_bytes == prod(variable.shape) * dtype.itemsize


def _dtype_of(variable: Variable) -> np.dtype:
    try:
        return np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
    except TypeError:  # no type of TensorFlow's
        return np.dtype(object)


def _is_alike(variable: Variable, array: np.ndarray) -> bool:
    return (array.dtype, array.shape) == (_dtype_of(variable), variable.shape)


def _aligned(variable: Variable) -> np.ndarray:
    room = np.empty(variable.size_bytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    return room[begin : begin + variable.size_bytes].view(_dtype_of(variable)).reshape(variable.shape)


def _overlay(array: np.ndarray, starts: NDArray[np.int64], blocks: NDArray[np.uint8]) -> None:
    """Writes blocks over an array's bytes, from these places on; a block may begin before it and end behind it."""
    whole = array.reshape(-1).view(np.uint8)
    is_inside = (starts >= 0) & (starts <= len(whole) - BLOCK_BYTES)
    if is_inside.any():
        windows = np.lib.stride_tricks.sliding_window_view(whole, BLOCK_BYTES, writeable=True)
        windows[starts[is_inside]] = blocks[is_inside]
    for each in np.flatnonzero(~is_inside & (starts > -BLOCK_BYTES) & (starts < len(whole))):
        begin, end = max(0, int(starts[each])), min(len(whole), int(starts[each]) + BLOCK_BYTES)
        whole[begin:end] = blocks[each, begin - starts[each] : end - starts[each]]


def _has(array: np.ndarray, variable: Variable, pace: Pace) -> bool:
    """Whether the variable's bytes are in the memory already."""
    whole, crc = array.reshape(-1).view(np.uint8), 0
    for begin in range(0, len(whole), _CHECKED_BYTES):
        piece = whole[begin : begin + _CHECKED_BYTES]
        crc = google_crc32c.extend(crc, piece)
        pace.wait_for(len(piece) // _CHECKS_PER_READ)
    return masked(crc) == variable.masked_crc32c


def _fill(array: np.ndarray, file: FileIO, variable: Variable, pace: Pace) -> bool:
    """False: the file is shorter, or holds other bytes than were written."""
    file.seek(variable.offset)
    whole, crc = array.reshape(-1).view(np.uint8), 0
    for begin in range(0, len(whole), _PIECE_BYTES):
        piece = whole[begin : begin + _PIECE_BYTES]
        if file.readinto(piece.data) != len(piece):
            return False
        crc = google_crc32c.extend(crc, piece)
        pace.wait_for(len(piece))
    return masked(crc) == variable.masked_crc32c
