"""Memory that a process has allocated itself, whoever else maps it: grows with every leak and with nothing else."""

from pathlib import Path

_FIELDS = ("RssAnon:", "VmSwap:")


def anonymous_mb(pid: int) -> float:
    """Anonymous pages, resident or swapped out (proc(5), status), in MiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(words[1]) for words in lines if words and words[0] in _FIELDS) / 1024
