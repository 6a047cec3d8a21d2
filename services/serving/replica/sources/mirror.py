"""A base path of another storage as a folder of this machine: its versions are copied here and watched as any others.

A version is put into the folder by a rename, once its files are copied and the storage lists the same files as before.
A version whose files change there is copied anew. The watch of folders reports missing files.
"""

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from common.errors import HeadraceError
from common.storage import LOCAL, Place
from services.serving.options.model_server_config import ConfiguredModel
from services.serving.replica.sources.version_folders import missing_part

_Listing = tuple[tuple[str, int], ...]


class Mirror:
    """Of a base path. Used by one thread.

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
