"""Files by their SHA-256: `blobs/ab/<digest>`, complete and verified or not there; `uploads/<digest>.part` until then.

A crash leaves at most a .part file, which the next upload takes up; a blob is renamed into place only after its bytes
were hashed and flushed to disk. Where the files are kept at a URL it is copied there then (shelf.py).
"""

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, NotFound, Unavailable
from common.registry.files import digest_of, write_gently
from common.registry.patches import PIECE_BYTES, SMALLEST_FILE_BYTES, apply, largest_patch_bytes, patch_between, patched
from services.registry.store.folder import InFolder
from services.registry.store.manifest import DIGEST_PATTERN, check_digest
from services.registry.store.shelf import GONE, Shelf, path_of

_MOST_BASES = 4
CHUNK_BYTES = 256 * 1024
"""A message of a download. A receiver may serve predictions on the same core: a megabyte took it for 3 ms."""


@dataclass
class _Upload:
    """The writer of a .part file. A newer upload takes it over from a silent upload, but not once it is sealed:
    then all bytes are there and are being verified."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    last_write: float = field(default_factory=time.monotonic)
    taken_over: bool = False
    sealed: bool = False

    def yields_after(self, seconds: float) -> bool:
        """True when the upload was silent for that long and has now lost its turn."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            silent = time.monotonic() - self.last_write >= seconds
            self.taken_over = self.taken_over or (silent and not self.sealed)
            return self.taken_over
        finally:
            self.lock.release()

    @contextmanager
    def turn(self, digest: str) -> Iterator[None]:
        """Around each touch of the .part file. Raises Unavailable when another upload has taken over."""
        with self.lock:
            if self.taken_over:
                raise Unavailable(f"another upload of {digest} has taken over")
            yield
            self.last_write = time.monotonic()


