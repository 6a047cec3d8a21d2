"""What the processes of one machine hand to each other: pages that all of them map, and a signal from each to each.

An exchange writes this process's bytes to its place, tells the others, waits for them, and copies what they wrote. Two
files take turns: who writes to the one that he wrote to before the last exchange knows that all have read it, as they
could not have come to the last one otherwise.
"""

import mmap
import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 64
"""Bytes: what TensorFlow wants of memory that it takes without a copy."""


class SharedMemory:
    """Made by the process that forks the others, before it does; each of them then has the same.

    Args:
        workers: processes, at least two.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context("fork")
        self._written = [[context.Semaphore(0) for _ in range(workers)] for _ in range(workers)]
        self._files = [os.memfd_create(f"headrace-exchange-{turn}", os.MFD_CLOEXEC) for turn in range(2)]
        self._maps: list[mmap.mmap | None] = [None, None]
        self._exchanges = 0

    def gathered(self, rows: Sequence[NDArray[Any]], rank: int, timeout_seconds: float) -> list[NDArray[Any]]:
        """The other processes' rows, in order of rank, each process's one after the other. All call it alike, with rows
        of the same shapes and dtypes. Raises TimeoutError: a process has not come within the time; none of them can go
        on."""
        stored = self._stored(rows, rank, timeout_seconds)
        return [_copied(row[other]) for other in range(self.workers) if other != rank for row in stored]

    def dealt(self, rows: NDArray[Any], rank: int, timeout_seconds: float) -> NDArray[Any]:
        """[workers, ...]: of every process's rows, [workers, ...], the one for this process; else as `gathered`."""
        (stored,) = self._stored([rows], rank, timeout_seconds)
        return _copied(stored[:, rank])

    def close(self) -> None:
        """Of this process."""
        for number, mapped in enumerate(self._maps):
            if mapped is not None:
                with suppress(BufferError):
                    mapped.close()
            os.close(self._files[number])

    def _stored(self, rows: Sequence[NDArray[Any]], rank: int, timeout_seconds: float) -> list[NDArray[Any]]:
        """[workers, ...] of each row: what all have written, until the exchange after the next one."""
        turn, self._exchanges = self._exchanges % 2, self._exchanges + 1
        offsets = list(accumulate((_whole_lines(row.nbytes) for row in rows), initial=0))
        buffer = self._mapped(turn, max(1, offsets[-1]) * self.workers)
        stored = []
        for row, offset in zip(rows, offsets, strict=False):
            strides = (offsets[-1], *np.ascontiguousarray(row).strides)
            stored.append(np.ndarray((self.workers, *row.shape), row.dtype, buffer, offset, strides[: row.ndim + 1]))
            stored[-1][rank] = row
        self._meet(rank, timeout_seconds)
        return stored

    def _meet(self, rank: int, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        others = [other for other in range(self.workers) if other != rank]
        for other in others:
            self._written[rank][other].release()
        for other in others:
            if not self._written[other][rank].acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"worker {other} of {self.workers} has not come within {timeout_seconds:g} s")

    def _mapped(self, turn: int, size: int) -> mmap.mmap:
        """At least so many bytes; whoever comes first makes the file longer."""
        mapped = self._maps[turn]
        if mapped is None or len(mapped) < size:
            if os.fstat(self._files[turn]).st_size < size:
                os.ftruncate(self._files[turn], size)
            # What an earlier exchange saw of a shorter one goes with its last view.
            mapped = self._maps[turn] = mmap.mmap(self._files[turn], size)
        return mapped


def _whole_lines(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    whole = np.empty(array.nbytes + _ALIGNED, np.uint8)
    start = -whole.ctypes.data % _ALIGNED
    found = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
