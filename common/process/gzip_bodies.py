"""gzip bodies: inflated within a bound, in time that grows with their length, with any members."""

import zlib

from common.errors import InvalidInput

MOST_INFLATION = 1032
"""Bytes that one byte of deflate can become, at most (https://zlib.net/zlib_tech.html)."""
MAX_MEMBERS = 10_000
_GZIP_WINDOW_BITS = 31
_FIRST_PIECE, _LARGEST_PIECE = 256, 256 * 1024


def inflate(body: bytes, *, max_bytes: int) -> bytes | None:
    """The content of all members, one after the other; None when it is more than `max_bytes`. Raises InvalidInput: it
    is not gzip, is cut short, or has more than 10,000 members."""
    inflated = bytearray()
    view = memoryview(body)
    at = count = 0
    while at < len(body):
        count += 1
        if count > MAX_MEMBERS:
            raise InvalidInput(f"the gzip body has more than {MAX_MEMBERS} members")
        size = _inflate_member(view[at:], inflated, max_bytes)
        if size is None:
            return None
        at += size
    return bytes(inflated)


def _inflate_member(view: memoryview, inflated: bytearray, max_bytes: int) -> int | None:
    """Bytes of the member, whose content is appended; None when that is too much.

    It is fed in growing pieces: what a piece holds beyond the member's end is copied, so it must not be much more than
    the member itself.
    """
    member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    fed, piece = 0, _FIRST_PIECE
    while not member.eof:
        if fed == len(view):
            raise InvalidInput(f"the gzip body is cut short {fed} bytes into its last member")
        part = view[fed : fed + piece]
        try:
            inflated += member.decompress(part, max_bytes - len(inflated) + 1)
        except zlib.error as error:
            raise InvalidInput(f"the body is not gzip, as Content-Encoding says: {error}") from error
        if len(inflated) > max_bytes:
            return None
        fed += len(part)
        piece = min(2 * piece, _LARGEST_PIECE)
    return fed - len(member.unused_data)
