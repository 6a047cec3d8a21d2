"""Memory of processes, as the kernel counts it (proc(5)).

A process's own memory (`private_bytes`) is what only the end of the process gives back: pages it has written to
(Private_Dirty), its share of what was swapped out, huge pages. Private_Clean is not: those are pages of
files, TensorFlow's libraries mostly, that nobody else happens to map right now. The kernel drops them when it needs the
room, and the next process that maps them turns them into shared ones.
"""

import contextlib
import ctypes
import gc
from pathlib import Path

_ANONYMOUS = ("RssAnon:", "VmSwap:")
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
