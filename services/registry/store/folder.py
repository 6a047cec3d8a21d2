"""Files in the registry's data folder; of a large file that a trainer sent as a patch, the patch alone.

    blobs/ab/<digest>          the whole file
    blobs/ab/<digest>.patch    its difference from its base: a line of JSON {"base", "bytes"}, then the patch
                               (common/registry/patches.py)
    bases/<digest>[.patch]     of a file that was removed, and of which others are made
    uploads/<digest>.at_hand   the bytes of the newest file of a chain, which the next patch changes in their place

A file is here where either of the first two is. The patch is flushed to the disk. A file that is read is put together,
verified and whole; beside its patch it is not flushed, and goes at the start of a registry, or once it has not been
read for a while and another file is made of it. A chain has 32 patches at most; then a whole file begins another.
"""

import hashlib
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypedDict

from common.errors import DataLoss, InvalidInput
from common.registry.patches import apply, joined, largest_patch_bytes
from common.whole_files import sync, write_whole
from services.registry.store.manifest import check_digest
from services.registry.store.shelf import is_swept, path_of, set_aside, set_aside_for

_MOST_PATCHES = 32
_COMPACTED_FROM = 16
"""Removed files below a file that is here: from this number on it is made whole again, and they go."""
_PATCH, _AT_HAND = ".patch", ".at_hand"


class _Head(TypedDict):
    """The first line of a patch: the digest of its base, and the size of either file."""

    base: str
    bytes: int


