"""Versions on this replica's disk: each file once, by its digest, linked into the folder of every version that has it.

    <data dir>/files/<digest>                          content
    <data dir>/versions/<model>/<version>/...          what saved_model/ holds in the registry; whole or absent

What a crash leaves behind: files without a version and folders named *.partial; `clean` removes both.
"""

import os
import shutil
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from common.errors import DataLoss
from common.process.pace import UNLIMITED, Pace
from common.registry.catalog import FileEntry, Version
from services.serving.replica.versions_wanted import VersionKey

_PREFIX = "saved_model/"
_PARTIAL = ".partial"


class Source(Protocol):
    """Where versions come from."""

    def get_version(self, model: str, version: int) -> Version: ...

    def download(self, files: Sequence[FileEntry], directory: Path, *, pace: Pace) -> int: ...


class VersionFiles:
    """Thread-safe."""

    def __init__(self, data_dir: Path, source: Source, *, pace: Pace = UNLIMITED) -> None:
        """pace: how fast all downloads together are."""
        self._files_dir = data_dir / "files"
        self._versions_dir = data_dir / "versions"
        self._source = source
        self._pace = pace
        self._lock = threading.Lock()
        self._fetching: set[VersionKey] = set()

    def fetch(self, model: str, version: int) -> Path:
        """The folder with the version's SavedModel; downloads what no version on disk has.

        Raises:
            NotFound: the registry does not have the version any more.
            DataLoss: the version has no SavedModel, or its bytes are damaged.
            Unavailable: the registry is away.
        """
        directory = self._directory(model, version)
        if directory.is_dir():
            return directory
        with self._lock:
            self._fetching.add((model, version))
        try:
            self._fetch(model, version, directory)
        finally:
            with self._lock:
                self._fetching.discard((model, version))
        return directory

    def clean(self, *, used: Collection[VersionKey], kept_versions: int) -> list[VersionKey]:
        """Removes all versions but those used and, of each model, the `kept_versions` used last; returns which."""
        with self._lock:
            spared = set(used) | self._fetching
            removed = [key for key in self._superfluous(kept_versions) if key not in spared]
            for key in removed:
                shutil.rmtree(self._directory(*key))
            if not self._fetching:
                self._remove_leftovers()
        return removed

    def touch(self, model: str, version: int) -> None:
        """Notes that the version was used just now."""
        os.utime(self._directory(model, version))

    def _fetch(self, model: str, version: int, directory: Path) -> None:
        entries = [entry for entry in self._source.get_version(model, version).files if entry.path.startswith(_PREFIX)]
        if not any(entry.path == f"{_PREFIX}saved_model.pb" for entry in entries):
            raise DataLoss(f"version {version} of {model} has no {_PREFIX}saved_model.pb in its manifest")
        missing = [
            FileEntry(entry.digest, entry.size_bytes, entry.digest)
            for entry in entries
            if not (self._files_dir / entry.digest).exists()
        ]
        self._files_dir.mkdir(parents=True, exist_ok=True)
        distinct = list({entry.digest: entry for entry in missing}.values())
        self._source.download(distinct, self._files_dir, pace=self._pace)
        partial = directory.with_name(f"{directory.name}{_PARTIAL}")
        shutil.rmtree(partial, ignore_errors=True)
        for entry in entries:
            path = partial / entry.path.removeprefix(_PREFIX)
            path.parent.mkdir(parents=True, exist_ok=True)
            _link(self._files_dir / entry.digest, path)
        partial.rename(directory)

    def _directory(self, model: str, version: int) -> Path:
        return self._versions_dir / quote(model, safe="") / str(version)

    def _superfluous(self, kept_versions: int) -> list[VersionKey]:
        found: list[VersionKey] = []
        for model_dir in _folders(self._versions_dir):
            folders = [folder for folder in _folders(model_dir) if folder.name.isdecimal()]
            folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
            found += [(unquote(model_dir.name), int(folder.name)) for folder in folders[kept_versions:]]
        return found

    def _remove_leftovers(self) -> None:
        for model_dir in _folders(self._versions_dir):
            for partial in model_dir.glob(f"*{_PARTIAL}"):
                shutil.rmtree(partial, ignore_errors=True)
        if self._files_dir.is_dir():
            for path in self._files_dir.iterdir():
                if path.stat().st_nlink == 1:
                    path.unlink(missing_ok=True)


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []


def _link(source: Path, target: Path) -> None:
    """A second name for the file; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
