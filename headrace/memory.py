"""Memory of processes on this machine."""

import contextlib


def process_tree_mb(pid: int) -> int:
    """Proportional set size of the process and its children: what is shared after a fork counts once. 0 for pid 0."""
    import psutil  # only when asked for; costs tens of milliseconds

    total = 0
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return round(total / 1e6)
