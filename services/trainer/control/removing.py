"""Folders that authors' code has filled are removed whole: shutil.rmtree takes a frame and a descriptor for each level,
and code can make more levels than there are of either."""

import contextlib
import shutil
import subprocess
from pathlib import Path

_MOST_SECONDS = 60.0


def remove(directory: Path) -> None:
    """Does nothing where there is none. What cannot be removed, or takes too long, stays."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["rm", "-rf", "--", str(directory)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                timeout=_MOST_SECONDS, check=False,
            )  # fmt: skip
