"""Memory of processes, as the kernel counts it (proc(5)).

A process's own memory (`private_bytes`) is what only the end of the process gives back: pages it has written to
(Private_Dirty), its share of what was swapped out, huge pages. Private_Clean is not: those are pages of
files, TensorFlow's libraries mostly, that no other process maps right now. The kernel drops them when it needs the
room, and the next process that maps them turns them into shared pages.
"""

import contextlib
import ctypes
import gc
import os
import threading
import time
from pathlib import Path

_ANONYMOUS = ("RssAnon:", "VmSwap:")
_SLACK_BYTES = 256 * 1024 * 1024
_LOOK_SECONDS, _AGAIN_SECONDS = 5.0, 60.0
_OWN = frozenset({"Private_Dirty:", "Private_Hugetlb:", "SwapPss:"})


def private_bytes(pid: int) -> int:
    """Memory that would come back if the process ended; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in _OWN)


def give_back_free_memory() -> None:
    """Returns to the kernel what this process has freed and the C library still holds; glibc only, else nothing."""
    gc.collect()
    _trim()


def keep_giving_back(*, look_seconds: float = _LOOK_SECONDS) -> None:
    """From here on, in a thread: returns freed memory to the kernel when there are 256 MiB more of it than now.

    glibc keeps what was freed between what is still in use: after a crowd of calls or of large requests a process would
    hold gigabytes for good. Where that gave little, the memory is not malloc's, and the next look comes a minute later.
    """
    least = _unused_bytes()

    def look() -> None:
        while True:
            time.sleep(look_seconds)
            # Looking through malloc's lists takes time, and less is unused than is resident.
            before = _unused_bytes() if _resident_bytes() > least + _SLACK_BYTES else 0
            if before > least + _SLACK_BYTES:
                _trim()
                if before - _unused_bytes() < _SLACK_BYTES / 2:
                    time.sleep(_AGAIN_SECONDS)

    threading.Thread(target=look, name="memory", daemon=True).start()


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 (mallinfo(3)); `uordblks` and `hblkhd` are the bytes in use."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _unused_bytes() -> int:
    """Resident memory that malloc has not given out: code, other allocators' memory, and what was freed. 0 where the C
    library cannot tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _MallocInfo
    found = mallinfo()
    return _resident_bytes() - int(found.uordblks) - int(found.hblkhd)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def anonymous_mb(pid: int) -> float:
    """Anonymous pages, resident or swapped out (status), in MiB: grows with every leak and with nothing else."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(words[1]) for words in lines if words and words[0] in _ANONYMOUS) / 1024


def process_tree_mb(pid: int) -> int:
    """Proportional set size of the process and its children: what is shared after a fork counts once. 0 for pid 0."""
    import psutil  # only when asked for; costs tens of milliseconds

    total = 0
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return round(total / 1e6)
