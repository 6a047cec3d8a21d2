"""Files anywhere, by URL, through fsspec: one set of rules for every storage.

`/data/a.csv`, `file:///data/a.csv` and `a.csv` are local, `s3://bucket/a.csv`, `gs://bucket/a.csv`,
`az://container/a.csv`, `webhdfs://host:port/a.csv` and `memory://a.csv` name a storage. Rules of every backend, held by
one suite (common/tests/test_storage.py):

- Nothing is overwritten unless it is asked for, nor what another process writes meanwhile: an object store is asked to
  write where there is nothing (If-None-Match, ifGenerationMatch).
- `make_dir` needs the folder above; `make_dirs` makes those that are missing.
- `children` and `walk` are in the order of names.
- A local file is written aside and renamed: a reader sees the whole of it or nothing. Object stores do the same.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Unavailable
from common.whole_files import whole_file

LOCAL, HDFS = "file", "webhdfs"
SCHEMES: Mapping[str, str] = {
    LOCAL: "a path of this machine, with the scheme or without",
    "memory": "this process's memory, for tests",
    "s3": "Amazon S3 and what speaks like it; pip install 'headrace[s3]'",
    "gs": "Google Cloud Storage; pip install 'headrace[gs]'",
    "az": "Azure Blob Storage; pip install 'headrace[az]'",
    HDFS: "Hadoop's HDFS by its name node's HTTP door; pip install 'headrace[webhdfs]'",
}
"""Every scheme that is known, with what it is; the reference is made from them."""
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """A file or folder of a storage. Calls raise NotFound, Conflict or InvalidInput, and Unavailable for the rest.

    Attributes:
        scheme: one of SCHEMES.
        path: with / between names; of a local place absolute, elsewhere without the scheme.
    """

    scheme: str
    path: str

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.path.lstrip('/')}"

    def __truediv__(self, name: str) -> Place:
        return Place(self.scheme, posixpath.join(self.path, name))

    @property
    def is_local(self) -> bool:
        return self.scheme == LOCAL

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def stem(self) -> str:
        return posixpath.splitext(self.name)[0]

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.name)[1]

    @property
    def parent(self) -> Place:
        return Place(self.scheme, posixpath.dirname(self.path))

    def exists(self) -> bool:
        with self._errors():
            return bool(self._storage().exists(self.path))

    def is_dir(self) -> bool:
        with self._errors():
            return bool(self._storage().isdir(self.path))

    def is_file(self) -> bool:
        with self._errors():
            return bool(self._storage().isfile(self.path))

    def size(self) -> int:
        """Bytes of a file."""
        with self._errors():
            return int(self._storage().size(self.path) or 0)

    def open(self) -> BinaryIO:
        """To read; may be sought in."""
        with self._errors():
            if self.is_local:
                return Path(self.path).open("rb")
            opened: BinaryIO = self._storage().open(self.path, "rb")
            return opened

    def presigned(self, seconds: int) -> str:
        """A URL with which anybody reads this file for this long. Raises InvalidInput: this storage makes none, or its
        credentials sign none."""
        with self._errors():
            try:
                return str(self._storage().sign(self.path, expiration=seconds))
            except NotImplementedError as error:
                raise InvalidInput(f"{self.scheme}:// has no presigned URLs; s3://, gs:// and az:// have") from error
            except ValueError as error:  # Azure's, of credentials without the account's key
                raise InvalidInput(f"the credentials of {self.scheme}:// sign no URLs: {error}") from error

    def read(self) -> bytes:
        with self._errors(), self.open() as file:
            return file.read()

    def write(self, content: bytes, *, overwrite: bool = False) -> None:
        """Raises Conflict where it is there and not to be overwritten, NotFound without the folder above."""
        with self.writer(overwrite=overwrite) as file:
            file.write(content)

    @contextlib.contextmanager
    def writer(self, *, overwrite: bool = False) -> Iterator[BinaryIO]:
        """As `write`, in parts. Where the block raises, nothing is left behind."""
        self._check_free(overwrite=overwrite)
        if self.is_local:
            with self._errors(), whole_file(Path(self.path), overwrite=overwrite) as local:
                yield local
            return
        with tempfile.SpooledTemporaryFile(max_size=_COPY_BYTES) as aside:
            yield aside  # type: ignore[misc]  # a spooled file is a BinaryIO in all but name
            aside.seek(0)
            with self._errors(), self._storage().open(self.path, "wb" if overwrite else "xb") as file:
                shutil.copyfileobj(aside, file, _COPY_BYTES)

    def children(self) -> list[Place]:
        """Files and folders directly in this folder, by name. Raises NotFound: it is none."""
        with self._errors():
            if not self._storage().isdir(self.path):
                raise NotFound(f"there is no folder {self}")
            found = self._storage().ls(self.path, detail=False)
        names = sorted({posixpath.basename(str(path).rstrip("/")) for path in found})
        return [self / name for name in names if name]

    def walk(self) -> Iterator[Place]:
        """Every file below this folder: those of a folder by name, then those of its folders by name."""
        children = self.children()
        folders = [child for child in children if child.is_dir()]
        yield from (child for child in children if child not in folders)
        for folder in folders:
            yield from folder.walk()

    def sizes(self) -> dict[str, int]:
        """Bytes of every file below this folder, by its path in it; of an object store in one listing. {}: none is
        there."""
        with self._errors():
            storage = self._storage()
            found: dict[str, dict[str, Any]] = storage.find(self.path, detail=True)
        top = storage._strip_protocol(self.path)
        return {posixpath.relpath(path, top): int(info["size"] or 0) for path, info in found.items()}

    def matching(self) -> list[Place]:
        """The files that this place means: itself, all of a folder, or those that * and ? in its name fit; by name.
        Raises NotFound: there is none."""
        if any(mark in self.name for mark in "*?["):
            found = [place for place in self.parent.children() if fnmatch.fnmatchcase(place.name, self.name)]
            found = [place for place in found if place.is_file()]
        elif self.is_dir():
            found = [place for place in self.children() if place.is_file() and not place.name.startswith((".", "_"))]
        else:
            found = [self] if self.exists() else []
        if not found:
            raise NotFound(f"there is no file {self}")
        return found

    def make_dir(self) -> None:
        """Raises Conflict: it is there. NotFound: the folder above is not."""
        self._check_free(overwrite=False)
        with self._errors():
            self._storage().mkdir(self.path, create_parents=False)

    def make_dirs(self) -> None:
        """With the folders above that are missing; does nothing where it is there. Raises Conflict: a file is there."""
        if self.exists() and not self.is_dir():
            raise Conflict(f"{self} is a file, no folder")
        with self._errors():
            self._storage().makedirs(self.path, exist_ok=True)

    def remove(self, *, with_content: bool = False) -> None:
        """A file, or an empty folder. Raises NotFound; Conflict: a folder that is not empty, unless with_content."""
        if not self.exists():
            raise NotFound(f"there is no {self}")
        is_dir = self.is_dir()
        if is_dir and not with_content and self.children():
            raise Conflict(f"folder {self} is not empty")
        with self._errors():
            self._storage().rm(self.path, recursive=is_dir)

    def rename(self, to: Place, *, overwrite: bool = False) -> None:
        """Within one storage. Raises as `write`."""
        if to.scheme != self.scheme:
            raise InvalidInput(f"{self} cannot be renamed to {to}: they are in different storages")
        self._check_there()
        to._check_free(overwrite=overwrite)
        with self._errors():
            if self.is_local:
                Path(self.path).replace(to.path)
                return
            self._storage().mv(self.path, to.path, recursive=self.is_dir())

    def copy(self, to: Place, *, overwrite: bool = False) -> None:
        """One file, to any storage. Raises as `write`."""
        self._check_there()
        with self.open() as source, to.writer(overwrite=overwrite) as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)

    def copy_tree(self, to: Place) -> int:
        """All files of a folder into another, which is made; how many. Raises as `write`."""
        count = 0
        for file in self.walk():
            target = to / posixpath.relpath(file.path, self.path)
            target.parent.make_dirs()
            file.copy(target)
            count += 1
        return count

    @contextlib.contextmanager
    def as_local(self) -> Iterator[Path]:
        """The file or folder on this machine: itself, or a copy that is gone afterwards."""
        if self.is_local:
            yield Path(self.path)
            return
        self._check_there()
        with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
            copy = Place(LOCAL, directory) / self.name
            if self.is_dir():
                self.copy_tree(copy)
            else:
                self.copy(copy)
            yield Path(copy.path)

    def _check_there(self) -> None:
        if not self.exists():
            raise NotFound(f"there is no {self}")

    def _check_free(self, *, overwrite: bool) -> None:
        if self.exists() and (not overwrite or self.is_dir()):
            raise Conflict(f"{self} is there already")
        if not self.parent.is_dir() and self.scheme in (LOCAL, HDFS, "memory"):  # object stores have no folders
            raise NotFound(f"there is no folder {self.parent}")

    def _storage(self) -> Any:
        return _storage_of(self.scheme, self.path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"there is no {self}") from error
        except FileExistsError as error:
            raise Conflict(f"{self} is there already") from error
        except (IsADirectoryError, NotADirectoryError, io.UnsupportedOperation) as error:
            raise InvalidInput(f"{self} cannot be used: {error}") from error
        except HeadraceError:
            raise
        except OSError as error:
            raise Unavailable(f"{self} cannot be reached: {error.strerror or error}") from error
        except Exception as error:  # what a storage's library raises (no credentials, no network) is not known here
            if self.is_local:
                raise
            raise Unavailable(f"{self} cannot be reached: {type(error).__name__}: {error}") from error


def place_of(text: str | os.PathLike[str]) -> Place:
    """The place that a path or URL names. Raises InvalidInput: the scheme is not known, or what it needs is not
    installed."""
    if not isinstance(text, str):
        return _local(text)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return _local(text)
    if scheme not in SCHEMES:
        raise InvalidInput(f"{text!r} has an unknown scheme {scheme!r}; known are {', '.join(SCHEMES)}")
    if scheme == LOCAL:
        return _local(rest)
    _storage_of(scheme, rest)
    return Place(scheme, f"/{rest.strip('/')}" if scheme == "memory" else rest.rstrip("/"))


def _local(path: str | os.PathLike[str]) -> Place:
    return Place(LOCAL, posixpath.normpath(Path(path).absolute().as_posix()))


def is_url(text: str) -> bool:
    """Whether it names a scheme, known or not."""
    return "://" in text


def _storage_of(scheme: str, path: str) -> Any:
    import fsspec

    try:
        if scheme == HDFS:
            from common import webhdfs

            return webhdfs.storage_of(path)
        return fsspec.filesystem(scheme)
    except ImportError as error:
        raise InvalidInput(f"{scheme}:// is {SCHEMES[scheme]}; here it is not installed: {error}") from error
