"""The patches of the last few versions, joined: what a version's big file changes of any of the files before it.

    <data dir>/files/.<digest>.patch     of the file of that digest, until its version has a folder

The registry's patch makes a file of the newest file here. A runner mostly holds the values of an older version, and
takes only the changed blocks (services/serving/engines/state_reader.py). After a start no patches are known, and a
runner reads its first versions whole.
"""

import threading
from contextlib import suppress
from pathlib import Path

from common.registry.catalog import FileEntry
from common.registry.files import fill_patched
from common.registry.patches import joined

_MOST_PATCHES = 4
"""Joined: a runner's spare values are two versions old, older where versions came while it loaded."""
_MOST_KNOWN, _MOST_BYTES = 256, 32 * 1024 * 1024
"""Patches of all models in memory; their bytes."""


class RecentPatches:
    """Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """directory: of the files, by digest."""
        self._directory = directory
        self._lock = threading.Lock()
        self._patches: dict[str, tuple[str, bytes]] = {}
        """(base, patch) of the last files, the newest at the end."""

    def patched(self, target: Path, file: FileEntry, base_digest: str, base: Path, patch: bytes) -> str:
        """As common.registry.files.Patching."""
        found = fill_patched(target, file, base_digest, base, patch)
        if found == file.digest:
            whole = joined([*self._before(base_digest), patch], file.size_bytes)
            if whole is not None:
                with suppress(OSError):  # on a full disk the runner reads the file whole; it refuses a torn patch
                    self._path(file.digest).write_bytes(whole)
            self._note(file.digest, base_digest, patch)
        return found

    def move(self, digest: str, target: Path) -> None:
        """Gives the joined patch of a file another place; nothing where the file did not come as a patch."""
        with suppress(FileNotFoundError):
            self._path(digest).rename(target)

    def _before(self, digest: str) -> list[bytes]:
        """The patches that made the file, the oldest first."""
        found = list[bytes]()
        with self._lock:
            while digest in self._patches and len(found) < _MOST_PATCHES - 1:
                digest, patch = self._patches[digest]
                found.insert(0, patch)
        return found

    def _note(self, digest: str, base: str, patch: bytes) -> None:
        with self._lock:
            self._patches.pop(digest, None)
            self._patches[digest] = base, patch
            while (
                len(self._patches) > _MOST_KNOWN or sum(len(each) for _, each in self._patches.values()) > _MOST_BYTES
            ):
                del self._patches[next(iter(self._patches))]

    def _path(self, digest: str) -> Path:
        return self._directory / f".{digest}.patch"
