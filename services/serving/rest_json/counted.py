"""Lists and objects of a JSON body, counted in its bytes: an empty one of three bytes becomes a value of 60 to 200."""

import numpy as np

from services.serving.rest_json.values import invalid
from services.serving.wire.limits import Limits

_CHUNK_BYTES = 1 << 20
_QUOTE = ord('"')


def check_counts(body: bytes | bytearray, limits: Limits) -> None:
    """Raises RequestFailed for more lists or objects than a body may have."""
    for what, opening, most in (("objects", b"{", limits.max_objects), ("lists", b"[", limits.max_lists)):
        if len(body) > most and body.count(opening) > most:
            count = _outside_strings(body, opening)
            if count > most:
                raise invalid(f"the body has {count} {what}, expected at most {most}; send fewer rows at once")


def _outside_strings(body: bytes | bytearray, sign: bytes) -> int:
    """How often a sign stands outside of strings, with a bounded amount of memory beside the body."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    count, is_inside = 0, False
    for start in range(0, len(body), _CHUNK_BYTES):
        chunk = np.frombuffer(body, np.uint8, min(_CHUNK_BYTES, len(body) - start), start)
        inside = np.bitwise_xor.accumulate(chunk == _QUOTE) ^ is_inside
        count += int(np.count_nonzero((chunk == sign[0]) & ~inside))
        is_inside = bool(inside[-1])
    return count
