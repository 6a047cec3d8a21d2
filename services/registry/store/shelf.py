"""Where the bytes of complete files lie: in the data folder, or at a URL (REGISTRY_BLOBS).

Beside a URL the data folder keeps a note for each file, `blobs/ab/<digest>` with its size in digits, whose time of
change is the time of its last read. A note is written after the bytes and goes before them, so that a crash leaves
at most bytes without a note: the next start notes them, and the collection finds that no version needs them.

A removed file is set aside as `<digest>.gone` within the data folder, also while the storage is away; its bytes
go with the next `sweep`, which may take its time.

`blobs_at.json` in the data folder and `owner` at the URL name each other. A registry removes what its own catalog does
not need, so no two of them share a URL.
"""

import json
import posixpath
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from common.errors import Conflict, DataLoss, InvalidInput, NotFound, Unavailable
from common.storage import LOCAL, Place, place_of
from common.whole_files import write_whole
from services.registry.store.manifest import DIGEST_PATTERN

GONE = ".gone"
_AT, _OWNER = "blobs_at.json", "owner"
_REMOVAL_SECONDS = 60.0
_SHORTEST_SECONDS = 60
"""Of a presigned URL: clocks differ, and a download begins when others have ended."""


class Shelf(Protocol):
    """Files by digest. Methods raise Unavailable where the storage cannot be reached."""

    is_near: bool
    """Whether reading a file costs no network."""

    def size_of(self, digest: str) -> int:
        """Bytes. Raises FileNotFoundError."""

    def open(self, digest: str) -> BinaryIO:
        """To read; may be sought in. Raises FileNotFoundError; DataLoss: it is noted, and the bytes are not there."""

    def url_of(self, digest: str) -> str:
        """A URL from which others read the file; "" where the registry gives its bytes. Raises FileNotFoundError."""

    def put(self, digest: str, source: Path, *, made_of: tuple[str, bytes] | None = None) -> None:
        """Moves a whole file here, durably.

        Args:
            made_of: (base, patch) of another file here. The file was not flushed, and the patch may
                stand in its place; then its bytes are at hand for `take`.
        """

    def take(self, digest: str, target: Path) -> bool:
        """Moves a file's bytes, for which a patch stands and which have no reader, to the target, to be changed there.
        False: they are not at hand."""

    def note_of(self, digest: str) -> Path:
        """The note in the data folder, whose time of change is the file's last read; it may be missing."""

    def patch_from(self, digest: str, bases: Sequence[str]) -> tuple[str, bytes] | None:
        """(base, patch), where a patch of the file from any of the bases is kept."""

    def pack(self, *, unused_since: float) -> int:
        """Leaves patches alone of files that were not read since (epoch seconds); returns the bytes that this freed."""

    def packed(self) -> tuple[int, int]:
        """(files of which only a patch is here, bytes that this saves)."""

    def remove(self, digest: str) -> int:
        """The file is not there any more; its bytes are until they are swept. Returns how many there are. Raises
        FileNotFoundError."""

    def sweep(self, seconds: float) -> bool:
        """Deletes the bytes of removed files, for this time; whether none is left."""


def path_of(directory: Path, digest: str) -> Path:
    """Of the file or its note below a data folder."""
    return directory / "blobs" / digest[:2] / digest


def set_aside(directory: Path, digest: str) -> None:
    """Raises FileNotFoundError."""
    path = path_of(directory, digest)
    path.replace(path.with_suffix(GONE))


def set_aside_for(directory: Path, seconds: float) -> Iterator[Path]:
    """The files that are set aside, until the time is over."""
    until = time.monotonic() + seconds
    for path in (directory / "blobs").glob(f"??/*{GONE}"):
        if time.monotonic() > until:
            return
        yield path


def is_swept(directory: Path) -> bool:
    return not any((directory / "blobs").glob(f"??/*{GONE}"))


