"""The user's token: HEADRACE_TOKEN, else the file that HEADRACE_TOKEN_FILE names, else what `headrace login` has kept.

Stored is {"host:port": token} for every door of a platform, in $XDG_CONFIG_HOME/headrace/tokens.json (else below
~/.config), which its owner alone may read.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import InvalidInput
from common.whole_files import write_whole

_TOKEN, _TOKEN_FILE = "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"  # names of variables
_OTHERS = 0o077


def token_for(url: str) -> str:
    """The token for the door at the URL (or host:port); "" where there is none. Raises InvalidInput: a file cannot be
    read, holds no token, or others may read it."""
    if token := os.environ.get(_TOKEN):
        return checked(token, _TOKEN)
    if path := os.environ.get(_TOKEN_FILE):
        return read_token(Path(path))
    return _stored().get(_door(url), "")


def read_token(path: Path) -> str:
    """Raises InvalidInput."""
    try:
        return checked(path.read_text(), str(path))
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"the token file {path} cannot be read: {error}") from error


def checked(text: str, where: str) -> str:
    """The token in the text. Raises InvalidInput: it is not one word, which a header could not carry."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"{where} holds no token: it is one word of ASCII")
    return token


def store(urls: Iterable[str], token: str) -> Path:
    """Keeps the token for these doors; "" forgets it. Returns the file."""
    path = _path()
    known = _stored()
    for url in urls:
        known.pop(_door(url), "")
        if token:
            known[_door(url)] = token
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(known, indent=2).encode(), mode=0o600)
    return path


def _path() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "headrace" / "tokens.json"


def _stored() -> dict[str, str]:
    path = _path()
    try:
        if path.stat().st_mode & _OTHERS:
            raise InvalidInput(f"others may read {path}, which holds tokens; chmod 600 it")
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}; `headrace login` writes it") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is not as `headrace login` writes it")
    return {str(door): str(token) for door, token in found.items()}


def _door(url: str) -> str:
    return urlsplit(url).netloc or url
