"""Files between a folder and the registry: only what is missing, several at a time, verified on both sides."""

import hashlib
import http.client
import io
import logging
import os
import socket
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, PermissionDenied, Unavailable
from common.process.pace import Pace
from common.process.retry import Retry
from common.process.rpc_client import errors_from_status
from common.registry.catalog import FileEntry
from common.registry.patches import GENTLE_BYTES, SAME, SMALLEST_FILE_BYTES, patch_between, patched
from common.registry.paths import path_below
from common.whole_files import sync
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc

_PIECE_BYTES = 256 * 1024
_NOT_THERE = 404
_SCHEMES = ("http", "https")
_CHUNK_BYTES = 1024 * 1024
_NEAR_BYTES = 256 * 1024
_PARALLEL_FILES = 4
_SLOWEST_BYTES_PER_SECOND = 1024 * 1024
_MOST_TIMES = 100
"""All attempts at a file take no longer than this many that come at the slowest rate."""
Item = TypeVar("Item")
Patching = Callable[[Path, FileEntry, str, Path, bytes], str]
"""Fills a file that is not there yet, from (the digest of a base, the base, a patch), and returns its SHA-256 in hex.
Raises DataLoss: it is no patch of such a file."""
logger = logging.getLogger(__name__)


def manifest_of(directory: Path, prefix: str = "") -> tuple[FileEntry, ...]:
    """Every file below the directory, sorted by path, with its size and SHA-256; paths are put under `prefix`."""
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    found = ((f"{folder}{path.relative_to(directory).as_posix()}", path) for path in directory.rglob("*"))
    entries = (FileEntry(name, path.stat().st_size, digest_of(path)) for name, path in found if path.is_file())
    return tuple(sorted(entries, key=lambda entry: entry.path))