class Elsewhere:
    """At a URL, with notes in the data folder."""

    is_near = False

    def __init__(self, directory: Path, place: Place, *, presigned_seconds: int = 0) -> None:
        self._directory, self.place = directory, place
        self._presigned_seconds = presigned_seconds
        self._changed = threading.Condition()
        self._busy: set[str] = set()
        """Digests whose bytes are being copied or deleted."""

    def size_of(self, digest: str) -> int:
        return int(path_of(self._directory, digest).read_text())

    def open(self, digest: str) -> BinaryIO:
        self.size_of(digest)
        try:
            return self._there(digest).open()
        except NotFound:
            raise DataLoss(f"file {digest} is not in {self.place}") from None

    def url_of(self, digest: str) -> str:
        self.size_of(digest)
        return self._there(digest).presigned(self._presigned_seconds) if self._presigned_seconds else ""

    def put(self, digest: str, source: Path, *, made_of: tuple[str, bytes] | None = None) -> None:
        size = source.stat().st_size
        target = self._there(digest)
        with self._alone(digest):
            target.parent.make_dirs()
            Place(LOCAL, str(source.absolute())).copy(target, overwrite=True)
            self._note(digest, size)
        source.unlink()

    def take(self, digest: str, target: Path) -> bool:
        return False

    def note_of(self, digest: str) -> Path:
        return path_of(self._directory, digest)

    def patch_from(self, digest: str, bases: Sequence[str]) -> tuple[str, bytes] | None:
        """Files at a URL come there whole."""
        return None

    def pack(self, *, unused_since: float) -> int:
        return 0

    def packed(self) -> tuple[int, int]:
        return 0, 0

    def remove(self, digest: str) -> int:
        size = self.size_of(digest)
        set_aside(self._directory, digest)
        return size

    def sweep(self, seconds: float) -> bool:
        for path in set_aside_for(self._directory, seconds):
            with self._alone(path.stem):
                if not path_of(self._directory, path.stem).exists():  # Else it was stored again.
                    with suppress(NotFound):
                        self._there(path.stem).remove()
                path.unlink()
        return is_swept(self._directory)

    @contextmanager
    def _alone(self, digest: str) -> Iterator[None]:
        """Raises Unavailable when another has the digest's bytes in hand for too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: digest not in self._busy, _REMOVAL_SECONDS):
                raise Unavailable(f"the bytes of file {digest} are still being stored or deleted")
            self._busy.add(digest)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(digest)
                self._changed.notify_all()

    def note_all(self) -> None:
        """Notes files without a note."""
        for path, size in self.place.sizes().items():
            digest = posixpath.basename(path)
            note = path_of(self._directory, digest)
            if DIGEST_PATTERN.fullmatch(digest) and not (note.exists() or note.with_suffix(GONE).exists()):
                self._note(digest, size)

    def _there(self, digest: str) -> Place:
        return self.place / digest[:2] / digest

    def _note(self, digest: str, size: int) -> None:
        write_whole(path_of(self._directory, digest), str(size).encode(), flush=False)


def elsewhere_of(directory: Path) -> Elsewhere | None:
    """The place that the data folder names; None: its files are in it. Raises InvalidInput: the scheme is not known
    here."""
    with suppress(FileNotFoundError):
        return Elsewhere(directory, place_of(json.loads((directory / _AT).read_text())["url"]))
    return None


def claim(directory: Path, url: str, *, owner: str = "", presigned_seconds: int = 0) -> Elsewhere | None:
    """The place of a registry's files, claimed for its data folder; None where `url` is empty.

    Args:
        owner: of a catalog that several registries lead in turn: the place is claimed for it, and what the folder has
            noted of the files is forgotten.
        presigned_seconds: how long a URL counts that is given to others to read a file; 0: none is given.

    Raises:
        InvalidInput: the scheme is not known, or has no such URLs.
        Conflict: the folder's files are elsewhere, or another registry's are at the URL.
        Unavailable: the URL cannot be reached.
    """
    before = elsewhere_of(directory)
    if presigned_seconds and (not url or presigned_seconds < _SHORTEST_SECONDS):
        raise InvalidInput(
            f"REGISTRY_PRESIGNED_SECONDS is {presigned_seconds}, expected 0, or {_SHORTEST_SECONDS} and more with "
            "REGISTRY_BLOBS"
        )
    if not url:
        if before is not None:
            raise Conflict(f"the files of {directory} are in {before.place}; set REGISTRY_BLOBS to it")
        return None
    place = place_of(url)
    if place.is_local:
        raise InvalidInput(f"REGISTRY_BLOBS is {url}, expected a URL of another storage: REGISTRY_DATA_DIR is local")
    if before is None and any((directory / "blobs").glob("??/*")):
        raise Conflict(f"the files of {directory} are in it; only a new registry keeps its files in {place}")
    if before is not None and before.place != place:
        raise Conflict(f"the files of {directory} are in {before.place}, and REGISTRY_BLOBS is {place}")
    if owner:
        shutil.rmtree(directory / "blobs", ignore_errors=True)
    _own(directory, place, owner)
    found = Elsewhere(directory, place, presigned_seconds=presigned_seconds)
    if presigned_seconds:
        (place / _OWNER).presigned(presigned_seconds)
    found.note_all()
    return found


def _own(directory: Path, place: Place, owner: str) -> None:
    note = directory / _AT
    owner = owner or (json.loads(note.read_text())["owner"] if note.exists() else uuid.uuid4().hex)
    mark = place / _OWNER
    if mark.exists():
        theirs = mark.read().decode(errors="replace")
        if theirs != owner:
            raise Conflict(
                f"{place} holds the files of another registry, which would be collected as nobody's; name another "
                f"folder, or remove {mark} where that registry is gone"
            )
    else:
        place.make_dirs()
        mark.write(owner.encode())
    directory.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"url": str(place), "owner": owner}) + "\n")
