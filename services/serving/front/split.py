"""The requests that a canary answers: by a hash of the caller, so that the same key stays on its side.

The hash is of the model, the canary's version and the key (or the request's id), and lies below the share: a share that
grows keeps the keys of the smaller, and the next canary has other keys.
"""

import hashlib
from dataclasses import dataclass
from urllib.parse import unquote

from services.serving.wire.replica_state import Split

_SPAN = 2.0**64
_ALL = 100.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's caller: X-Prediction-Key as it came, b"" where it has none, and its tag (journal.py)."""

    keys: bytes
    tag: bytes


def is_canarys(split: Split, model: str, caller: Caller) -> bool:
    """By a key: the first of the request; a request without keys is production's."""
    side = _first_key(caller.keys) if split.by == "key" else caller.tag
    if not side or not split.share:
        return False
    digest = hashlib.blake2b(b"%b/%d/%b" % (model.encode(), split.version, side), digest_size=8).digest()
    return int.from_bytes(digest, "big") < split.share / _ALL * _SPAN


def _first_key(keys: bytes) -> bytes:
    first, _, _ = keys.partition(b",")
    return unquote(first.decode("latin-1").strip()).encode()
