"""Versions on this replica's disk: each file once, by its digest, linked into the folder of every version that has it.

    <data dir>/files/<digest>                          content
    <data dir>/versions/<model>/<version>/...          the registry's saved_model/; whole or absent
    <data dir>/versions/<model>/<version>.json         its manifest, as the registry gave it, with its own digest
    <data dir>/versions/<model>/<version>.patch        what its variables change of those of the versions before it
                                                       (recent_patches.py); may be absent

A version is handed out only when its folder matches its manifest, to the byte: disks err, and folders are
copied, swapped and edited. Other folders are fetched again. The manifest on disk is enough for that, so versions
that are here are served while the registry is away.

A crash leaves behind files without a version, manifests without one, and folders named *.partial; `clean` removes
all three. A power cut may tear files that a patch has made (common/registry/files.py): they do not match.
"""

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import orjson

from common.errors import DataLoss, Unavailable
from common.process.pace import UNLIMITED, Pace
from common.registry.catalog import FileEntry, Version
from common.registry.files import Patching, digest_of
from common.registry.patches import patch_beside
from common.registry.statements import digests_of
from common.whole_files import write_whole
from services.serving.options.option_sources import PER_MODEL_FILE
from services.serving.replica.sources.recent_patches import RecentPatches
from services.serving.replica.sources.signed_versions import VerifySignature
from services.serving.replica.versions_wanted import VersionKey

logger = logging.getLogger(__name__)
_PREFIX = "saved_model/"
_PARTIAL, _MANIFEST = ".partial", ".json"
_DATA_FILES = "variables.data-"
_NOT_OURS = frozenset({PER_MODEL_FILE})
"""Files that an operator may put beside a version's."""


@dataclass(frozen=True)
class _Manifest:
    """The files of a version's folder, and the signature that came with them."""

    files: tuple[FileEntry, ...]
    signature: str


class Source(Protocol):
    """Where versions come from."""

    def get_version(self, model: str, version: int) -> Version: ...

    def download(
        self,
        files: Sequence[FileEntry],
        directory: Path,
        *,
        pace: Pace,
        bases: Mapping[str, Path],
        patching: Patching,
    ) -> int: ...


