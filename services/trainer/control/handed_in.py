"""The files that a round's process hands in: looked at from outside, since authors' code can write to their folder."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from common.errors import InvalidInput
from common.registry.catalog import FileEntry

_MOST_ENTRIES = 10_000
_HASHING = 2
"""Threads."""


def manifest_of(
    directory: Path, *, most_bytes: int, meanwhile: Callable[[list[FileEntry]], None] = lambda found: None
) -> tuple[FileEntry, ...]:
    """Every file below the directory, sorted by path, with its size and SHA-256; 0 bytes: any number.

    Args:
        meanwhile: is called while digests are taken, with the files, which have none yet.

    Raises:
        InvalidInput: there is something else than files and folders, a name that is no text, or too much of them.
    """
    if directory.is_symlink():
        raise InvalidInput(f"the round hands in {directory.name}, which is a link")
    found = sorted(_files(directory))
    size_bytes = sum({inode: size for _, size, inode in found}.values())
    if most_bytes and size_bytes > most_bytes:
        raise InvalidInput(
            f"the round's files have {size_bytes} bytes, and may have {most_bytes} (TRAINER_MAX_VERSION_MIB)"
        )
    names = {inode: name for name, _, inode in reversed(found)}
    sizes = {inode: size for _, size, inode in found}
    with ThreadPoolExecutor(_HASHING + 1) as pool:
        beside = pool.submit(meanwhile, [FileEntry(name, sizes[inode], "") for inode, name in names.items()])
        read = dict(zip(names, pool.map(lambda name: _entry(directory, name), names.values()), strict=True))
        beside.result()
    return tuple(replace(read[inode], path=name) for name, _, inode in found)


def _files(directory: Path) -> Iterator[tuple[str, int, int]]:
    """(path, size, inode), before anything is read; files of one inode are one file."""
    folders, count = [""], 0
    while folders:
        folder = folders.pop()
        with os.scandir(directory / folder) as entries:
            for entry in entries:
                count += 1
                name = f"{folder}{entry.name}"
                if count > _MOST_ENTRIES:
                    raise InvalidInput(f"the round hands in more than {_MOST_ENTRIES} files and folders")
                if not name.isprintable():  # nor is a name that is not UTF-8
                    raise InvalidInput(f"the round hands in {name!r}, expected a name of printable characters")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False).st_size, entry.inode()
                else:
                    raise InvalidInput(f"the round hands in {name}, which is neither a file nor a folder")


def _entry(directory: Path, name: str) -> FileEntry:
    descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        size_bytes = os.fstat(descriptor).st_size
        return FileEntry(name, size_bytes, hashlib.file_digest(file, "sha256").hexdigest())
