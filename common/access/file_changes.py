"""Changes of a file, as the kernel reports them: inotify(7)."""

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)
_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE, _IN_MOVE_SELF = 0x2, 0x4, 0x80, 0x100, 0x800
_OF_FILE, _OF_FOLDER = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF, _IN_MOVED_TO | _IN_CREATE | _IN_MOVE_SELF
_EVENTS_BYTES = 64 * 1024
_OF_THIS_MACHINE = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x01021994, 0x794C7630}
"""By statfs(2): ext4, XFS, Btrfs, F2FS, ZFS, tmpfs, overlay. Other machines change files of the rest unreported."""
_STATFS_BYTES, _TYPE_BYTES = 256, ctypes.sizeof(ctypes.c_long)
_libc = ctypes.CDLL(None, use_errno=True)


def when_changed(path: Path, report: Callable[[bool], None]) -> None:
    """Calls `report` now, and in a separate thread soon after each change of the file, and of the names in its
    folder, for as long as the process lives. Never where there are too many watches.

    Args:
        report: is given whether the kernel reports all changes: on a file system of this machine, of a path without
            links. The exception is a folder further up that another takes the place of.
    """
    descriptor = _libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0 or not _watch(descriptor, path.parent, _OF_FOLDER):
        reason = os.strerror(ctypes.get_errno())
        logger.info("changes of a file are not reported", extra={"path": str(path), "reason": reason})
        if descriptor >= 0:
            os.close(descriptor)
        return
    _watch(descriptor, path, _OF_FILE)
    report(_are_all_reported(path))
    threading.Thread(target=_report, args=(descriptor, path, report), name="file changes", daemon=True).start()


def _report(descriptor: int, path: Path, report: Callable[[bool], None]) -> None:
    while os.read(descriptor, _EVENTS_BYTES):
        # Another file or folder may have the name now; the same is watched once.
        is_watched = _watch(descriptor, path.parent, _OF_FOLDER) and _watch(descriptor, path, _OF_FILE)
        report(is_watched and _are_all_reported(path))


def _are_all_reported(path: Path) -> bool:
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    is_known = _libc.statfs(os.fsencode(path), found) == 0
    kind = int.from_bytes(found.raw[:_TYPE_BYTES], sys.byteorder)
    return is_known and kind in _OF_THIS_MACHINE and os.path.realpath(path) == os.path.abspath(path)  # noqa: PTH100


def _watch(descriptor: int, path: Path, mask: int) -> bool:
    return bool(_libc.inotify_add_watch(descriptor, os.fsencode(path), mask) >= 0)
