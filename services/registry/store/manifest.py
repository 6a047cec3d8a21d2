"""A manifest names files that are stored by digest; its paths must be safe to write below any folder."""

import re
from collections.abc import Iterator, Sequence

from common.errors import InvalidInput
from common.registry.catalog import FileEntry

DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 10_000
_MAX_PATH = 1024
_MAX_NAME_BYTES = 255


def check_manifest(files: Sequence[FileEntry]) -> None:
    """Raises InvalidInput: a path or digest is malformed, a path stands twice, or there are too many."""
    if len(files) > _MAX_FILES:
        raise InvalidInput(f"a manifest may name {_MAX_FILES} files, got {len(files)}")
    paths = [file.path for file in files]
    for file in files:
        _check_path(file.path)
        check_digest(file.digest)
        if file.size_bytes < 0:
            raise InvalidInput(f"{file.path} has a negative size")
    known: set[str] = set()
    for path in paths:
        if path in known:
            raise InvalidInput(f"the manifest names {path} more than once")
        known.add(path)
    for path in paths:
        folder = next((parent for parent in _folders_of(path) if parent in known), "")
        if folder:
            raise InvalidInput(f"the manifest names {folder} as a file, and {path} below it")


def _folders_of(path: str) -> Iterator[str]:
    """a/b/c: a, a/b."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def check_digest(digest: str) -> str:
    """The digest itself. Raises InvalidInput when it is not SHA-256 in lower-case hex."""
    if not DIGEST_PATTERN.fullmatch(digest):
        raise InvalidInput(f"{digest[:80]!r} is not a SHA-256 in hex: 64 digits 0-9 a-f")
    return digest


def _check_path(path: str) -> None:
    parts = path.split("/")
    if any(len(part.encode(errors="replace")) > _MAX_NAME_BYTES for part in parts):
        raise InvalidInput(f"{path[:200]!r} has a part of more than {_MAX_NAME_BYTES} bytes, which no disk takes")
    if len(path) > _MAX_PATH or "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"{path[:200]!r} is not a relative path with forward slashes")
