"""How much memory a process has to itself, as the kernel counts it (proc(5), smaps_rollup)."""

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
