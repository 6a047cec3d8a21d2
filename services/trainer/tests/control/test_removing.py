"""Folders that authors' code has filled go, however it has filled them."""

import os
from pathlib import Path

from services.trainer.control.removing import remove
from services.trainer.protocol import crash_report

_LEVELS = 1_500
"""More than frames that Python has and files that a process may open."""


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "round"
    folder.mkdir()
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(_LEVELS):
        os.mkdir("d", dir_fd=inner)
        below = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    remove(folder)
    assert not folder.exists()
    remove(folder)


def test_the_end_of_a_log_of_any_size_is_read(tmp_path: Path) -> None:
    """It has no room in memory, and takes none on the disk."""
    with (tmp_path / "round.log").open("wb") as file:
        file.truncate(1 << 36)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line")
    assert crash_report.read(tmp_path).lines[-1] == "the last line"
    (tmp_path / "fault.txt").mkdir()
    assert crash_report.read(tmp_path).place == ""
