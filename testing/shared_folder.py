"""Folders that one test process fills and all of a run read: what takes seconds to make is made once."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

_IS_FILLED = ".filled"


def filled_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """The folder `name` of this run, filled by the process that comes first; the others wait. It does not change
    afterwards."""
    folder = factory.getbasetemp() / "shared" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _IS_FILLED).exists():
            fill(folder)
            (folder / _IS_FILLED).touch()
    return folder