class InFolder:
    """A shelf in the data folder itself (shelf.py). Thread-safe; one process per folder changes it."""

    is_near = True

    def __init__(self, directory: Path, *, keeps_patches: bool = True) -> None:
        """keeps_patches: of files to come; present files are read either way."""
        self._directory, self._bases, self._keeps_patches = directory, directory / "bases", keeps_patches
        self._changing, self._unpacking = threading.RLock(), threading.Lock()
        self._heads: dict[str, _Head] = {}
        """Of each patch, by the digest of the file that it makes."""
        self._made_of: defaultdict[str, set[str]] = defaultdict(set)
        for path in (directory / "uploads").glob(f"*{_AT_HAND}"):
            path.unlink()
        for folder in (directory / "blobs").glob("??"), [self._bases]:
            for path in (patch for shard in folder for patch in shard.glob(f"*{_PATCH}")):
                with suppress(DataLoss):  # a reader of the file hears of it
                    self._note(path.stem, _head_of(path))
        for digest in self._heads:
            path = path_of(directory, digest)
            if path.with_suffix(_PATCH).exists() and self._is_whole(self._below(digest)[-1]):
                path.unlink(missing_ok=True)
        for path in self._bases.glob("*"):  # left by a crash
            if not self._made_of.get(path.stem):
                path.unlink(missing_ok=True)
                self._forget(path.stem)

    def size_of(self, digest: str) -> int:
        path = path_of(self._directory, digest)
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return _head_of(path.with_suffix(_PATCH))["bytes"]

    def note_of(self, digest: str) -> Path:
        path = path_of(self._directory, digest)
        return path if path.exists() else path.with_suffix(_PATCH)

    def open(self, digest: str) -> BinaryIO:
        path = path_of(self._directory, digest)
        if digest in self._heads:
            with suppress(FileNotFoundError):
                os.utime(path)
        with suppress(FileNotFoundError):
            return path.open("rb")
        self._unpack(digest)
        return path.open("rb")

    def url_of(self, digest: str) -> str:
        return ""

    def put(self, digest: str, source: Path, *, made_of: tuple[str, bytes] | None = None) -> None:
        target = path_of(self._directory, digest)
        target.parent.mkdir(exist_ok=True)
        os.utime(source)
        with self._changing:
            if made_of and self._keeps(digest, *made_of, source.stat().st_size):
                source.rename(self._at_hand(digest))
            else:
                if made_of:
                    sync(source)
                source.rename(target)
        sync(target.parent)
        sync(target.parent.parent)

    def take(self, digest: str, target: Path) -> bool:
        with self._changing, suppress(FileNotFoundError):
            os.utime(self._at_hand(digest))  # as a part it is not stale
            self._at_hand(digest).rename(target)
            return True
        return False

    def patch_from(self, digest: str, bases: Sequence[str]) -> tuple[str, bytes] | None:
        with self._changing, suppress(FileNotFoundError):
            below = self._below(digest)
            base = next((base for base in below[1:] if base in bases), None)
            if base is None:
                return None
            found = [_found(self._directory, each, _PATCH) for each in reversed(below[: below.index(base)])]
            size_bytes = self._heads[digest]["bytes"]
            if None in found or sum(_size(path) for path in found if path) > largest_patch_bytes(size_bytes):
                return None
            patches = [_patch_in(path) for path in found if path]
            patch = patches[0] if len(patches) == 1 else joined(patches, size_bytes)
            return None if patch is None else (base, patch)
        return None

    def _keeps(self, digest: str, base: str, patch: bytes, size_bytes: int) -> bool:
        """Writes the patch down where it can stand for the whole file."""
        below = self._below(base)
        is_known = digest in self._heads or any(path.exists() for path in self._removed(digest))
        is_no_base = len(below) > _MOST_PATCHES or digest in below or not self._is_whole(below[-1])
        if not self._keeps_patches or is_known or is_no_base:
            return False
        head: _Head = {"base": base, "bytes": size_bytes}
        content = json.dumps(head).encode() + b"\n" + patch
        write_whole(path_of(self._directory, digest).with_suffix(_PATCH), content)
        self._note(digest, head)
        return True

    def pack(self, *, unused_since: float) -> int:
        """Leaves of files that were not read since (epoch seconds) the patch alone, where a patch stands beside them
        and others are made of them; returns the bytes that this freed."""
        freed = 0
        for digest in [digest for digest in tuple(self._heads) if self._made_of.get(digest)]:
            with self._changing, suppress(FileNotFoundError):
                path = path_of(self._directory, digest)
                status = path.stat()
                is_made = path.with_suffix(_PATCH).exists() and self._is_whole(self._below(digest)[-1])
                if status.st_mtime <= unused_since and is_made:
                    path.unlink()
                    freed += status.st_size
        self._compact()
        return freed

    def packed(self) -> tuple[int, int]:
        """(files of which only the patch is here, bytes that this saves)."""
        count = saved = 0
        for digest, head in tuple(self._heads.items()):
            path = path_of(self._directory, digest)
            if not path.exists() and (patch_bytes := _size(path.with_suffix(_PATCH))):
                count, saved = count + 1, saved + head["bytes"] - patch_bytes
        return count, saved

    def remove(self, digest: str) -> int:
        path = path_of(self._directory, digest)
        patch = path.with_suffix(_PATCH)
        with self._changing:
            self._at_hand(digest).unlink(missing_ok=True)
            before = _size(path) + _size(patch)
            if not path.exists() and not patch.exists():
                raise FileNotFoundError(digest)
            if not self._made_of.get(digest):
                with suppress(FileNotFoundError):
                    set_aside(self._directory, digest)
                patch.unlink(missing_ok=True)
                self._forget(digest)
                return before
            self._bases.mkdir(exist_ok=True)
            if patch.exists():
                patch.replace(self._bases / patch.name)
                with suppress(FileNotFoundError):
                    set_aside(self._directory, digest)
            else:
                path.replace(self._bases / digest)
            return before - sum(map(_size, self._removed(digest)))

    def sweep(self, seconds: float) -> bool:
        for path in set_aside_for(self._directory, seconds):
            path.unlink(missing_ok=True)
        return is_swept(self._directory)

    def _unpack(self, digest: str) -> None:
        """Raises FileNotFoundError; DataLoss: the file put together is another file."""
        path = path_of(self._directory, digest)
        with self._unpacking:
            if path.exists():
                return
            aside = self._directory / "uploads" / f"{digest}.whole.part"
            try:
                assemble(self._directory, digest, aside)
                with self._changing:
                    path.with_suffix(_PATCH).stat()  # not collected meanwhile
                    aside.replace(path)
            finally:
                aside.unlink(missing_ok=True)

    def _compact(self) -> None:
        """At most a file a call: made whole, it needs no removed file."""
        for digest in tuple(self._heads):
            with self._changing:
                below = self._below(digest)[1:]
                removed = [base for base in below if any(path.exists() for path in self._removed(base))]
                are_alone = all(len(self._made_of[base]) == 1 for base in below)
                patch = path_of(self._directory, digest).with_suffix(_PATCH)
            if patch.exists() and len(removed) == len(below) >= _COMPACTED_FROM and are_alone:
                with self.open(digest), self._changing:
                    sync(patch.with_suffix(""))
                    patch.unlink(missing_ok=True)
                    self._forget(digest)
                return

    def _below(self, digest: str) -> list[str]:
        """The file, its base, and so on to a file without a patch."""
        found = [digest]
        while head := self._heads.get(found[-1]):
            found.append(head["base"])
        return found

    def _is_whole(self, digest: str) -> bool:
        return _found(self._directory, digest, "") is not None

    def _note(self, digest: str, head: "_Head") -> None:
        self._heads[digest] = head
        self._made_of[head["base"]].add(digest)

    def _forget(self, digest: str) -> None:
        """It is not made of its base any more; a removed base of which nothing is made goes."""
        head = self._heads.pop(digest, None)
        if head is None:
            return
        base = head["base"]
        self._made_of[base].discard(digest)
        if not self._made_of[base]:
            del self._made_of[base]
            removed = [path for path in self._removed(base) if path.exists()]
            for path in removed:
                path.unlink()
            if removed:
                self._forget(base)

    def _at_hand(self, digest: str) -> Path:
        return self._directory / "uploads" / f"{digest}{_AT_HAND}"

    def _removed(self, digest: str) -> tuple[Path, Path]:
        return self._bases / digest, self._bases / f"{digest}{_PATCH}"


