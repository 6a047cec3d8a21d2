"""Looks for versions in the folders of the configured models, in a thread of its own.

A version counts once it is whole: nothing that its graph needs is missing, and nothing in its folder changed for as
long as two looks take (version_folders.py). Afterwards it counts until its folder is gone.
"""

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import HeadraceError
from common.storage import LOCAL, Place
from services.serving.options.model_server_config import ConfiguredModel
from services.serving.replica.sources.version_folders import Fingerprint, fingerprint, missing_part, versions_in
from services.serving.replica.versions_wanted import VersionKey

_Listing = tuple[tuple[str, int], ...]
logger = logging.getLogger(__name__)
_LONGEST_SETTLE_SECONDS = 1.0
_QUIET_FACTOR = 3
"""A folder that nobody changed for this many times as long is taken at the first look."""


@dataclass(frozen=True)
class Found:
    """A look at all folders."""

    versions: Mapping[str, tuple[int, ...]]
    """By model, those that its policy selects, newest first; a model whose folder cannot be read keeps what it had."""
    problems: Mapping[str, str]
    """By model, in a sentence."""
    directories: Mapping[VersionKey, Path] = field(default_factory=dict)
    is_settled: bool = True
    """False while a model has nothing to serve and a version of it waits to be whole."""


class FolderWatch:
    """`on_found` is called in the thread after each look that found something new.

    Args:
        poll_seconds: time between two looks; 0: a look after each new configuration; negative: none at all.
        mirrors_dir: where the versions of base paths of other storages are copied to.
    """

    def __init__(self, *, poll_seconds: float, mirrors_dir: Path, on_found: Callable[[Found], None]) -> None:
        self._mirrors_dir = mirrors_dir
        self._mirrors: dict[Path, Mirror] = {}
        self._poll_seconds = poll_seconds
        self._settle_seconds = min(poll_seconds, _LONGEST_SETTLE_SECONDS) if poll_seconds > 0 else 1.0
        self._on_found = on_found
        self._models: Mapping[str, ConfiguredModel] = {}
        self._failed: Collection[VersionKey] = ()
        self._seen: dict[Path, tuple[Fingerprint, float]] = {}
        """The fingerprints of waiting folders, and since when (monotonic seconds)."""
        self._whole: dict[Path, Fingerprint] = {}
        self._last: Found | None = None
        """The last published finding of these models."""
        self._known = Found({}, {})
        """The last published finding."""
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may hang in a file system, and ends with the process."""
        self._stop.set()
        self._wake.set()

    def watch(self, models: Mapping[str, ConfiguredModel]) -> None:
        """These from now on; looks at once, and `on_found` is called even if nothing changed."""
        self._models = dict(models)
        self._last = None
        self._wake.set()

    def note_failed(self, failed: Collection[VersionKey]) -> None:
        """Versions that could not be loaded: they get another chance when their files change."""
        self._failed = failed

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause_seconds = None if self._poll_seconds <= 0 else self._poll_seconds
            if self._poll_seconds >= 0 and not self._look():
                pause_seconds = self._settle_seconds
            self._wake.wait(pause_seconds)

    def _look(self) -> bool:
        """False while versions wait to be whole."""
        models, before = self._models, self._known
        versions: dict[str, tuple[int, ...]] = {}
        problems: dict[str, str] = {}
        directories: dict[VersionKey, Path] = {}
        waits = False
        is_settled = True
        present: set[Path] = set()
        unreadable: set[Path] = set()
        for name, model in models.items():
            try:
                found, notes = versions_in(self._folder_of(model))
                present |= set(found.values())
                whole, waiting = self._whole_of(model, found)
            except OSError as error:
                problems[name] = f"cannot read its folder: {error}"
                unreadable.add(self._mirrors_dir / model.base_path if model.base else model.base_path)
                versions[name] = before.versions.get(name, ())
                directories |= {key: path for key, path in before.directories.items() if key[0] == name}
                continue
            waits = waits or bool(waiting)
            versions[name] = model.policy.select(whole)
            is_settled = is_settled and (bool(versions[name]) or not waiting)
            directories |= {(name, version): found[version] for version in versions[name]}
            notes += waiting
            if not found:
                notes.append(f"there is no version in {model.base or model.base_path}")
            if missing := model.policy.missing(found):
                notes.append(f"there is no version {', '.join(map(str, missing))} in {model.base or model.base_path}")
            if notes:
                problems[name] = "; ".join(notes)
        self._forget_gone(present, unreadable)
        self._publish(Found(versions, problems, directories, is_settled), models)
        return not waits

    def _folder_of(self, model: ConfiguredModel) -> Path:
        """The folder to look into. Raises OSError: a folder elsewhere cannot be copied."""
        if model.base is None:
            return model.base_path
        mirror = self._mirrors.get(model.base_path)
        if mirror is None:
            mirror = self._mirrors[model.base_path] = Mirror(model.base, self._mirrors_dir / model.base_path)
        mirror.refresh(model)
        return mirror.directory

    def _publish(self, found: Found, models: Mapping[str, ConfiguredModel]) -> None:
        if found == self._last or models is not self._models:
            return
        for name, problem in found.problems.items():
            if self._known.problems.get(name) != problem:
                logger.warning("a model's folder", extra={"model": name, "problem": problem})
        self._last = self._known = found
        self._on_found(found)

    def _whole_of(self, model: ConfiguredModel, found: Mapping[int, Path]) -> tuple[list[int], list[str]]:
        """The versions that may be served, and the hindrances of others; looks only at those that could be wanted."""
        whole: list[int] = []
        waiting: list[str] = []
        for version in sorted(found, reverse=True):
            if model.policy.kind == "latest" and len(whole) >= model.policy.count:
                break
            if model.policy.kind == "specific" and version not in model.policy.versions:
                continue
            reason = self._hindrance(model, version, found[version])
            if reason:
                waiting.append(f"version {version} is not taken yet: {reason}")
            else:
                whole.append(version)
        return whole, waiting

    def _hindrance(self, model: ConfiguredModel, version: int, directory: Path) -> str:
        accepted = self._whole.get(directory)
        if accepted is not None and (model.name, version) not in self._failed:
            return ""
        now = fingerprint(directory)
        if accepted is not None and accepted == now:
            return ""
        if accepted is not None:
            del self._whole[directory]
            return "its files changed after it had failed"
        seen, since = self._seen.pop(directory, (None, 0.0))
        if now is None:
            return "files disappear from it"
        if now.odd:
            return now.odd
        since = since if seen == now else time.monotonic()
        self._seen[directory] = (now, since)
        if missing := missing_part(directory, platform=model.platform):
            return f"it lacks {missing}"
        is_settled = time.monotonic() - since >= self._settle_seconds
        is_old = time.time() - now.changed_at() >= _QUIET_FACTOR * self._settle_seconds
        if not (is_settled or is_old):
            return "its files change"
        self._whole[directory] = now
        return ""

    def _forget_gone(self, found: Collection[Path], unreadable: Collection[Path]) -> None:
        """A version that goes and returns is looked at anew."""
        for folders in (self._whole, self._seen):
            for path in [path for path in folders if path not in found and path.parent not in unreadable]:
                del folders[path]


class Mirror:
    """A base path of another storage as a folder, watched as any other. Used by one thread.

    A version is put there by a rename, once its files are copied and the storage lists the same files as before; where
    they change it is copied anew.

    Args:
        directory: the folder that becomes the base path; files of an earlier process there do not count.
    """

    def __init__(self, base: Place, directory: Path) -> None:
        self._base, self.directory = base, directory
        self._copied: dict[str, _Listing] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    def refresh(self, model: ConfiguredModel) -> None:
        """Copies missing versions that the model's policy could take, and removes versions that are gone there. Raises
        OSError: the storage cannot be read; the copies stay."""
        try:
            there = {child.name: child for child in self._base.children() if _is_version(child.name)}
            there = {name: child for name, child in there.items() if child.is_dir()}
            wanted = list(self._taken(model, sorted(there.values(), key=lambda child: int(child.name), reverse=True)))
        except HeadraceError as error:
            raise OSError(error.message) from error
        for name in self._copied.keys() - set(wanted):
            del self._copied[name]
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _taken(self, model: ConfiguredModel, newest_first: Iterable[Place]) -> Iterable[str]:
        """Versions that are here or have just been copied; of the latest as many as it takes to have enough whole
        ones."""
        whole_count = 0
        for version in newest_first:
            if model.policy.kind == "specific" and int(version.name) not in model.policy.versions:
                continue
            if model.policy.kind == "latest" and whole_count >= model.policy.count:
                return
            if self._is_copied(version):
                whole_count += not missing_part(self.directory / version.name, platform=model.platform)
                yield version.name

    def _is_copied(self, version: Place) -> bool:
        listing = _listing(version)
        if not listing or self._copied.get(version.name) == listing:
            return bool(listing)
        aside = self.directory / f".{version.name}.{uuid.uuid4().hex[:8]}"
        try:
            version.copy_tree(Place(LOCAL, str(aside)))
            if _listing(version) != listing:
                return version.name in self._copied
            kept = self.directory / version.name
            if kept.exists():
                kept.rename(gone := aside.with_name(f"{aside.name}.old"))
                shutil.rmtree(gone, ignore_errors=True)
            aside.rename(kept)
            self._copied[version.name] = listing
            return True
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _listing(version: Place) -> _Listing:
    return tuple((str(file), file.size()) for file in version.walk())
