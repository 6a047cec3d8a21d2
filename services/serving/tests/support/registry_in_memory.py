"""The two calls of a registry's client that a replica makes for a version's files, over versions in memory."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common.errors import DataLoss, Unavailable
from common.process.pace import Pace
from common.registry.catalog import FileEntry
from common.registry.files import Patching
from common.registry.patches import patch_between

BIG_BYTES = 4096
"""From here on a file comes as a patch."""


def entries_of(contents: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items())


class MemoryRegistry:
    """The two calls that VersionFiles makes, over versions in memory."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], dict[str, bytes]] = {}
        self.downloaded: list[str] = []
        self.paces: list[Pace] = []
        self.bases: list[list[str]] = []
        self.is_away = False
        self.signature = ""
        self.manifest: tuple[FileEntry, ...] = ()
        """What it says of every version's files, where that is not what it has."""

    def get_version(self, model: str, version: int) -> Any:
        if self.is_away:
            raise Unavailable("the registry is away")
        files = self.manifest or entries_of(self.versions[model, version])
        return SimpleNamespace(files=files, signature=self.signature)

    def download(
        self,
        files: Sequence[FileEntry],
        directory: Path,
        *,
        pace: Pace,
        bases: Mapping[str, Path],
        patching: Patching,
    ) -> int:
        self.paces.append(pace)
        self.bases.append(list(bases))
        contents = {
            hashlib.sha256(data).hexdigest(): data for files in self.versions.values() for data in files.values()
        }
        for file in files:
            path = directory / file.path
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.digest:
                continue
            if self.is_away:
                raise Unavailable("the registry is away")
            if file.digest not in contents:
                raise DataLoss(f"file {file.path} came with another digest")
            path.unlink(missing_ok=True)  # it may have a second name
            base = next((base for base in bases if len(contents[base]) == file.size_bytes >= BIG_BYTES), "")
            patch = base and patch_between(
                io.BytesIO(contents[base]), io.BytesIO(contents[file.digest]), file.size_bytes
            )
            if patch:
                assert patching(path, file, base, bases[base], patch) == file.digest
            else:
                path.write_bytes(contents[file.digest])
            self.downloaded.append(file.digest)
        return sum(file.size_bytes for file in files)
