"""Changes of a file, as the kernel reports them: inotify(7)."""

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)
_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE, _IN_MOVE_SELF = 0x2, 0x4, 0x80, 0x100, 0x800
_OF_FILE, _OF_FOLDER = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF, _IN_MOVED_TO | _IN_CREATE
_EVENTS_BYTES = 64 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


def when_changed(path: Path, report: Callable[[], None]) -> None:
    """Calls `report` in a separate thread soon after each change of the file, and of the names in its folder, for as
    long as the process lives. Never where the kernel reports nothing: a network's file system, a bound on watches."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0 or not _watch(descriptor, path.parent, _OF_FOLDER):
        reason = os.strerror(ctypes.get_errno())
        logger.info("changes of a file are not reported", extra={"path": str(path), "reason": reason})
        if descriptor >= 0:
            os.close(descriptor)
        return
    _watch(descriptor, path, _OF_FILE)
    threading.Thread(target=_report, args=(descriptor, path, report), name="file changes", daemon=True).start()


def _report(descriptor: int, path: Path, report: Callable[[], None]) -> None:
    while os.read(descriptor, _EVENTS_BYTES):
        _watch(descriptor, path, _OF_FILE)  # Another file may have the name now; the same file is watched once.
        report()


def _watch(descriptor: int, path: Path, mask: int) -> bool:
    return bool(_libc.inotify_add_watch(descriptor, os.fsencode(path), mask) >= 0)