class Blobs:
    """Thread-safe; one process per folder."""

    def __init__(
        self,
        directory: Path,
        *,
        max_file_bytes: int,
        takeover_seconds: float = 5.0,
        shelf: Shelf | None = None,
        kept_free_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """
        Args:
            takeover_seconds: an upload that was silent for this long gives way to another of the same file.
            kept_free_bytes: no file is taken where the disk has less than this left.
        """
        self._kept_free_bytes = kept_free_bytes
        self._shelf: Shelf = shelf or InFolder(directory)
        self._blobs = directory / "blobs"
        self._uploads = directory / "uploads"
        self._max_file_bytes = max_file_bytes
        self._takeover_seconds = takeover_seconds
        self._lock = threading.Lock()
        self._running: dict[str, _Upload] = {}
        self._patching = threading.Lock()
        self._newest_patch: tuple[tuple[str, str], bytes | None] | None = None
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._uploads.mkdir(exist_ok=True)

    def size_of(self, digest: str) -> int | None:
        """Bytes of a complete blob; None when there is none."""
        try:
            return self._shelf.size_of(digest)
        except FileNotFoundError:
            return None

    def known_size_of(self, digest: str) -> int:
        """Bytes of a complete blob. Raises NotFound."""
        size_bytes = self.size_of(check_digest(digest))
        if size_bytes is None:
            raise NotFound(f"there is no file {digest}")
        return size_bytes

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here. The others are kept for another grace period: a version is about to name them."""
        absent: list[str] = []
        for digest in dict.fromkeys(digests):
            check_digest(digest)
            with self._lock:
                try:
                    os.utime(self._shelf.note_of(digest))
                except FileNotFoundError:
                    absent.append(digest)
        return absent

    def received_bytes(self, digest: str) -> tuple[int, bool]:
        """(bytes that are here, whether the blob is complete)."""
        size = self.size_of(check_digest(digest))
        if size is not None:
            return size, True
        with suppress(FileNotFoundError):
            return self._part(digest).stat().st_size, False
        return 0, False

    def receive(self, digest: str, size_bytes: int, offset: int, chunks: Iterable[bytes]) -> int:
        """Takes the bytes from `offset` on; returns the blob's size once it is complete and verified.

        Raises:
            InvalidInput: the bytes are not `size_bytes` long or do not have the digest (the part is removed), or too
                large.
            Conflict: fewer bytes than `offset` are here; call received_bytes.
            Unavailable: another upload of the same file is running, or the disk is full. The received bytes stay for
                the next.
        """
        check_digest(digest)
        if not 0 <= size_bytes <= self._max_file_bytes:
            raise InvalidInput(f"file {digest} is of {size_bytes} bytes, at most {self._max_file_bytes} are taken")
        if not 0 <= offset <= size_bytes:
            raise InvalidInput(f"offset {offset} is outside the {size_bytes} bytes of {digest}")
        with _disk_errors(digest), self._running_upload(digest) as upload:
            known = self.size_of(digest)
            if known is not None:
                return known
            self._write_part(digest, size_bytes, offset, chunks, upload)
            part = self._part(digest)
            self._publish(part, digest, size_bytes, digest_of(part))
        return size_bytes

    def receive_patch(self, digest: str, size_bytes: int, base: str, chunks: Iterable[bytes]) -> str:
        """Takes a patch and stores the whole file that it makes of the base; returns the file's digest.

        Args:
            digest: what the file must have; empty where the sender takes it meanwhile.

        Raises:
            Conflict: the base is not here at that size, or lies at a URL. Send the whole file.
            DataLoss: the chunks are no patch of such a file.
            InvalidInput, Unavailable: as `receive`; also where the base is damaged.
        """
        if not self._shelf.is_near or self.size_of(check_digest(base)) != size_bytes:
            raise Conflict(f"no patch of {base} is taken here for a file of {size_bytes} bytes; send the whole file")
        patch, most = bytearray(), largest_patch_bytes(size_bytes)
        for chunk in chunks:
            patch += chunk
            if len(patch) > most:
                raise InvalidInput(f"a patch of a file of {size_bytes} bytes has at most {most}, more came")
        name = digest or uuid.uuid4().hex
        with _disk_errors(name), self._running_upload(name) as upload:
            if digest and self.size_of(digest) is not None:
                return digest
            part = self._part(uuid.uuid4().hex)  # a whole file's upload would go on with the bytes of another
            try:
                with upload.turn(name):
                    found = self._make(part, base, bytes(patch), size_bytes)
                    upload.sealed = True
                if digest or self.size_of(found) is None:
                    self._publish(part, digest or found, size_bytes, found, made_of=(base, bytes(patch)))
            finally:
                part.unlink(missing_ok=True)
        return found

    def _make(self, part: Path, base: str, patch: bytes, size_bytes: int) -> str:
        """Makes the part of base and patch, in the base's bytes where these are at hand; returns its digest. A new file
        of 128 MB takes up to 0.26 s of a core more, for new memory."""
        if self._shelf.take(base, part):
            with part.open("r+b") as file:
                apply(file, patch, size_bytes)
                return hashlib.file_digest(file, "sha256").hexdigest()
        try:
            old = self._shelf.open(base)
        except FileNotFoundError:
            raise Conflict(f"the base {base} has been collected; send the whole file") from None
        with old, part.open("w+b") as file:
            self._keep_room(file.fileno(), base, size_bytes)
            return patched(file, old, patch, size_bytes, write_bytes=PIECE_BYTES)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        """The blob's bytes from the offset on, in chunks of 1 MiB. The last comes only after all were verified.

        Raises:
            NotFound, InvalidInput.
            DataLoss: the bytes are not the stored bytes.
            Unavailable: they are at a URL that cannot be reached.
        """
        try:
            size = self._shelf.size_of(check_digest(digest))
            file = self._shelf.open(digest)
        except FileNotFoundError:
            raise NotFound(f"there is no file {digest}") from None
        with file:
            if not 0 <= offset <= size:
                raise InvalidInput(f"offset {offset} is outside file {digest}")
            hashed = hashlib.sha256()
            for _ in range(offset // CHUNK_BYTES):
                hashed.update(file.read(CHUNK_BYTES))
            hashed.update(file.read(offset % CHUNK_BYTES))
            held_back = b""
            while chunk := file.read(CHUNK_BYTES):
                hashed.update(chunk)
                if held_back:
                    yield held_back
                held_back = chunk
            if hashed.hexdigest() != digest:
                raise DataLoss(f"file {digest} is damaged: its bytes hash to {hashed.hexdigest()}")
            if held_back:
                yield held_back

    def url_of(self, digest: str) -> str:
        """A URL from which the caller reads the blob; "" where it is read here. Raises NotFound, InvalidInput."""
        try:
            return self._shelf.url_of(check_digest(digest))
        except FileNotFoundError:
            raise NotFound(f"there is no file {digest}") from None

    def path_of(self, digest: str) -> Path | None:
        """Where a whole file, which is not verified, lies for a while; None: at a URL. Raises NotFound, InvalidInput,
        DataLoss."""
        if not self._shelf.is_near:
            return None
        try:
            self._shelf.open(check_digest(digest)).close()
        except FileNotFoundError:
            raise NotFound(f"there is no file {digest}") from None
        return path_of(self._blobs.parent, digest).absolute()

    def patch_of(self, digest: str, bases: Sequence[str]) -> tuple[str, bytes] | None:
        """(base, patch) of the first of at most four bases that a patch makes the file of; None: read all of it.

        Files at a URL have no patches, because both would be fetched first. The receiver of the patch verifies the
        digest: a damaged file or base shows there. The newest patch is kept for the other replicas. Raises
        InvalidInput: a digest is none."""
        size = self.size_of(check_digest(digest))
        if not self._shelf.is_near or size is None or size < SMALLEST_FILE_BYTES:
            return None
        if found := self._shelf.patch_from(digest, bases[:_MOST_BASES]):
            return found
        for base in bases[:_MOST_BASES]:
            if self.size_of(check_digest(base)) == size and (patch := self._patch_between(base, digest, size)):
                return base, patch
        return None

    def _patch_between(self, base: str, digest: str, size: int) -> bytes | None:
        with self._patching:
            if self._newest_patch is None or self._newest_patch[0] != (base, digest):
                try:
                    with self._shelf.open(base) as old, self._shelf.open(digest) as new:
                        self._newest_patch = (base, digest), patch_between(old, new, size)
                except FileNotFoundError:  # collected meanwhile
                    return None
            return self._newest_patch[1]

    def digests(self) -> list[str]:
        """Of every complete blob."""
        found = {path.stem for path in self._blobs.glob("??/*") if path.suffix != GONE}
        return [digest for digest in found if DIGEST_PATTERN.fullmatch(digest)]

    def remove(self, digest: str, *, unused_since: float) -> int | None:
        """Sets the blob aside if it was not stored or read since (epoch seconds); `sweep` deletes its bytes.

        Returns the bytes that will be freed; None when it stays."""
        with self._lock, suppress(FileNotFoundError):
            if self._shelf.note_of(digest).stat().st_mtime <= unused_since:
                return self._shelf.remove(digest)
        return None

    def pack(self, *, unused_since: float) -> int:
        """As the shelf has it."""
        return self._shelf.pack(unused_since=unused_since)

    def packed(self) -> tuple[int, int]:
        """As the shelf has it."""
        return self._shelf.packed()

    def sweep(self, seconds: float) -> bool:
        """Deletes the bytes of removed blobs, for this time; whether none is left. Raises Unavailable: they are at a
        URL that cannot be reached."""
        return self._shelf.sweep(seconds)

    def remove_stale_uploads(self, *, unused_since: float) -> int:
        """Deletes .part files that were not written to since; returns how many."""
        removed = 0
        for part in self._uploads.glob("*.part"):
            with self._lock, suppress(FileNotFoundError):
                if part.stem not in self._running and part.stat().st_mtime <= unused_since:
                    part.unlink()
                    removed += 1
        return removed

    def _part(self, digest: str) -> Path:
        return self._uploads / f"{digest}.part"

    @contextmanager
    def _running_upload(self, digest: str) -> Iterator[_Upload]:
        """A writer per .part file."""
        upload = _Upload()
        with self._lock:
            before = self._running.get(digest)
            if before is not None and not before.yields_after(self._takeover_seconds):
                raise Unavailable(f"another upload of {digest} is running")
            self._running[digest] = upload
        try:
            yield upload
        finally:
            with self._lock:
                if self._running.get(digest) is upload:
                    del self._running[digest]

    def _write_part(self, digest: str, size_bytes: int, offset: int, chunks: Iterable[bytes], upload: _Upload) -> None:
        with self._part(digest).open("ab", buffering=0) as part:
            with upload.turn(digest):
                if part.tell() < offset:
                    raise Conflict(f"only {part.tell()} bytes of {digest} are here, the upload starts at {offset}")
                part.truncate(offset)
            for chunk in chunks:
                with upload.turn(digest):
                    offset += len(chunk)
                    if offset > size_bytes:
                        self._part(digest).unlink()
                        raise InvalidInput(f"file {digest} should have {size_bytes} bytes, more came")
                    self._keep_room(part.fileno(), digest)
                    write_gently(part, chunk)
            with upload.turn(digest):
                upload.sealed = offset == size_bytes
            os.fsync(part.fileno())
        if offset < size_bytes:
            raise Unavailable(f"the upload of {digest} ended after {offset} of {size_bytes} bytes")

    def _keep_room(self, descriptor: int, digest: str, size_bytes: int = 0) -> None:
        """Files may not take the room that the catalog needs: without it no file could be removed."""
        disk = os.fstatvfs(descriptor)
        left = disk.f_bavail * disk.f_frsize - size_bytes
        if left < self._kept_free_bytes:
            raise Unavailable(
                f"file {digest} cannot be stored: the disk has {left} bytes left, and {self._kept_free_bytes} are kept "
                "for the catalog; make room"
            )

    def _publish(
        self, part: Path, digest: str, size_bytes: int, found: str, *, made_of: tuple[str, bytes] | None = None
    ) -> None:
        """found: the digest of the part's bytes."""
        if found != digest:
            part.unlink()
            raise InvalidInput(f"the {size_bytes} bytes sent as {digest} hash to {found}")
        self._shelf.put(digest, part, made_of=made_of)


@contextmanager
def _disk_errors(digest: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        raise Unavailable(f"file {digest} cannot be stored: {error.strerror or error}") from error
