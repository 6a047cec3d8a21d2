"""Files that are there whole or not at all: written aside, renamed."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes, *, mode: int | None = None, flush: bool = True) -> None:
    """A reader sees the old content or the new; makes the folders above the file. `mode`, `flush`: as `whole_file`."""
    with whole_file(path, mode=mode, flush=flush) as file:
        file.write(content)


@contextmanager
def whole_file(
    path: Path, *, mode: int | None = None, flush: bool = True, overwrite: bool = True
) -> Iterator[BinaryIO]:
    """To write; a reader sees the old content until the block has ended without an error.

    Args:
        mode: the file's, exactly; None: 0o666 less the process's umask.
        flush: to the disk before the rename, so that a power cut, too, leaves the old content or the new.
        overwrite: False raises FileExistsError where the file is there by the end of the block.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            if flush:
                file.flush()
                os.fsync(file.fileno())
        if overwrite:
            aside.replace(path)
        else:
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Makes the content of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
