"""A replica's notes for the time when its registry is away: JSON files that carry a digest of themselves, so that a
damaged file counts as none."""

import hashlib
from pathlib import Path
from typing import Any

import orjson

from common.whole_files import write_whole


def write_signed(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all, and there after a power cut."""
    body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(body).hexdigest()
    write_whole(path, orjson.dumps({"digest": digest, "document": orjson.Fragment(body)}))


def read_signed(path: Path) -> dict[str, Any] | None:
    """The document; None when there is none, or it is damaged."""
    try:
        outer = orjson.loads(path.read_bytes())
        document: dict[str, Any] = outer["document"]
        body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        return document if hashlib.sha256(body).hexdigest() == outer["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
