"""How much memory a process has to itself, as the kernel counts it (proc(5), smaps_rollup)."""

import ctypes
import gc
from pathlib import Path

_PRIVATE = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")


def private_bytes(pid: int) -> int:
    """Memory that would come back if the process ended; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in _PRIVATE)


def give_back_free_memory() -> None:
    """Returns to the kernel what this process has freed and the C library still holds; glibc only, else nothing."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