class VersionFiles:
    """Thread-safe."""

    def __init__(
        self,
        data_dir: Path,
        source: Source,
        *,
        pace: Pace = UNLIMITED,
        verify_signature: VerifySignature | None = None,
    ) -> None:
        """`pace`: how fast all downloads together are; `verify_signature`: None takes any version."""
        self._files_dir = data_dir / "files"
        self._versions_dir = data_dir / "versions"
        self._patches = RecentPatches(self._files_dir)
        self._source = source
        self._pace = pace
        self._verify_signature = verify_signature
        self._lock = threading.Lock()
        self._fetching: set[VersionKey] = set()

    def fetch(self, model: str, version: int) -> Path:
        """The folder with the version's SavedModel, verified; downloads files that are missing or damaged on disk.

        Reads every byte of the version: half a second for 300 MB.

        Raises:
            NotFound: the registry does not have the version any more.
            DataLoss: the version has no SavedModel, its bytes are damaged in the registry, or its signature is wrong.
            Conflict: it is not signed by a trusted key.
            Unavailable: the registry is away.
        """
        directory = self._directory(model, version)
        with self._lock:
            self._fetching.add((model, version))
        try:
            manifest = self._manifest(model, version)
            entries = manifest.files
            if self._verify_signature:
                self._verify_signature(model, version, digests_of(entries), manifest.signature)
            if not directory.is_dir():
                self._fetch(entries, directory)
            elif (reason := _mismatch(directory, entries)) is not None:
                logger.warning(
                    "a version on disk differs from its manifest; fetching it again",
                    extra={"model": model, "version": version, "reason": reason},
                )
                self._fetch_again(entries, directory, f"version {version} of {model} is damaged here ({reason})")
        finally:
            with self._lock:
                self._fetching.discard((model, version))
        return directory

    def holds(self, model: str, version: int) -> bool:
        """Whether the version is here with its manifest, so that it can be served without the registry."""
        return self._directory(model, version).is_dir() and self._read_manifest(model, version) is not None

    def clean(self, *, used: Collection[VersionKey], kept_versions: int) -> list[VersionKey]:
        """Removes all versions but those used and, of each model, the `kept_versions` used last; returns which."""
        with self._lock:
            spared = set(used) | self._fetching
            removed = [key for key in self._superfluous(kept_versions) if key not in spared]
            for key in removed:
                self._manifest_path(*key).unlink(missing_ok=True)
                patch_beside(self._directory(*key)).unlink(missing_ok=True)
                shutil.rmtree(self._directory(*key))
            if not self._fetching:
                self._remove_leftovers()
        return removed

    def touch(self, model: str, version: int) -> None:
        """Notes that the version was used just now."""
        os.utime(self._directory(model, version))

    def _manifest(self, model: str, version: int) -> _Manifest:
        """A version never changes, so the manifest on disk is enough.

        Raises:
            NotFound, Unavailable: from the registry.
            DataLoss: the version has no SavedModel.
        """
        known = self._read_manifest(model, version)
        if known is not None and (known.signature or not self._verify_signature):
            return known
        found = self._source.get_version(model, version)
        entries = tuple(
            FileEntry(entry.path.removeprefix(_PREFIX), entry.size_bytes, entry.digest)
            for entry in found.files
            if entry.path.startswith(_PREFIX)
        )
        if not any(entry.path == "saved_model.pb" for entry in entries):
            raise DataLoss(f"version {version} of {model} has no {_PREFIX}saved_model.pb in its manifest")
        manifest = _Manifest(entries, found.signature)
        write_signed(self._manifest_path(model, version), {"model": model, "version": version, **asdict(manifest)})
        return manifest

    def _read_manifest(self, model: str, version: int) -> _Manifest | None:
        """None when there is none, or not this version's."""
        document = read_signed(self._manifest_path(model, version))
        if document is None or (document["model"], document["version"]) != (model, version):
            return None
        return _Manifest(tuple(FileEntry(**entry) for entry in document["files"]), document.get("signature", ""))

    def _fetch(self, entries: Sequence[FileEntry], directory: Path) -> None:
        """Fetches the folder, in the place of the present one."""
        self._files_dir.mkdir(parents=True, exist_ok=True)
        distinct = {entry.digest: FileEntry(entry.digest, entry.size_bytes, entry.digest) for entry in entries}
        # Leaves files with the right bytes alone, and looks at them.
        self._source.download(
            list(distinct.values()),
            self._files_dir,
            pace=self._pace,
            bases=self._newest_files(),
            patching=self._patches.patched,
        )
        partial = directory.with_name(f"{directory.name}{_PARTIAL}")
        shutil.rmtree(partial, ignore_errors=True)
        for entry in entries:
            path = partial / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            _link(self._files_dir / entry.digest, path)
            if path.name.startswith(_DATA_FILES):
                self._patches.move(entry.digest, patch_beside(directory))
        if directory.exists():
            shutil.rmtree(directory)  # A crash before the next line leaves no version, as before the first fetch.
        partial.rename(directory)

    def _newest_files(self) -> dict[str, Path]:
        """Every file that is here, by digest, the newest first: bases of patches."""
        found = [path for path in self._files_dir.iterdir() if not path.name.startswith(".")]
        return {path.name: path for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)}

    def _fetch_again(self, entries: Sequence[FileEntry], directory: Path, fault: str) -> None:
        try:
            self._fetch(entries, directory)
        except Unavailable as error:
            raise Unavailable(f"{fault} and cannot be fetched again now: {error.message}") from error

    def _directory(self, model: str, version: int) -> Path:
        return self._versions_dir / quote(model, safe="") / str(version)

    def _manifest_path(self, model: str, version: int) -> Path:
        directory = self._directory(model, version)
        return directory.with_name(f"{directory.name}{_MANIFEST}")

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
            for path in [*model_dir.glob(f"*{_MANIFEST}"), *model_dir.glob(patch_beside(Path("*")).name)]:
                if not path.with_suffix("").is_dir():
                    path.unlink(missing_ok=True)
        if self._files_dir.is_dir():
            for path in self._files_dir.iterdir():
                if path.stat().st_nlink == 1:
                    path.unlink(missing_ok=True)


def _mismatch(directory: Path, entries: Sequence[FileEntry]) -> str | None:
    """The difference of a folder from its manifest; None for none."""
    names = {entry.path for entry in entries}
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    if surplus := sorted(found - names - _NOT_OURS):
        return f"{surplus[0]} does not belong to it"
    for entry in entries:
        path = directory / entry.path
        if not path.is_file():
            return f"{entry.path} is missing"
        if path.stat().st_size != entry.size_bytes:
            return f"{entry.path} has {path.stat().st_size} bytes, expected {entry.size_bytes}"
        if digest_of(path) != entry.digest:
            return f"{entry.path} has other bytes"
    return None


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []


def _link(source: Path, target: Path) -> None:
    """A second name for the file; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_signed(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all, and there after a power cut."""
    body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(body).hexdigest()
    write_whole(path, orjson.dumps({"digest": digest, "document": orjson.Fragment(body)}))


def read_signed(path: Path) -> dict[str, Any] | None:
    """The document; None when there is none, or it is damaged."""
    try:
        outer = orjson.loads(path.read_bytes())
        document: dict[str, Any] = outer["document"]
        body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        return document if hashlib.sha256(body).hexdigest() == outer["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
