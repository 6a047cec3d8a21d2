"""A folder that a person hands over: its regular files, and nothing else."""

import os
import zipfile
from pathlib import Path, PurePosixPath

from common.errors import InvalidInput

_MOST_INFLATED, _ALWAYS_INFLATED_BYTES = 100, 64 * 1024 * 1024
"""An archive may grow by this factor when it is read, and always to this many bytes."""


def own_files(directory: Path) -> dict[str, Path]:
    """{path relative to the folder: file}, in its order. Raises InvalidInput: a link leads out of the folder or to a
    folder, or there is a device, pipe or socket."""
    root = Path(os.path.realpath(directory))  # resolve() raises for a circle of links
    found: dict[str, Path] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            raise InvalidInput(f"{name} in {directory} is a link to {path.readlink()}, outside of the folder")
        if path.is_symlink() and path.is_dir():
            raise InvalidInput(f"{name} in {directory} is a link to a folder, which would be left out; copy it there")
        if path.is_file():
            found[name] = path
        elif not path.is_dir():
            raise InvalidInput(f"{name} in {directory} is neither a file nor a folder")
    return found


def check_archive(path: Path) -> None:
    """Whether a .keras file (a ZIP archive) can be read without harm. Raises InvalidInput: it is none, names files
    outside of itself, or would take far more memory than it has bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path} is not a Keras file: {error}") from error
    for member in members:
        if ".." in PurePosixPath(member.filename).parts or member.filename.startswith("/") or "\\" in member.filename:
            raise InvalidInput(f"{path} holds {member.filename[:200]!r}, which leads out of it")
    inflated, most = (
        sum(m.file_size for m in members),
        max(_ALWAYS_INFLATED_BYTES, _MOST_INFLATED * path.stat().st_size),
    )
    if inflated > most:
        raise InvalidInput(f"{path} would grow to {inflated} bytes, and {most} are taken of a file of its size")