def digest_of(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_gently(out: io.RawIOBase | BinaryIO, data: bytes | memoryview) -> None:
    """Writes all of it, in pieces of GENTLE_BYTES."""
    view = memoryview(data)
    while view:
        view = view[out.write(view[:GENTLE_BYTES]) :]


def fill_patched(target: Path, file: FileEntry, _digest: str, base: Path, patch: bytes) -> str:
    """As `Patching`. A power cut may tear the file: readers look at the digest."""
    with base.open("rb") as old, target.open("w+b") as out:
        return patched(out, old, patch, file.size_bytes)


class FileTransfer:
    """Thread-safe. At most four files at once per call; an interrupted file goes on where it stopped.

    A file is given up (Unavailable) when nothing of it has moved for `timeout_seconds`.
    """

    def __init__(
        self, stub: registry_pb2_grpc.RegistryServiceStub, *, timeout_seconds: float, is_near: bool = False
    ) -> None:
        """is_near: the registry is on this machine, so that its big files may be read where they lie."""
        self._stub = stub
        self._timeout_seconds, self._is_near = timeout_seconds, is_near
        self._lock = threading.Lock()
        self._received = {"whole_bytes": 0, "patch_bytes": 0, "presigned_bytes": 0, "copied_bytes": 0}
        self._may_go_elsewhere = True

    def received(self) -> Mapping[str, int]:
        """Bytes of downloads so far: `whole_bytes` of files from the registry, `patch_bytes` of patches,
        `presigned_bytes` of files from an object store, `copied_bytes` of files read where the registry has them."""
        with self._lock:
            return dict(self._received)

    def upload(
        self, directory: Path, files: Sequence[FileEntry], missing: Sequence[str], bases: Mapping[str, Path]
    ) -> int:
        """Sends those files whose digest is missing; returns the bytes sent."""
        by_digest = {file.digest: (path_below(directory, file.path), file) for file in files}
        wanted = [by_digest[digest] for digest in missing]
        for path, file in wanted:
            if not path.is_file():
                raise InvalidInput(f"there is no file {file.path} in {directory}")
        return _sum_in_parallel(wanted, lambda item: self._upload_patch(*item, bases) or self._upload_file(*item))

    def upload_ahead(self, directory: Path, files: Sequence[FileEntry], bases: Mapping[str, Path]) -> int:
        """Sends patches of files whose digests are not known yet, as far as the registry takes them; returns the bytes
        sent."""
        return sum(self._upload_patch(path_below(directory, file.path), file, bases) for file in files)

    def download(
        self,
        files: Sequence[FileEntry],
        directory: Path,
        pace: Pace,
        bases: Mapping[str, Path] | None = None,
        patching: Patching | None = None,
    ) -> int:
        """Writes each file that is not there yet with the right bytes; returns the bytes received."""
        targets = [(path_below(directory, file.path), file) for file in files]
        patching = patching or fill_patched
        return _sum_in_parallel(targets, lambda item: self._download_file(*item, pace, bases or {}, patching))

    def _upload_patch(self, path: Path, file: FileEntry, bases: Mapping[str, Path]) -> int:
        """Sends what makes the file of a base that the registry has; returns the patch's bytes, 0: send it whole."""
        for base, held in _of_size(bases, file).items():
            with suppress(FileNotFoundError), held.open("rb") as old, path.open("rb") as new:
                patch = patch_between(old, new, file.size_bytes)
                if patch is None:
                    continue
                if patch == SAME:
                    return 0
                first = pb.UploadFileRequest(digest=file.digest, size_bytes=file.size_bytes, base_digest=base)
                try:
                    starts = range(0, len(patch), _CHUNK_BYTES)
                    pieces = (pb.UploadFileRequest(data=patch[start : start + _CHUNK_BYTES]) for start in starts)
                    self._send_messages(file, [first, *pieces])
                    return len(patch)
                except HeadraceError as error:
                    logger.info("a patch is not taken", extra={"digest": file.digest, "reason": str(error)})
                    return 0
        return 0

    def _upload_file(self, path: Path, file: FileEntry) -> int:
        retry = Retry(self._timeout_seconds, at_most_seconds=_MOST_TIMES * self._file_timeout(file.size_bytes))
        farthest = 0
        known: int | None = None
        from_start = restarted = False
        looks_up = file.size_bytes > _CHUNK_BYTES  # what goes in one message begins at its start
        while True:
            offset = 0
            try:
                received, complete = self._received_bytes(file) if looks_up else (0, False)
                looks_up = True
                known = received if known is None else known
                if complete:
                    return file.size_bytes - known
                if received > farthest:
                    farthest = received
                    retry.progressed()
                offset, from_start = (0 if from_start else received), False
                self._send(path, file, offset)
                return file.size_bytes - known
            except Unavailable as error:
                retry.wait_or_raise(error)
            except (Conflict, InvalidInput):
                if offset == 0 or restarted:
                    raise
                from_start = restarted = True  # what was there from before had other bytes

    def _received_bytes(self, file: FileEntry) -> tuple[int, bool]:
        with errors_from_status(f"the upload of {file.path}"):
            state = self._stub.GetUpload(pb.GetUploadRequest(digest=file.digest), timeout=self._timeout_seconds)
        return min(state.received_bytes, file.size_bytes), state.complete

    def _send(self, path: Path, file: FileEntry, offset: int) -> None:
        self._send_messages(file, _pieces(path, file, offset))

    def _send_messages(self, file: FileEntry, messages: Iterable[pb.UploadFileRequest]) -> None:
        with errors_from_status(f"the upload of {file.path}"):
            self._stub.UploadFile(iter(messages), timeout=self._file_timeout(file.size_bytes))

    def _download_file(
        self, target: Path, file: FileEntry, pace: Pace, bases: Mapping[str, Path], patching: Patching
    ) -> int:
        if target.is_file() and target.stat().st_size == file.size_bytes and digest_of(target) == file.digest:
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            received = (
                self._fetch_patched(aside, file, pace, bases, patching)
                or self._fetch_copied(aside, file, pace)
                or self._fetch(aside, file, pace)
            )
            aside.replace(target)
            sync(target.parent)
        finally:
            aside.unlink(missing_ok=True)
        return received

    def _count(self, kind: str, received_bytes: int) -> None:
        with self._lock:
            self._received[kind] += received_bytes

    def _fetch_patched(
        self, aside: Path, file: FileEntry, pace: Pace, bases: Mapping[str, Path], patching: Patching
    ) -> int:
        """Fills the file aside from a base of its size and a patch; returns the patch's bytes.

        0 where it has to come whole: there is no patch, or what a patch made of the base has another digest.
        """
        held = _of_size(bases, file)
        if not held:
            return 0
        try:
            base, patch = self._receive_patch(file, held, pace)
            if not base:
                return 0
            self._count("patch_bytes", len(patch))
            found = patching(aside, file, base, held[base], patch)
        except (DataLoss, FileNotFoundError, Unavailable) as error:
            logger.info("a patch cannot be used", extra={"digest": file.digest, "reason": str(error)})
            return 0
        if found != file.digest:
            logger.warning("a patch and its base do not make the file", extra={"digest": file.digest, "base": base})
            return 0
        return len(patch)

    def _receive_patch(self, file: FileEntry, held: Mapping[str, Path], pace: Pace) -> tuple[str, bytes]:
        """(base, patch); ("", b"") when the registry begins to send the whole file."""
        request = pb.DownloadFileRequest(digest=file.digest, base_digests=list(held))
        base, patch = "", bytearray()
        with errors_from_status(f"the patch of {file.path}"):
            stream = self._stub.DownloadFile(request, timeout=self._file_timeout(file.size_bytes))
            for chunk in stream:
                base = base or chunk.base_digest
                if base not in held:
                    stream.cancel()
                    return "", b""
                patch += chunk.data
                pace.wait_for(len(chunk.data))
        return base, bytes(patch)

    def _fetch_copied(self, aside: Path, file: FileEntry, pace: Pace) -> int:
        """Fills the file aside with verified bytes of the registry's own file; returns how many.

        0 where they have to be sent: the file is small, or cannot be read there, or has other bytes.
        """
        if not self._is_near or file.size_bytes < SMALLEST_FILE_BYTES:
            return 0
        request, hashed = pb.DownloadFileRequest(digest=file.digest, accepts_path=True), hashlib.sha256()
        piece = memoryview(bytearray(_NEAR_BYTES))
        try:
            with errors_from_status(f"the place of {file.path}"):
                stream = self._stub.DownloadFile(request, timeout=self._timeout_seconds)
                path = next(stream, pb.FileChunk()).path
                stream.cancel()
            with _open_near(path) as source, aside.open("wb", buffering=0) as out:
                while count := source.readinto(piece):
                    write_gently(out, piece[:count])
                    hashed.update(piece[:count])
                    pace.wait_for(count)
        except (OSError, Unavailable) as error:
            logger.info("a file is sent that could be read", extra={"digest": file.digest, "reason": str(error)})
            return 0
        if hashed.hexdigest() != file.digest:
            return 0
        self._count("copied_bytes", file.size_bytes)
        return file.size_bytes

    def _fetch(self, aside: Path, file: FileEntry, pace: Pace) -> int:
        """Fills the file aside with verified, durable bytes; returns how many came."""
        retry = Retry(self._timeout_seconds, at_most_seconds=_MOST_TIMES * self._file_timeout(file.size_bytes))
        hashed = hashlib.sha256()
        with aside.open("wb", buffering=0) as out:

            def take(data: bytes) -> None:
                write_gently(out, data)
                hashed.update(data)
                pace.wait_for(len(data))

            while True:
                offset = out.tell()
                try:
                    self._receive(take, file, offset)
                    break
                except Unavailable as error:
                    if out.tell() > offset:
                        retry.progressed()
                    retry.wait_or_raise(error)
            os.fsync(out.fileno())
        found = hashed.hexdigest()
        if found != file.digest:
            raise DataLoss(f"file {file.path} came with digest {found}, {file.digest} was expected")
        return file.size_bytes

    def _receive(self, take: Callable[[bytes], object], file: FileEntry, offset: int) -> None:
        """The bytes from the offset on, from where the registry sends us, or from the registry where this process
        cannot go there."""
        request = pb.DownloadFileRequest(digest=file.digest, offset=offset, accepts_url=self._may_go_elsewhere)
        url = ""
        with errors_from_status(f"the download of {file.path}"):
            for chunk in self._stub.DownloadFile(request, timeout=self._file_timeout(file.size_bytes - offset)):
                url = chunk.url
                take(chunk.data)
                self._count("whole_bytes", len(chunk.data))
        if not url or offset >= file.size_bytes:
            return
        try:
            for data in pieces_at(url, offset, timeout_seconds=self._timeout_seconds):
                take(data)
                self._count("presigned_bytes", len(data))
        except PermissionDenied as error:
            logger.info("files come from the registry: %s", error.message)
            self._may_go_elsewhere = False
            self._receive(take, file, offset)

    def _file_timeout(self, size_bytes: int) -> float:
        return self._timeout_seconds + max(0, size_bytes) / _SLOWEST_BYTES_PER_SECOND


def _open_near(path: str) -> io.FileIO:
    """A regular file, to be read. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = io.FileIO(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is no regular file")
    return file


def _pieces(path: Path, file: FileEntry, offset: int) -> Iterator[pb.UploadFileRequest]:
    """The first message names the file; all carry its bytes."""
    with path.open("rb") as source:
        source.seek(offset)
        data = source.read(_CHUNK_BYTES)
        yield pb.UploadFileRequest(digest=file.digest, size_bytes=file.size_bytes, offset=offset, data=data)
        while data := source.read(_CHUNK_BYTES):
            yield pb.UploadFileRequest(data=data)


def _of_size(bases: Mapping[str, Path], file: FileEntry) -> dict[str, Path]:
    """Those of which a patch may make the file; none where it is small."""
    if file.size_bytes < SMALLEST_FILE_BYTES:
        return {}
    return {digest: path for digest, path in bases.items() if _size(path) == file.size_bytes}


def _sum_in_parallel(items: Sequence[Item], work: Callable[[Item], int]) -> int:
    """The first failure is raised, once the files that had been begun have ended; no other is begun."""
    if len(items) < 2:
        return sum(work(item) for item in items)
    with ThreadPoolExecutor(min(_PARALLEL_FILES, len(items)), thread_name_prefix="files") as pool:
        running = [pool.submit(work, item) for item in items]
        try:
            return sum(task.result() for task in running)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def pieces_at(url: str, offset: int, *, timeout_seconds: float) -> Iterator[bytes]:
    """The bytes from the offset on. The caller compares the digest. Messages leave the URL's signature out.

    Args:
        timeout_seconds: the longest silence of the store.

    Raises:
        Unavailable: the store cannot be reached, refuses the URL, or stopped in the middle; ask for another URL.
        DataLoss: the store does not have the file.
        PermissionDenied: this process may not connect to the store, or has no address of it; others may give the file.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme not in _SCHEMES:
        raise Unavailable(f"the registry names {shown} for a file, expected http:// or https://")
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310  # scheme as above
            if offset and answer.status != http.client.PARTIAL_CONTENT:
                raise Unavailable(f"{shown} answers with the whole file where bytes from {offset} on were asked for")
            while data := answer.read(_PIECE_BYTES):
                yield data
            if answer.length:
                raise Unavailable(f"{shown} stopped {answer.length} bytes before its end")
    except urllib.error.HTTPError as error:
        if error.code == _NOT_THERE:
            raise DataLoss(f"{shown} is not there, though the registry knows the file") from error
        raise Unavailable(f"{shown} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", None), PermissionError | socket.gaierror):
            raise PermissionDenied(f"{shown} cannot be reached from here: {error}") from error
        raise Unavailable(f"{shown} cannot be read: {error}") from error
