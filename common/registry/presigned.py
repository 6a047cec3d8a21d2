"""A file's bytes from the URL of an object store that the registry has signed."""

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from common.errors import DataLoss, PermissionDenied, Unavailable

_PIECE_BYTES = 256 * 1024
_NOT_THERE = 404
_SCHEMES = ("http", "https")


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
