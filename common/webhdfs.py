"""HDFS by its HTTP interface (WebHDFS), through fsspec's client: with bounded waits, and files that are seen whole.

A path here is HOST:PORT/PATH or USER@HOST:PORT/PATH, of the name node's HTTP door.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
import uuid
from contextlib import suppress
from typing import IO, Any

import requests
from fsspec.implementations.webhdfs import WebHDFile, WebHDFS
from requests.adapters import HTTPAdapter

from common.errors import InvalidInput

_TIMEOUT_SECONDS = (10.0, 60.0)
"""To connect, and between two bytes."""
_SPOOLED_BYTES = 1 << 20
_PORT = 9870


class Hdfs(WebHDFS):  # type: ignore[misc]  # fsspec has no types
    """A name node. fsspec keeps an instance for each of them."""

    def _connect(self) -> None:
        super()._connect()
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _Bounded())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.partition("/")[2]

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        if mode == "rb":
            return _Read(self, path, mode=mode, block_size=block_size or self.blocksize, tempdir="", autocommit=True)
        return _Written(self, path, overwrite=mode == "wb")

    def create(self, content: IO[bytes], path: str, *, overwrite: bool) -> None:
        """Under another name, then renamed. A crash in between leaves `.NAME.….part`."""
        folder, name = posixpath.split(path)
        aside = posixpath.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.part")
        try:
            node = self._call("CREATE", "put", aside, redirect=False, overwrite="false").headers["Location"]
            self.session.put(self._apply_proxy(node), data=content).raise_for_status()
            self.mv(aside, path, overwrite=overwrite)
        except BaseException:
            with suppress(OSError, RuntimeError):
                self.rm(aside)
            raise

    def mv(self, path1: str, path2: str, *, overwrite: bool = True, **_: Any) -> None:
        """Raises FileExistsError. Without the option HDFS would move it into a folder, or answer false."""
        try:
            self._call(
                "RENAME", "put", path1, destination=self._strip_protocol(path2),
                renameoptions="OVERWRITE" if overwrite else "NONE",
            )  # fmt: skip
        except RuntimeError as error:
            if overwrite or not self.exists(path2):
                raise
            raise FileExistsError(path2) from error


class _Bounded(HTTPAdapter):
    """No request waits without end."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        return super().send(request, *arguments, **{**options, "timeout": _TIMEOUT_SECONDS})


class _Read(WebHDFile):  # type: ignore[misc]  # fsspec has no types
    """fsspec takes an error of a data node, and the part that came before one ended, for the file's bytes."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return b""
        content: bytes = self.fs._call("OPEN", path=self.path, offset=start, length=end - start).content
        if len(content) != end - start:
            raise OSError(f"{len(content)} bytes came of {end - start} from byte {start} on")
        return content


class _Written(tempfile.SpooledTemporaryFile[bytes]):
    """Sent in a single request at the end of its block, and not where the block raises."""

    def __init__(self, storage: Hdfs, path: str, *, overwrite: bool) -> None:
        super().__init__(max_size=_SPOOLED_BYTES)
        self._storage, self._path, self._overwrite = storage, path, overwrite

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.seek(0)
                self._storage.create(self, self._path, overwrite=self._overwrite)
        finally:
            self.close()


def storage_of(path: str) -> Hdfs:
    """The name node that a path begins with. Raises InvalidInput: it names none."""
    user, _, node = path.partition("/")[0].rpartition("@")
    host, _, port = node.partition(":")
    if not host or not (port or str(_PORT)).isdigit():
        raise InvalidInput(f"webhdfs://{path} names no name node, expected webhdfs://HOST:PORT/PATH")
    return Hdfs(host, int(port or _PORT), user=user or os.environ.get("HADOOP_USER_NAME"))