def assemble(directory: Path, digest: str, target: Path) -> None:
    """Writes a whole file of a data folder, which may be whole there, to the target.

    Raises:
        FileNotFoundError: it is not here. DataLoss: it is damaged, or its base is missing.
    """
    patches, at = list[tuple[Path, _Head]](), digest
    while (whole := _found(directory, at, "")) is None:
        patch = _found(directory, at, _PATCH)
        if patch is None and not patches:
            raise FileNotFoundError(digest)
        if patch is None or len(patches) > _MOST_PATCHES:
            raise DataLoss(f"file {digest} is made of {at}, which is missing")
        patches.append((patch, _head_of(patch)))
        at = patches[-1][1]["base"]
    shutil.copyfile(whole, target)
    with target.open("r+b") as file:
        for patch, head in reversed(patches):
            try:
                apply(file, _patch_in(patch), head["bytes"])
            except DataLoss as error:
                raise DataLoss(f"file {digest} is damaged: {error.message}") from error
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise DataLoss(f"file {digest} is damaged: its bytes hash to {found}")


def _found(directory: Path, digest: str, suffix: str) -> Path | None:
    """Its path here, else among the removed files."""
    paths = path_of(directory, digest).with_suffix(suffix), directory / "bases" / f"{digest}{suffix}"
    return next((path for path in paths if path.is_file()), None)


def _head_of(patch: Path) -> _Head:
    """Raises FileNotFoundError, DataLoss."""
    with patch.open("rb") as file:
        try:
            head = json.loads(file.readline())
            return {"base": check_digest(head["base"]), "bytes": int(head["bytes"])}
        except (ValueError, TypeError, KeyError, InvalidInput) as error:
            raise DataLoss(f"{patch} does not begin as a patch: {error}") from error


def _patch_in(path: Path) -> bytes:
    """Without the head. Raises FileNotFoundError."""
    return path.read_bytes().partition(b"\n")[2]


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
