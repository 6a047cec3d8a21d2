"""The token in a file that a service or a user sends with its requests; read again when the file changes."""

import time
from pathlib import Path

from common.errors import InvalidInput


class TokenFile:
    """Thread-safe."""

    def __init__(self, path: Path, *, look_seconds: float = 1.0) -> None:
        """Looks for a change at this interval. Raises InvalidInput: the file cannot be read, or holds no token."""
        self._path, self._look_seconds = path, look_seconds
        self._seen = 0
        self._look_at = 0.0
        self._token = ""
        self._read()

    def authorization(self) -> str:
        """The value of the header; the last token where the file can no longer be read."""
        if time.monotonic() >= self._look_at:
            try:
                self._read()
            except InvalidInput:
                self._look_at = time.monotonic() + self._look_seconds
        return f"Bearer {self._token}"

    def _read(self) -> None:
        self._look_at = time.monotonic() + self._look_seconds
        try:
            seen = self._path.stat().st_mtime_ns
            if seen == self._seen:
                return
            token = self._path.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise InvalidInput(f"the token file {self._path} cannot be read: {error}") from error
        if not token.isascii() or not token.isprintable() or not token or " " in token:
            raise InvalidInput(f"the token file {self._path} holds no token: it is one word")
        self._token, self._seen = token, seen
